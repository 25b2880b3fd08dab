"""Ranks of one attempt find each other, and nobody else: whoever comes, and whatever is said."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

import pytest
from crew import grid_routes

from ratrain import proof
from ratrain.errors import HandshakeFailed, RatrainError, RunFailed, SpecError
from ratrain.proof import derived
from ratrain.runtime.environment import Launch, launch_of
from ratrain.runtime.rank.joining import rendezvous
from ratrain.runtime.rank.joining.connections import connect_all
from ratrain.runtime.rank.joining.handshake import RANKS, Gate
from ratrain.runtime.rank.joining.near_sockets import listen_near
from ratrain.runtime.rank.joining.rendezvous import Joined, join
from ratrain.runtime.seats import Seats
from ratrain.runtime.step.network.links import Links, all_needs

SECRET = bytes(range(32))


@dataclass
class Place:
    """Where ranks meet: each attempt of them at the same address."""

    listener: socket.socket
    world_size: int = 3
    start: str = ""

    @property
    def address(self) -> tuple[str, int]:
        return self.listener.getsockname()[:2]

    def launch(self, rank: int) -> Launch:
        handle = os.dup(self.listener.fileno()) if rank == 0 else None
        return Launch(rank, self.world_size, *self.address, handle, start=self.start)

    def join(
        self,
        ranks: list[int],
        patience_s: float = 20,
        before: Callable[[int], None] = lambda _: None,
    ) -> dict[int, Joined | RatrainError]:
        """What each rank has after they met, or its error."""
        results: dict[int, Joined | RatrainError] = {}

        def come(rank: int) -> None:
            before(rank)
            try:
                results[rank] = join(self.launch(rank), Gate(SECRET), patience_s)
            except RatrainError as error:
                results[rank] = error

        threads = [threading.Thread(target=come, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


@pytest.fixture
def place() -> Generator[Place]:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        yield Place(listener)


def assert_met(results: dict[int, Joined | RatrainError], world_size: int = 3) -> bytes:
    """The key that all of them have."""
    met = [member for member in results.values() if isinstance(member, Joined)]
    assert len(met) == world_size, results
    assert (
        len({member.gate.key for member in met}) == 1 and len({member.book for member in met}) == 1
    )
    words: dict[int, list[str]] = {}

    def speak(member: Joined) -> None:
        words[member.rank] = member.everybody(f"I am {member.rank}")

    threads = [threading.Thread(target=speak, args=(member,)) for member in met]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(heard == [f"I am {rank}" for rank in range(world_size)] for heard in words.values())
    for member in met:
        member.listener.close()
        member.broadcast.close()
    return met[0].gate.key


@pytest.mark.parametrize("late_rank", [0, 1, 2])
def test_the_ranks_of_an_attempt_meet_and_every_attempt_has_a_key_of_its_own(
    late_rank: int, place: Place
) -> None:
    def late(rank: int) -> None:
        time.sleep(0.1 * (rank == late_rank))

    keys = {assert_met(place.join([0, 1, 2], before=late)) for _attempt in range(3)}
    assert len(keys) == 3


@pytest.mark.parametrize("squatted", [False, True])
def test_ranks_of_one_machine_connect_without_the_network_unless_their_names_are_taken(
    squatted: bool, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    squatters: list[socket.socket] = []

    def taken(address: tuple[str, int]) -> socket.socket | None:
        if squatted:
            squatters.append(listen_near(address))  # type: ignore[arg-type]
            return None
        return listen_near(address)

    monkeypatch.setattr(rendezvous, "listen_near", taken)
    place.world_size = 2
    met = place.join([0, 1])
    links: dict[int, Links] = {}

    def connect(rank: int) -> None:
        member = met[rank]
        assert isinstance(member, Joined)
        links[rank] = connect_all(member, [(1 - rank, "data"), (1 - rank, "words")], 20.0)

    threads = [threading.Thread(target=connect, args=(rank,)) for rank in met]
    for thread in threads:
        thread.start()
    for squatter in squatters:  # only the higher rank calls
        squatter.settimeout(1)
        with suppress(TimeoutError):
            squatter.accept()[0].sendall(b"not a rank" * 100)
        squatter.close()
    for thread in threads:
        thread.join()
    for rank, of_rank in links.items():
        for link in of_rank.values():
            assert (link.near is None) == squatted
            assert link.near is None or (link.near.reads and link.near.is_read)
            link.send(b"hello" if rank else b"hi")
    assert links[0][1, "data"].receive_bytes(9) == b"hello"
    for one in [link for of_rank in links.values() for link in of_rank.values()]:
        one.close()


@pytest.mark.slow
def test_an_attempt_that_was_cut_short_disturbs_none_after_it(place: Place) -> None:
    for ranks in ([0, 1], [1, 2], [0]):
        assert all(isinstance(result, RunFailed) for result in place.join(ranks, 0.4).values())
    assert_met(place.join([0, 1, 2]))


def test_a_rank_of_an_earlier_start_does_not_take_the_place_of_a_new_one(
    place: Place, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As where a host was cut off, and its launcher's ranks meet at the same address again."""
    place.start = "second"
    left_over = replace(place.launch(1), start="first")
    monkeypatch.setattr(rendezvous, "REACH_S", 1.0)

    def late(rank: int) -> None:
        time.sleep(0.6 * (rank == 1))

    met: dict[int, Joined | RatrainError] = {}
    came = threading.Thread(target=lambda: met.update(place.join([0, 1, 2], before=late)))
    came.start()
    with pytest.raises(RunFailed):
        join(left_over, Gate(SECRET), 5)
    came.join()
    assert_met(met)
    assert "a connection from 127.0.0.1 was refused: rank 1 of another" in capfd.readouterr().out


