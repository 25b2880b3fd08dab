"""The loss of a trained model on held-out files, each by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ratrain.corpus.prepare import prepare
from ratrain.corpus.samples import MASKED, Samples
from ratrain.corpus.store import TokenStore
from ratrain.corpus.tokenizer import check_vocabulary, tokenizer_of
from ratrain.describe.train import DataSpec
from ratrain.errors import SpecError
from ratrain.models.units import MicroBatch, unit_of
from ratrain.models.weights import Weights
from ratrain.plan import load_job
from ratrain.runtime.run.trained import TrainedModel
from ratrain.runtime.run_folder import RunFolder

AT_ONCE = 4
"""Sequences of a file that are computed together."""
MOST_LOSS = 700.0
"""Of which a perplexity is still a number."""


@dataclass(frozen=True)
class Evaluated:
    """The mean loss of a file's tokens that count. `left_out`: those at its end that fill no
    sequence, and were not looked at."""

    file: str
    tokens: int
    loss: float
    left_out: int

    @property
    def perplexity(self) -> float:
        return exp(min(self.loss, MOST_LOSS))


def all_of(results: Sequence[Evaluated]) -> Evaluated:
    """Of all files together: each token weighs the same."""
    tokens = sum(each.tokens for each in results)
    loss = sum(e.loss * e.tokens for e in results) / max(1, tokens)
    return Evaluated("", tokens, loss, sum(each.left_out for each in results))


def data_of_run(path: Path) -> DataSpec | None:
    """How a run reads text, as its job says now; None where `path` is no run."""
    folder = RunFolder(path)
    if not folder.holds_run:
        return None
    spec = folder.read_spec()
    return load_job(spec.job_path, spec.overrides).data


def evaluated(
    model: TrainedModel,
    data: DataSpec,
    base: Path,
    names: Sequence[str],
    sequence_length: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[Evaluated]:
    """The `Evaluated` of each of a [data] table's files, in sequences of that length, or as short
    as a file is. `base`: where relative names start; `names`: of the files, as they are shown.
    `progress` takes sequences done and all."""
    tokenizer = tokenizer_of(data.tokenizer, base)
    check_vocabulary(tokenizer, model.spec.vocab, place=str(base / data.tokenizer))
    stores = [
        (name, _store(replace(data, files=(file,)), base, sequence_length))
        for name, file in zip(names, data.files, strict=True)
    ]
    samples: list[tuple[str, Samples, int]] = []
    for file, store in stores:
        length = max(1, min(sequence_length, len(store) - 1))
        of_file = Samples(store, length, 1, shuffle=False)
        samples.append((file, of_file, max(0, len(store) - 1 - of_file.count * length)))
    weights, total, done = model.views(), sum(each.count for _, each, _ in samples), 0
    results: list[Evaluated] = []
    for file, of_file, left_out in samples:
        loss, tokens = 0.0, 0
        for first in range(0, of_file.count, AT_ONCE):
            places = np.arange(first, min(first + AT_ONCE, of_file.count), dtype=np.int64)
            batch = of_file.at(places)
            tokens += int((batch.targets != MASKED).sum())
            made = MicroBatch(torch.from_numpy(batch.tokens), torch.from_numpy(batch.targets))
            loss += float(_loss(model, weights, made))
            done += len(places)
            if progress is not None:
                progress(done, total)
        if not tokens:
            raise SpecError(
                "holds no token that counts", place=file, fix="give more text, or other files"
            )
        results.append(Evaluated(file, tokens, loss / tokens, left_out))
    return results


def _store(data: DataSpec, base: Path, sequence_length: int) -> TokenStore:
    return prepare(data, base, place="FILE", sequence_length=sequence_length).store


def _loss(model: TrainedModel, weights: dict[str, Weights], batch: MicroBatch) -> Tensor:
    """The sum of the tokens' losses."""
    x = torch.empty(0)
    with torch.no_grad():
        for name, own in weights.items():
            unit = unit_of(model.spec, name, sequence_length=batch.tokens.shape[1])
            x = unit.forward(own, x, batch)
    return x
