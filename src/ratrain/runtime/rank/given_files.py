"""States on disk in a checkpoint: their files, as they are.

What waits on disk for its update lies there already, written past the page cache. Where the
checkpoints' folder is on the same file system, a checkpoint takes the file by another name, and the
next step writes the state elsewhere: no byte is copied or read back. Only checksums are made, from
the slot that the update has left. The header that makes a tensor file of it goes into the room that
is kept ahead of the states. Elsewhere, and for what is not kept as fp32 numbers or is mostly other
replicas' to save, the saver writes as for any state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from torch import Tensor

from ratrain.checkpoint.digests import Digests
from ratrain.checkpoint.disk import free_bytes, told
from ratrain.checkpoint.entries import Entry
from ratrain.checkpoint.folder import discard, rank_path
from ratrain.checkpoint.manifest import RankRecord, StoredEntry
from ratrain.checkpoint.own import shared_kind
from ratrain.checkpoint.tensor_file import header_ahead
from ratrain.describe.optimizers import Optimizer
from ratrain.describe.saved import WEIGHTS
from ratrain.errors import CheckpointError
from ratrain.runtime.step.away import AwayOptimizer
from ratrain.runtime.step.states import RankStates
from ratrain.runtime.step.unit_state import UnitState
from ratrain.storage import Key, TierStore

LEAST_PART = 0.75
"""Of a file's states, that a checkpoint needs: else it would keep too much that nobody reads."""

Found = tuple[Entry, Iterator[Tensor]]
"""What a rank saves of a unit, in pieces."""


@dataclass(frozen=True)
class _Given:
    """A unit's file. `places`: where in it entries begin, by their names."""

    store: TierStore
    key: Key
    header: bytes
    size_bytes: int
    places: Mapping[str, int]


class GivenFiles:
    """One rank's. `records`: of the files that the checkpoint under way has by now."""

    def __init__(self, states: RankStates, optimizer: Optimizer, rank: int) -> None:
        self._states, self._rank = states, rank
        self._kinds = [WEIGHTS, *(state.name for state in optimizer.states)]
        self._partial = Path()
        self._units: dict[str, _Given] = {}
        self.records: list[RankRecord] = []

    def begin(
        self, partial: Path, found: Mapping[str, Sequence[Entry]], *, linked: bool
    ) -> list[Entry]:
        """A checkpoint begins: returns what is to be written of all that there is, by the unit.
        `linked`: whether it may have files of the tier."""
        self._partial, self._units, self.records = partial, {}, []
        can_give: dict[TierStore, bool] = {}
        rest: list[Entry] = []
        for unit in self._states.units:
            entries = found[unit.name]
            given = self._given(unit, entries) if linked else None
            if given is not None and given.store not in can_give:
                can_give[given.store] = given.store.can_give(partial)
            if given is not None and can_give[given.store]:
                self._units[unit.name] = given
                entries = [entry for entry in entries if entry.name not in given.places]
            rest += entries
        return rest

    def take(self, unit: UnitState, found: Iterable[Found]) -> Iterator[Found]:
        """Takes a unit's file, and hands on what is to be written."""
        given = self._units.get(unit.name)
        if given is None:
            yield from found
            return
        stored: list[StoredEntry] = []
        for entry, pieces in found:
            if entry.name in given.places:
                stored.append(_hashed(Digests(entry, given.places[entry.name]), pieces))
            else:
                yield entry, pieces
        path = rank_path(self._partial, self._rank, given.key.name)
        with self._told(given):
            given.store.give(given.key, given.header, path)
        digest = sha256(given.header).hexdigest()
        self.records.append(
            RankRecord(path.name, given.size_bytes, len(given.header), digest, tuple(stored))
        )

    def _given(self, unit: UnitState, entries: Sequence[Entry]) -> _Given | None:
        away = self._states.away["optimizer"].unit(unit.local.index)
        if not isinstance(away, AwayOptimizer) or away.tier.files is None or unit.slots is not None:
            return None
        data_at, size_bytes = away.tier.files.place(away.key)
        placed: list[tuple[Entry, int]] = []
        for entry in entries:
            kind = shared_kind(entry.kind)
            at = away.places.get((0, self._kinds.index(kind))) if kind in self._kinds else None
            if at is not None:
                inside = (entry.begin - unit.part.begin) * (entry.size_bytes // entry.elements)
                placed.append((entry, data_at + at + inside))
        if sum(entry.size_bytes for entry, _ in placed) < LEAST_PART * away.size_bytes:
            return None
        header = header_ahead(placed, data_at, size_bytes)
        if header is None:
            return None
        places = {entry.name: at for entry, at in placed}
        return _Given(away.tier.files, away.key, header, size_bytes, places)

    @contextmanager
    def _told(self, given: _Given) -> Iterator[None]:
        """What fails ends the whole checkpoint."""

        def missing() -> int:
            return given.size_bytes - (free_bytes(self._partial) or 0)

        try:
            with told(self._partial, "taking a file of the tier into a checkpoint", missing):
                yield
        except CheckpointError:
            discard(self._partial)
            raise


def _hashed(digests: Digests, pieces: Iterable[Tensor]) -> StoredEntry:
    for piece in pieces:
        data = piece.detach().cpu().numpy().data.cast("B")
        while len(data):
            block = digests.upto_block(data)
            digests.hash(block)
            data = data[len(block) :]
    return digests.stored()