def test_new_ranks_do_not_come_to_a_rank_0_of_an_earlier_start(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "REACH_S", 0.6)
    place.world_size = 2
    new = replace(place.launch(1), start="second")
    results: dict[int, Joined | RatrainError] = {}
    old = threading.Thread(target=lambda: results.update(place.join([0], 1.2)))
    old.start()
    with pytest.raises(RunFailed, match="the peer refused our hello"):
        join(new, Gate(SECRET), 5)
    old.join()
    assert isinstance(results[0], RunFailed)


def test_rank_0_of_a_launcher_waits_for_a_port_that_an_earlier_start_has() -> None:
    before = socket.create_server(("127.0.0.1", 0))
    address, port = before.getsockname()
    launches = [Launch(rank, 2, address, port, ranks_here=2, start="second") for rank in (0, 1)]
    met: dict[int, Joined | RatrainError] = {}

    def come(launch: Launch) -> None:
        met[launch.rank] = join(launch, Gate(SECRET), 20)

    threads = [threading.Thread(target=come, args=(launch,)) for launch in launches]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    before.close()
    for thread in threads:
        thread.join()
    assert_met(met, 2)


@pytest.mark.slow
def test_rank_0_names_those_that_did_not_come(place: Place) -> None:
    results = place.join([0, 2], 0.5)
    assert "rank 0: waited 0.5 s for rank 1" in str(results[0])
    assert "rank 2: waited 0.5 s for all 3 ranks" in str(results[2])


def test_a_rank_0_that_is_not_there_is_named_after_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rendezvous, "REACH_S", 0.6)
    message = (
        r"rank 1: rank 0 was not reached at 127.0.0.1, port 1: Connection refused, for 0.6 s\n"
    )
    with pytest.raises(RunFailed, match=message):
        join(Launch(1, 2, "127.0.0.1", 1), Gate(SECRET), 3600)


def test_something_else_that_answers_is_not_taken_for_rank_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer_wrongly() -> None:
        with suppress(OSError):
            while True:
                with stranger.accept()[0] as caller, suppress(OSError):
                    caller.sendall(b"HTTP/1.1 400 Bad Request\r\n" + b" " * 40)

    monkeypatch.setattr(rendezvous, "REACH_S", 0.6)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        threading.Thread(target=answer_wrongly, daemon=True).start()
        port = stranger.getsockname()[1]
        with pytest.raises(
            RunFailed, match=f"port {port}: the process that answers there is not a rank of a run"
        ):
            join(Launch(1, 2, "127.0.0.1", port), Gate(SECRET), 3600)


# ---- strangers ------------------------------------------------------------------------------


KEY = derived(SECRET, b"ratrain rendezvous")


def greet(sock: socket.socket, key: bytes, **words: object) -> bytes:
    return RANKS.greet(sock, key, json.dumps(words).encode(), time.monotonic() + 5)


def wrong_secret(sock: socket.socket) -> None:
    with pytest.raises(HandshakeFailed):
        greet(sock, derived(bytes(32), b"ratrain rendezvous"), rank=1, world_size=3, port=9)


