"""Ranks of one attempt find each other in a store that earlier attempts have used."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import pytest
from torch.distributed import HashStore, Store  # type: ignore[attr-defined]

from ratrain.errors import RunFailed
from ratrain.runtime.rank import meeting
from ratrain.runtime.rank.meeting import attempt_store, join


def met(store: Store, ranks: list[int], late_rank: int, timeout_s: float = 20) -> list[object]:
    """What each rank gets from the store: the value it finds that all of its attempt share."""
    found: dict[int, object] = {}

    def come(rank: int) -> None:
        time.sleep(0.1 * (rank == late_rank))
        try:
            own = attempt_store(store, rank, 3, timeout_s)
            own.set(f"value-{rank}", "x")
            found[rank] = [own.add("count", 1), own.check(["value-0"])]
        except RunFailed as error:
            found[rank] = error

    threads = [threading.Thread(target=come, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in ranks]


@pytest.mark.parametrize("late_rank", [0, 1, 2])
def test_every_attempt_has_a_part_of_the_store_of_its_own(late_rank: int) -> None:
    store = HashStore()
    for _attempt in range(4):
        counts = sorted(one[0] for one in met(store, [0, 1, 2], late_rank))  # type: ignore[index]
        assert counts == [1, 2, 3]


def test_an_attempt_that_was_cut_short_disturbs_none_after_it() -> None:
    store = HashStore()
    for ranks in ([0, 1], [1, 2], [0]):
        assert all(isinstance(one, RunFailed) for one in met(store, ranks, -1, timeout_s=0.3))
    counts = sorted(one[0] for one in met(store, [0, 1, 2], 0))  # type: ignore[index]
    assert counts == [1, 2, 3]


def test_a_rank_that_nobody_joins_says_so() -> None:
    with pytest.raises(RunFailed, match=r"rank 1: waited 0.2 s for all 3 ranks to come"):
        attempt_store(HashStore(), 1, 3, 0.2)


def test_a_launcher_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(RunFailed, match=r"rank 1: .*was not reached at MASTER_ADDR 127.0.0.1, MAS"):
        join("gloo", 0.2)


def test_a_job_that_waits_long_for_peers_looks_for_its_launcher_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setattr(meeting, "REACH_S", 0.6)
    with pytest.raises(RunFailed, match=r"MASTER_PORT 1: Connection refused, for 0.6 s\n"):
        join("gloo", 3600)


def test_something_else_that_answers_is_not_taken_for_the_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        threading.Thread(target=answer_wrongly, args=(stranger,), daemon=True).start()
        port = str(stranger.getsockname()[1])
        for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("MASTER_PORT", port)
        monkeypatch.setattr(meeting, "REACH_S", 1.0)
        with pytest.raises(RunFailed, match=f"rank 1: .*not reached at .* MASTER_PORT {port}: "):
            join("gloo", 3600)


def answer_wrongly(server: socket.socket) -> None:
    """Takes every connection and says what no store says, until the server is closed."""
    with suppress(OSError):
        while True:
            with server.accept()[0] as caller, suppress(OSError):
                caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
