"""Killed while a checkpoint takes a state's file from the disk tier, a run keeps its last whole
one, and what the next run writes in the tier changes none of them."""

from __future__ import annotations

import os
import signal
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from ratrain.checkpoint.digests import Digests
from ratrain.checkpoint.entries import Entry
from ratrain.checkpoint.folder import begin, commit, leftovers, rank_path
from ratrain.checkpoint.listing import listed, prune
from ratrain.checkpoint.manifest import Meta, RankRecord
from ratrain.checkpoint.reader import open_checkpoint
from ratrain.checkpoint.tensor_file import header_ahead
from ratrain.storage import Key, TierStore, page_buffer

KEY = Key("optimizer", "e")
ELEMENTS = 3000
CHANGES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.chmod")
KEEP = 2


def state_of(step: int) -> np.ndarray:
    return np.random.default_rng(step).standard_normal(ELEMENTS, dtype=np.float32)


def save(run: Path, store: TierStore, step: int) -> None:
    """A step's state goes to the tier, and its file into a checkpoint."""
    buffer, state = page_buffer(ELEMENTS * 4), state_of(step)
    buffer[: state.nbytes] = state.tobytes()
    store.write(KEY, buffer)
    partial = begin(run, step)
    entry, (at, size_bytes) = Entry("e", "weights", 0, ELEMENTS, ELEMENTS), store.place(KEY)
    header = header_ahead([(entry, at)], at, size_bytes)
    assert header is not None
    digests = Digests(entry, at)
    digests.hash(state.data.cast("B"))
    path = rank_path(partial, 0, KEY.name)
    store.give(KEY, header, path)
    stored, digest = digests.stored(), sha256(header).hexdigest()
    record = RankRecord(path.name, size_bytes, len(header), digest, (stored,))
    commit(partial, [record], Meta(step, "a model", "0" * 64, {"e": ELEMENTS}, {}))
    prune(run, KEEP)


def trained(run: Path, first: int, count: int) -> None:
    store = TierStore(run / "tier", "run", 0)
    store.reserve({KEY: ELEMENTS * 4}, 1000)
    for step in range(first, first + count):
        save(run, store, step)
    store.close()


def killed_before(call: int, run: Path, first: int) -> bool:
    """Forks a child that saves three steps and dies before its `call`-th change; did it die?"""
    child = os.fork()
    if child == 0:
        left = call

        def count(event: str, _: tuple[object, ...]) -> None:
            nonlocal left
            if event in CHANGES:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        trained(run, first, 3)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def steps_that_hold(run: Path) -> list[int]:
    """The steps under final names, each proved whole and right, and read as any checkpoint."""
    steps: list[int] = []
    for each in listed(run):
        assert each.manifest is not None, each.problem
        checkpoint = open_checkpoint(each.path)
        held = checkpoint.read_range("e", "weights", 0, ELEMENTS)
        assert held.tobytes() == state_of(each.step).tobytes()
        steps.append(each.step)
    return steps


@pytest.mark.slow
def test_killed_before_any_change_of_the_file_system_the_last_whole_one_is_read(
    tmp_path: Path,
) -> None:
    call, died = 0, True
    while died:
        call += 1
        run = tmp_path / str(call)
        trained(run, 1, 1)
        died = killed_before(call, run, 2)
        steps = steps_that_hold(run)
        assert steps[-1] == 4 or died
        assert len(steps) >= 1
        trained(run, 9, 1)  # takes over the tier, and writes there
        assert steps_that_hold(run) == [steps[-1], 9]
        assert leftovers(run / "checkpoints") == ()
        assert not list((run / "tier").iterdir())
    assert call > 40
