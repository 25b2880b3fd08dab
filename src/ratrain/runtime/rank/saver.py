"""Saving while training: the program's Save ops write each unit's own part to a checkpoint.

A Save reads the states of one unit between its update and the next one. In steps that do not
save it does nothing. The first Save of a saving step opens the rank's file, the last one closes
it; then the first rank on each disk writes the manifest and gives the checkpoint its name, so it is
complete or absent. Where checkpoints are in an object store, what was written is then on its way
there while the run goes on (`checkpoint/upload.py`). Of states on disk it takes the files as they
are where it can (`given_files.py`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from torch import Tensor

from ratrain.checkpoint.best import Best, read_best, write_best
from ratrain.checkpoint.entries import Entry, clipped
from ratrain.checkpoint.folder import begin, discard, partial_path, publish, rank_path, seal, url_of
from ratrain.checkpoint.listing import prune
from ratrain.checkpoint.manifest import Manifest, Meta, RankRecord, Spread, own_file
from ratrain.checkpoint.own import own_kind
from ratrain.checkpoint.shard_writer import ShardWriter
from ratrain.checkpoint.upload import Ending, Upload
from ratrain.describe.optimizers import Held, Optimizer, Plain
from ratrain.describe.saved import WEIGHTS, saved_as
from ratrain.objects.client import close_stores
from ratrain.objects.remote import Remote
from ratrain.readers.json import as_table, parse_json
from ratrain.runtime.rank.given_files import GivenFiles
from ratrain.runtime.rank.joining.membership import Membership
from ratrain.runtime.step.exchange.between_sites import Shared
from ratrain.runtime.step.exchange.slots import Slots
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.optimizer import OwnedPart
from ratrain.runtime.step.states import RankStates
from ratrain.runtime.step.tensor_parts import stored_name
from ratrain.runtime.step.unit_state import UnitState

SAVED_AT_ONCE = 1 << 22
"""Elements of a state that go to disk at once."""


@dataclass(frozen=True)
class SaveSpec:
    """What to save, when, and how it is named."""

    run: Path
    every: int  # steps; 0: only after the last one
    validated_every: int  # steps that are validated are saved too; 0: none besides the last
    keep: int
    model: str
    config_hash: str
    unit_sizes: Mapping[str, int]
    optimizer: Optimizer
    state: Mapping[str, Any]  # the same in every checkpoint of the run
    token: str = ""  # of the launch, that owns what is below a URL
    patience_s: float = 300.0  # how long an object store may be silent


class CheckpointSaver:
    """One rank's saver. `is_last(step)` may wait until it is agreed whether a step is the last;
    `state_after(step)` is what goes into the manifest beside the tensors; `require_owned` raises
    where the run's folder is another launch's by now; `saved` hears the steps that were saved."""

    def __init__(
        self,
        spec: SaveSpec,
        rank: int,
        membership: Membership,
        states: RankStates,
        network: Network,
        *,
        state_after: Callable[[int], Mapping[str, float]],
        is_last: Callable[[int], bool],
        require_owned: Callable[[], None],
        saved: Callable[[int], None],
    ) -> None:
        self._spec, self._rank, self._membership, self._states = spec, rank, membership, states
        self._keeps, self._saved = membership.keeps(rank), saved
        self._network, self._is_last = network, is_last
        self._state_after, self._require_owned = state_after, require_owned
        self._writer: ShardWriter | None = None
        self._given = GivenFiles(states, spec.optimizer, rank)
        self._upload: Upload | None = None
        self._partial, self._once = Path(), ""  # what no other save's files are called
        self._url = url_of(spec.run)
        self._sent: dict[Path, int] = {}
        self._left: set[str] = set()
        self._considered = -1
        self._due = False

    def save(self, unit: UnitState, step: int) -> None:
        """One unit's part, in a step that saves."""
        if self._upload is not None and not self._upload.running:
            self.arrived()
        if step != self._considered:
            self._considered, self._due = step, self._is_due(step)
            if self._due:
                self._open(step)
        if not self._due:
            return
        assert self._writer is not None
        for entry, pieces in self._given.take(unit, written(unit, self._spec.optimizer)):
            for piece in pieces:
                self._writer.write(entry.name, piece.detach().cpu().numpy())
        self._left.remove(unit.name)
        if not self._left:
            self._close(step)

    def _is_due(self, step: int) -> bool:
        for interval in (self._spec.every, self._spec.validated_every):
            if interval and (step + 1) % interval == 0:
                return True
        return self._is_last(step)

    def _open(self, step: int) -> None:
        """The first rank on each disk makes the partial folder; every rank opens its file in it."""
        run, once = self._spec.run, ""
        if self._url is not None:
            self.arrived()
            # Not before what other hosts still send has arrived; and all know the files' names.
            once = self._network.exchange_bytes(uuid4().hex[:8].encode())[0].decode()
        if self._keeps:
            self._require_owned()
            begin(run, step + 1)
        self._network.exchange_bytes(b"")
        self._partial = partial_path(run, step + 1)
        found = {
            unit.name: [entry for entry, _ in written(unit, self._spec.optimizer)]
            for unit in self._states.units
        }
        rest = self._given.begin(self._partial, found, linked=self._url is None)
        self._once = once
        self._writer = ShardWriter(rank_path(self._partial, self._rank, once), rest)
        self._left = {unit.name for unit in self._states.units}

    def _close(self, step: int) -> None:
        assert self._writer is not None
        records = self._writer.finish(), *self._given.records
        self._writer = None
        body = {"records": [record.as_json() for record in records], "now_s": time.time()}
        replies = [
            as_table(*parse_json(row, "a rank's record"))[0]
            for row in self._network.exchange_bytes(
                json.dumps(body).encode(), hearers=self._membership.disks
            )
        ]
        if self._url is not None:
            self._send(step, self._url, replies)
            return
        if self._keeps:
            self._require_owned()
            seal(self._partial, self._manifest(step, replies, self._membership.spread(self._rank)))
        self._everywhere()
        if self._keeps:
            publish(self._partial)
        self._everywhere()
        if self._keeps:
            prune(self._spec.run, self._spec.keep, upto=step + 1)
        self._saved(step + 1)

    def _send(self, step: int, url: Remote, replies: list[dict[str, Any]]) -> None:
        """From now on the files that this rank sends are on their way to the store."""
        files = [
            rank_path(self._partial, rank, self._once)
            for rank in self._membership.sent_by(self._rank)
        ]
        ending = None
        if self._rank == 0:
            manifest = self._manifest(step, replies, None)
            ending = Ending(manifest, self._spec.keep, self._sent, self._spec.token)
        if files:
            patience_s = self._spec.patience_s
            self._upload = Upload(self._spec.run, url, files, step + 1, ending, patience_s)

    def arrived(self) -> None:
        """Returns when what this rank sends is in the store; raises what went wrong."""
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.wait()
            close_stores()
            if self._rank == 0:
                self._saved(upload.step)

    def remove_sent(self) -> None:
        """Removes files that are in the store; to be called when all ranks' are."""
        if self._url is not None and self._keeps:
            discard(self._partial)

    def _manifest(
        self, step: int, replies: list[dict[str, Any]], spread: Spread | None
    ) -> Manifest:
        records = (RankRecord.of_json(each) for row in replies for each in row["records"])
        ordered = tuple(sorted(records, key=lambda record: record.file))
        return Manifest(
            self._meta(step), replies[0]["now_s"], ordered, spread and _of_all(spread, ordered)
        )

    def validated(self, step: int, loss: float) -> None:
        """Names what was saved after that many steps as the best, where it is; then the one before
        it may go. To be called when nothing is being saved."""
        if not self._keeps:
            return
        self._require_owned()
        best = read_best(self._spec.run)
        if best is None or loss < best.validation_loss:
            write_best(self._spec.run, Best(step, loss))
            if self._url is None:  # else when the next one has arrived
                prune(self._spec.run, self._spec.keep, upto=step)

    def _everywhere(self) -> None:
        """Waits for the other disks: none shows a checkpoint before all have their part, or removes
        an old one before all show the new one."""
        if len(self._membership.disks) > 1:
            self._network.exchange_bytes(b"")

    def _meta(self, step: int) -> Meta:
        spec, state = self._spec, {**self._spec.state, **self._state_after(step)}
        return Meta(step + 1, spec.model, spec.config_hash, spec.unit_sizes, state)