def garbage(sock: socket.socket) -> None:
    sock.sendall(b"\x80\x04\x95" + os.urandom(500))


def endless_words(sock: socket.socket) -> None:
    sock.sendall(b"\xff\xff" + bytes(70_000))


def another_run(sock: socket.socket) -> None:
    with pytest.raises(HandshakeFailed):
        greet(sock, KEY, rank=1, world_size=4, port=9)


def no_rank(sock: socket.socket) -> None:
    for rank in (0, 3, -1, "1", None):
        with socket.create_connection(sock.getpeername()) as again, pytest.raises(HandshakeFailed):
            greet(again, KEY, rank=rank, world_size=3, port=9)


def speaks_too_early(sock: socket.socket) -> None:
    """Holds the secret, comes as rank 1, and then sends a frame of 2^63 bytes."""
    greet(sock, KEY, rank=1, world_size=3, port=9)
    sock.sendall(b"RAT\0" + bytes([127] + [255] * 7) + b"x" * 1000)


def crosses_the_rendezvous(sock: socket.socket) -> None:
    """Holds the secret and is the last to come: it has all that rank 0 waits for, but no answer."""
    time.sleep(0.3)
    speaks_too_early(sock)


def goes_again(sock: socket.socket) -> None:
    greet(sock, KEY, rank=2, world_size=3, port=9)


STRANGERS = [
    wrong_secret,
    garbage,
    endless_words,
    another_run,
    no_rank,
    speaks_too_early,
    crosses_the_rendezvous,
    goes_again,
]


@pytest.mark.parametrize("stranger", STRANGERS)
def test_ranks_meet_whatever_a_stranger_says_before_them(
    stranger: Callable[[socket.socket], None], place: Place
) -> None:
    def before(rank: int) -> None:
        if rank == 1 or (rank and stranger is not crosses_the_rendezvous):
            disturbed.wait(10)

    def disturb() -> None:
        try:
            with socket.create_connection(place.address) as sock:
                stranger(sock)
        finally:
            disturbed.set()

    disturbed = threading.Event()
    thread = threading.Thread(target=disturb)
    thread.start()
    assert_met(place.join([0, 1, 2], before=before))
    thread.join()


def test_callers_who_say_nothing_keep_no_rank_waiting(place: Place) -> None:
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(place.address))
        began_s = time.monotonic()
        assert_met(place.join([0, 1, 2]))
        assert time.monotonic() - began_s < 4


