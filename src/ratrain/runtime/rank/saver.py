"""Saving while training: the program's Save ops write each unit's own part to a checkpoint.

A Save reads the states of one unit between its update and the next one. In steps that do not
save it does nothing. The first Save of a saving step opens the rank's file, the last one closes
it; then rank 0 commits, so a checkpoint is complete or absent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratrain.checkpoint.entries import KINDS, Entry, clipped
from ratrain.checkpoint.folder import begin, commit, rank_path
from ratrain.checkpoint.listing import prune
from ratrain.checkpoint.manifest import Meta, RankRecord
from ratrain.checkpoint.shard_writer import ShardWriter
from ratrain.runtime.step.network import Network
from ratrain.runtime.step.states import RankStates, UnitState


@dataclass(frozen=True)
class SaveSpec:
    """What to save, when, and how it is named."""

    run: Path
    every: int  # steps; 0: only behind the last one
    keep: int
    model: str
    config_hash: str
    unit_sizes: Mapping[str, int]
    state: Mapping[str, Any]  # the same in every checkpoint of the run


class CheckpointSaver:
    """One rank's saver. `is_last(step)` may wait until it is agreed whether a step is the last;
    `state_after(step)` is what goes into the manifest beside the tensors."""

    def __init__(
        self,
        spec: SaveSpec,
        rank: int,
        states: RankStates,
        network: Network,
        state_after: Callable[[int], Mapping[str, float]],
        is_last: Callable[[int], bool],
    ) -> None:
        self._spec, self._rank, self._states = spec, rank, states
        self._network, self._is_last = network, is_last
        self._state_after = state_after
        self._writer: ShardWriter | None = None
        self._partial = Path()
        self._left: set[str] = set()
        self._considered = -1
        self._due = False

    def save(self, unit: UnitState, step: int) -> None:
        """One unit's part, in a step that saves."""
        if step != self._considered:
            self._considered, self._due = step, self._is_due(step)
            if self._due:
                self._open(step)
        if not self._due:
            return
        assert self._writer is not None
        for entry, buffer in _parts(unit):
            self._writer.write(entry.name, buffer)
        self._left.remove(unit.name)
        if not self._left:
            self._close(step)

    def _is_due(self, step: int) -> bool:
        every = self._spec.every
        return bool(every and (step + 1) % every == 0) or self._is_last(step)

    def _open(self, step: int) -> None:
        """Rank 0 makes the partial folder; every rank then opens its file in it."""
        made = ""
        if self._rank == 0:
            made = str(begin(self._spec.run, step + 1))
        self._partial = Path(self._network.exchange_bytes(made.encode())[0].decode())
        entries = [entry for unit in self._states.units for entry, _ in _parts(unit)]
        self._writer = ShardWriter(rank_path(self._partial, self._rank), entries)
        self._left = {unit.name for unit in self._states.units}

    def _close(self, step: int) -> None:
        assert self._writer is not None
        record = self._writer.finish()
        self._writer = None
        found = self._network.exchange_bytes(json.dumps(record.as_json()).encode())
        if self._rank == 0:
            records = [RankRecord.of_json(json.loads(body)) for body in found]
            commit(self._partial, records, self._meta(step))
            prune(self._spec.run / "checkpoints", self._spec.keep)

    def _meta(self, step: int) -> Meta:
        spec, state = self._spec, {**self._spec.state, **self._state_after(step)}
        return Meta(step + 1, spec.model, spec.config_hash, spec.unit_sizes, state)


def _parts(unit: UnitState) -> list[tuple[Entry, object]]:
    """What a rank writes of a unit: its own share of each kind, without padding."""
    found: list[tuple[Entry, object]] = []
    buffers = unit.part.weights, unit.part.moment1, unit.part.moment2
    for kind, buffer in zip(KINDS, buffers, strict=True):
        size = unit.unit.layout.size
        entry = clipped(unit.stored_name, kind, unit.own.start, unit.own.stop, size)
        if entry is not None:
            begin_ = unit.own.start - unit.part.begin
            part = buffer[begin_ : begin_ + entry.elements]
            found.append((entry, part.detach().cpu().numpy()))
    return found