def _of_all(spread: Spread, records: Sequence[RankRecord]) -> Spread:
    """The same, of all files of the ranks whose disks it says."""
    disk_of = {record.file: spread.disk_of[own_file(record.file)] for record in records}
    return replace(spread, disk_of=disk_of)


def written(unit: UnitState, optimizer: Optimizer) -> Iterator[tuple[Entry, Iterator[Tensor]]]:
    """What a rank writes of a unit, and in which pieces: what it owns of each entry, without
    padding, or all of its own. Nothing of what nobody updates."""
    if not unit.trained:
        return
    if unit.slots is not None:
        yield from _of_slots(unit, unit.slots, optimizer)
        return
    if unit.shared is not None and unit.shared.is_unlike:
        yield from _of_sites(unit, unit.shared, optimizer)
        return
    name, size = stored_name(unit.name, unit.division), unit.unit.layout.size
    held = [(kind, buffer, unit.part.begin) for kind, buffer in buffers_of(unit.part, optimizer)]
    held += [(kind, buffer, 0) for kind, buffer in unit.beside.items()]
    for kind, buffer, first in held:
        runs = unit.saves
        if saved_as(kind).is_own(apart=unit.own):
            kind = own_kind(kind, *unit.own_place)
            runs = [slice(0, unit.padded) if unit.across is None else unit.owned]
        for entry in filter(None, (clipped(name, kind, r.start, r.stop, size) for r in runs)):
            run = entry.begin - first, entry.end - first
            yield entry, _pieces(buffer, *run, whole=optimizer.whole)


