"""A run's weights while it trains: each version whole, of one step, as they are published."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from ratrain.errors import DeadlineExceeded, SpecError, TransportError
from ratrain.models.huggingface.writer import named_tensors
from ratrain.proof import derived
from ratrain.runtime.encryption import tls_of
from ratrain.runtime.published import (
    ELEMENT_BYTES,
    PURPOSE,
    Sources,
    nics_of,
    packed,
    read_layout,
    take_sources,
    withdraw_offer,
    write_offer,
)
from ratrain.runtime.run.trained import TrainedModel, model_of_run
from ratrain.runtime.run_files import trained_case
from ratrain.runtime.run_folder import RunFolder
from ratrain.runtime.secret import read_secret
from ratrain.transport import Config, Engine
from ratrain.transport.uses.weights import Bytes, Subscriber

_LOOK_S = 0.1
"""How often a follower looks for an answer: fifty times a second took 1.3 % of a processor."""


class Followed:
    """Takes a run's weights into memory of its own, beside the version in use: twice the model in
    fp32. `nics`: where they come in: "loopback", "all", or several with commas between them."""

    def __init__(self, run: Path, nics: str = "loopback") -> None:
        self._folder = RunFolder(run.resolve())
        self._id = uuid4().hex[:8]
        secret = derived(read_secret(self._folder.secret), PURPOSE)
        tls = tls_of(trained_case(self._folder.path / "case.json").tls)
        self._engine = Engine(Config(secret, f"follower {self._id}", nics=nics_of(nics), tls=tls))
        self._elements: dict[str, int] = {}
        self._subscriber: Subscriber | None = None
        self._used: tuple[dict[str, int], Bytes] = {}, np.empty(0, np.uint8)
        self.step: int | None = None
        """How many steps' updates are in the weights in use; None: none has come yet."""

    def __enter__(self) -> Followed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Nothing comes any more; what was in use is gone."""
        if self._subscriber is not None:
            withdraw_offer(self._folder.path, self._id, self._subscriber.version + 1)
        self._engine.close()

    def wait(self, timeout_s: float = 600.0) -> int:
        """Waits for the next version and takes it into use: how many steps' updates are in it.
        Where it does not come whole, the one before stays in use and the next is waited for."""
        end_s = time.monotonic() + timeout_s
        while True:
            subscriber = self._ready(end_s)
            offer = subscriber.offer()
            write_offer(self._folder.path, self._id, offer, self._elements)
            sources = self._answer(offer.version, end_s)
            if sources is None:
                continue  # the run has begun anew
            try:
                subscriber.accept(sources.by_address(), max(end_s - time.monotonic(), _LOOK_S))
            except (TransportError, SpecError):
                if time.monotonic() > end_s:
                    raise
                continue
            self._used, self.step = (self._elements, subscriber.weights), sources.step
            return self.step

    def model(self) -> TrainedModel:
        """The model with the weights in use; what it reads changes with the next version."""
        if self.step is None:
            raise SpecError(
                "no weights have come yet", place=str(self._folder.path), fix="call wait() first"
            )
        return model_of_run(self._folder, self._read, self._used[0], self.step)

    def tensors(self, dtype: torch.dtype = torch.float32) -> Iterator[tuple[str, Tensor]]:
        """Copies of the weights in use by their names in a Hugging Face folder."""
        model = self.model()
        return named_tensors(model.spec, dtype, model.source)

    def _ready(self, end_s: float) -> Subscriber:
        """Room for what the run publishes now. In another layout than before that is new room: the
        version in use stays where it is."""
        while (elements := read_layout(self._folder.path)) is None:
            if time.monotonic() > end_s:
                raise SpecError(
                    "publishes no weights",
                    place=str(self._folder.path),
                    fix="train with [train] publish_every = N",
                )
            time.sleep(_LOOK_S)
        if elements != self._elements or self._subscriber is None:
            self._elements = elements
            self._subscriber = Subscriber(self._engine, packed(elements))
        return self._subscriber

    def _answer(self, version: int, end_s: float) -> Sources | None:
        """Who writes it; None where the run has begun anew, and does not know of the offer."""
        run = self._folder.path
        offer = run / "weights" / f"offer-{self._id}-{version}.json"
        while time.monotonic() < end_s:
            is_there = offer.exists()
            sources = take_sources(run, self._id, version)
            if sources is not None or not is_there:
                return sources
            time.sleep(_LOOK_S)
        withdraw_offer(run, self._id, version)
        raise DeadlineExceeded(
            "no weights were published in time",
            place=str(run),
            fix="wait longer, or publish more often: [train] publish_every",
        )

    def _read(self, name: str, kind: str, begin: int, end: int) -> Tensor:
        del kind  # weights are all that there is
        elements, weights = self._used
        held = next(block for block in packed(elements) if block.name == name)
        at = held.offset + begin * ELEMENT_BYTES
        size = (end - begin) * ELEMENT_BYTES
        return torch.from_numpy(weights[at : at + size]).view(torch.float32)