@contextmanager
def recorded(server: tuple[str, int]) -> Generator[tuple[tuple[str, int], list[bytes]]]:
    """An address that passes everything on to the server, and what its callers said."""
    received: list[bytes] = []
    relay = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket, keep: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if keep:
                    received.append(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                caller = relay.accept()[0]
                onward = socket.create_connection(server)
                for ends in ((caller, onward, True), (onward, caller, False)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield relay.getsockname()[:2], received
    finally:
        relay.close()


def test_what_a_rank_said_once_opens_nothing_a_second_time(place: Place) -> None:
    place.world_size = 2
    with recorded(place.address) as (relay, recorded_bytes):
        results: list[Joined] = []
        through = replace(place.launch(1), address=relay[0], port=relay[1])
        other = threading.Thread(target=lambda: results.append(join(through, Gate(SECRET), 20)))
        other.start()
        results.append(join(place.launch(0), Gate(SECRET), 20))
        other.join()
    assert len(results) == 2 and recorded_bytes
    for result in results:
        result.listener.close()
        result.broadcast.close()

    def replay() -> None:
        with socket.create_connection(place.address, timeout=5) as sock:
            proof.read(sock, proof.BANNER_BYTES, time.monotonic() + 5)
            sock.sendall(b"".join(recorded_bytes))
            with suppress(ConnectionResetError):
                answers.append(sock.recv(1))
            ended.set()

    answers: list[bytes] = []
    ended = threading.Event()
    replaying = threading.Thread(target=replay)
    replaying.start()
    outcome = place.join([0], patience_s=0.8)
    replaying.join()
    assert ended.is_set() and not any(answers), "the replay was let in"
    assert "waited 0.8 s for rank 1" in str(outcome[0])


def test_a_refused_stranger_stands_in_the_log_once_and_nothing_secret_does(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    def before(rank: int) -> None:
        if rank == 1:
            for _ in range(30):
                with socket.create_connection(place.address) as sock:
                    wrong_secret(sock)

    assert_met(place.join([0, 1, 2], before=before))
    shown = capsys.readouterr().out
    assert shown.count("a client without our secret was refused") == 1
    assert "127.0.0.1" in shown and SECRET.hex() not in shown


# ---- the connections between all of them ----------------------------------------------------


@pytest.mark.parametrize(("pipeline", "data", "tensor"), [(2, 2, 1), (3, 1, 1), (1, 2, 2)])
def test_every_pair_of_ranks_gets_the_connections_it_needs_and_then_nobody_listens(
    pipeline: int, data: int, tensor: int, place: Place
) -> None:
    seats = Seats(pipeline, data, (0,) * data, (0,), tensor)
    place.world_size = seats.world_size
    met = place.join(list(range(seats.world_size)))
    heard: dict[int, dict[tuple[int, str], str]] = {}

    def link(member: Joined) -> None:
        needs = all_needs(seats, seats.seat(member.rank), grid_routes(seats, tied=True))
        assert len(needs) == len(set(needs))
        links = connect_all(member, needs, 20)
        for (peer, channel), connection in links.items():
            connection.send(f"{member.rank}>{peer} {channel}".encode())
        heard[member.rank] = {
            need: connection.receive_bytes(100).decode() for need, connection in links.items()
        }
        member.broadcast.close()

    met_all = [member for member in met.values() if isinstance(member, Joined)]
    threads = [threading.Thread(target=link, args=(member,)) for member in met_all]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(heard) == seats.world_size
    for rank, words in heard.items():
        for (peer, channel), text in words.items():
            assert text == f"{peer}>{rank} {channel}"
            assert (rank, channel) in heard[peer]
    for address in met_all[0].book:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=2)


def test_a_crowd_at_a_rank_s_listener_delays_its_connections_and_stops_none(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof.Callers.__init__, "__defaults__", (4,))
    seats = Seats(2, 1, (0,), (0,))
    place.world_size = 2
    place.world_size = 2
    met = place.join([0, 1])
    ended = threading.Event()

    first = met[0]
    assert isinstance(first, Joined)
    address = first.book[0]

    def crowd() -> None:
        with suppress(OSError):
            while not ended.is_set():
                with socket.create_connection(address, timeout=1) as sock:
                    sock.sendall(os.urandom(100))
                    time.sleep(0.003)

    threads = [threading.Thread(target=crowd, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    links: list[object] = []

    def link(member: object) -> None:
        assert isinstance(member, Joined)
        needs = all_needs(seats, seats.seat(member.rank), grid_routes(seats, tied=True))
        links.append(connect_all(member, needs, 20))

    linking = [threading.Thread(target=link, args=(member,)) for member in met.values()]
    for thread in linking:
        thread.start()
    for thread in linking:
        thread.join()
    ended.set()
    assert len(links) == 2


# ---- what a launcher tells ------------------------------------------------------------------

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_ranks_meet_beside_torchrun_s_own_store_and_where_the_user_says() -> None:
    assert launch_of(TORCHRUN).rendezvous_address == "10.0.0.1, port 29501"
    alone = {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False"}
    assert launch_of(alone).rendezvous_address == "10.0.0.1, port 29500"
    assert launch_of({**TORCHRUN, "RATRAIN_PORT": "7000"}).port == 7000


def test_ranks_of_one_host_meet_on_its_loopback_whatever_torchrun_says() -> None:
    assert launch_of({**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}).address == "127.0.0.1"
    assert launch_of(TORCHRUN).address == "10.0.0.1"


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
@pytest.mark.parametrize("value", [None, "", "x", "-1", "9" * 5000, "²"])
def test_what_a_launcher_does_not_tell_is_named(name: str, value: str | None) -> None:
    environ = {k: v for k, v in {**TORCHRUN, name: value}.items() if v is not None}
    if name == "MASTER_ADDR" and value:
        assert launch_of(environ).address == value
        return
    with pytest.raises(SpecError, match=name):
        launch_of(environ)


def test_an_address_that_other_machines_do_not_reach_is_refused() -> None:
    launch = replace(launch_of({**TORCHRUN, "RANK": "0"}), address="localhost", port=0)
    with pytest.raises(
        SpecError, match=r"MASTER_ADDR: localhost \((127|::1)(.|\n)*loopback(.|\n)*RATRAIN_ADDRESS"
    ):
        join(launch, Gate(SECRET), 1)