def _of_slots(
    unit: UnitState, slots: Slots, optimizer: Optimizer
) -> Iterator[tuple[Entry, Iterator[Tensor]]]:
    """The same of a unit that replicas hold at different degrees: it is stored slot by slot."""
    parts = {part.begin: part for part in unit.parts}
    for stored in slots.stored():
        name = stored_name(unit.name, stored.slot)
        for kind, buffer in buffers_of(parts[stored.run.start], optimizer):
            entry = Entry(name, kind, stored.begin, stored.end - stored.begin, slots.slot_size)
            yield entry, stored.pieces(buffer.values())


def _of_sites(
    unit: UnitState, shared: Shared, optimizer: Optimizer
) -> Iterator[tuple[Entry, Iterator[Tensor]]]:
    """The same of a unit that sites hold at different degrees. What all have alike the first of
    them writes."""
    stored = list(unit.stored)
    for kind, buffer in buffers_of(unit.part, optimizer):
        place, places = unit.own_place
        if saved_as(kind).is_own(apart=unit.own):
            kind = own_kind(kind, place, places)
        elif place:
            continue
        for each in stored:
            size = shared.layout(each.slot).size
            name = stored_name(unit.name, each.slot)
            entry = Entry(name, kind, each.begin, each.end - each.begin, size)
            yield entry, each.pieces(buffer.values())


def buffers_of(part: OwnedPart, optimizer: Optimizer) -> Iterator[tuple[str, Held]]:
    """Master weights, the optimizer's states and what else is kept beside them, by the names that a
    checkpoint gives them."""
    yield WEIGHTS, Plain(part.weights)
    yield from ((s.name, held) for s, held in zip(optimizer.states, part.states, strict=True))
    yield from part.beside.items()


def _pieces(held: Held, begin: int, end: int, *, whole: bool) -> Iterator[Tensor]:
    """Elements of a state in fp32: piece by piece, so that one kept otherwise is never whole; of an
    optimizer that takes whole matrices, at once."""
    if whole:
        yield held.values()[begin:end]
        return
    for at in range(begin, end, SAVED_AT_ONCE):
        yield held[at : min(at + SAVED_AT_ONCE, end)].values()
