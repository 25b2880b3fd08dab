"""Ranks under TLS meet, say nothing in the clear, and let in nobody who has it not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import pytest
from authority import Authority
from test_rendezvous import SECRET, Place, assert_met, recorded

from ratrain.errors import HandshakeFailed, RatrainError, RunFailed, SpecError
from ratrain.proof import derived
from ratrain.runtime.encryption import guard_of
from ratrain.runtime.rank.joining.handshake import RANKS, Gate
from ratrain.runtime.rank.joining.rendezvous import Joined, join
from ratrain.runtime.step.network.sealed_socket import SealedSocket
from ratrain.transport.wire.tls import Guard

OURS = "secret"
"""What a job says."""


@pytest.fixture
def place() -> Generator[Place]:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        yield Place(listener, world_size=2)


def met(
    place: Place, guards: list[Guard | None], patience_s: float = 8
) -> dict[int, Joined | RatrainError]:
    """What ranks with these certificates have after they met, or their errors."""
    results: dict[int, Joined | RatrainError] = {}

    def come(rank: int) -> None:
        try:
            results[rank] = join(place.launch(rank), Gate(SECRET, guards[rank]), patience_s)
        except RatrainError as error:
            results[rank] = error

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(len(guards))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def signed(folder: Path, name: str = "authority", **kinds: object) -> str:
    """A folder of certificates of an authority."""
    folder.mkdir(parents=True)
    Authority(folder, name).sign("host", **kinds)  # type: ignore[arg-type]
    made = folder / f"{name}.pem"
    made.rename(folder / "authority.pem")
    return str(folder)


@pytest.mark.parametrize("is_signed", [False, True], ids=["by the secret", "with certificates"])
def test_ranks_under_tls_meet_and_nobody_on_the_way_hears_a_word(
    is_signed: bool, place: Place, tmp_path: Path
) -> None:
    asked = signed(tmp_path / "tls") if is_signed else OURS
    gates = [Gate(SECRET, guard_of(asked)) for _ in range(2)]
    with recorded(place.address) as (relay, heard):
        results: dict[int, Joined | RatrainError] = {}
        through = replace(place.launch(1), address=relay[0], port=relay[1])

        def call() -> None:
            results[1] = join(through, gates[1], 20)

        other = threading.Thread(target=call)
        other.start()
        results[0] = join(place.launch(0), gates[0], 20)
        other.join()
        assert_met(results, 2)
    said = b"".join(heard)
    assert len(said) > 400 and b"world_size" not in said and b"I am 1" not in said


@pytest.mark.slow
@pytest.mark.parametrize("with_tls", [0, 1])
def test_a_rank_without_tls_and_ranks_with_it_do_not_meet_and_say_so_in_seconds(
    with_tls: int, place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    guards = [guard_of(OURS) if rank == with_tls else None for rank in range(2)]
    began_s = time.monotonic()
    error = met(place, guards)[1]
    assert isinstance(error, RunFailed) and time.monotonic() - began_s < 10
    assert "TLS here, none at the peer" in error.what or "TLS there, none here" in error.what
    assert "[train] tls" in error.fix
    assert "refused: " in capfd.readouterr().out  # and rank 0's log


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["another authority", "expired", "none"])
def test_a_certificate_that_the_others_do_not_accept_is_named_in_seconds(
    kind: str, place: Place, tmp_path: Path
) -> None:
    ours, theirs = signed(tmp_path / "ours"), OURS
    if kind == "another authority":
        theirs = signed(tmp_path / "theirs", "other")
    if kind == "expired":
        with pytest.raises(SpecError, match=r"\[train\] tls: .*expired"):
            guard_of(signed(tmp_path / "old", days=-1))
        return
    began_s = time.monotonic()
    error = met(place, [guard_of(ours), guard_of(theirs)])[1]
    assert isinstance(error, RunFailed) and time.monotonic() - began_s < 10
    assert "is not met under TLS: " in error.what and "certificate" in error.what


@pytest.mark.parametrize("missing", ["host.crt", "host.key", "authority.pem"])
def test_a_file_that_is_not_there_is_named_with_the_key_that_asks_for_it(
    missing: str, tmp_path: Path
) -> None:
    folder = signed(tmp_path / "tls")
    (tmp_path / "tls" / missing).unlink()
    with pytest.raises(SpecError) as caught:
        guard_of(folder)
    assert caught.value.place == "[train] tls" and missing in caught.value.what


@pytest.mark.slow
def test_who_ends_tls_in_between_with_a_certificate_of_its_own_is_refused(place: Place) -> None:
    """It has no secret; what it passes on proves another channel than the one that is seen."""
    rank_0, rank_1, between = (guard_of(OURS) for _ in range(3))
    assert rank_0 and rank_1 and between
    key = derived(SECRET, b"ratrain rendezvous")
    outcomes: list[str] = []
    relay = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        near, _ = relay.accept()
        far = socket.create_connection(place.address)
        deadline_s = time.monotonic() + 5
        ends = [
            between.secure(sock, b"", server=server, deadline_s=deadline_s, speaks=RANKS)[0]
            for sock, server in ((far, False), (near, True))
        ]
        threading.Thread(target=_pump, args=ends, daemon=True).start()
        _pump(*reversed(ends))

    def listen() -> None:
        sock, _ = place.listener.accept()
        outcomes.append(_outcome(lambda: Gate(key, rank_0).welcome(sock, lambda _: b"", _soon())))

    for work in (serve, listen):
        threading.Thread(target=work, daemon=True).start()
    calls = socket.create_connection(relay.getsockname())
    outcomes.append(_outcome(lambda: Gate(key, rank_1).greet(calls, b"{}", _soon())))
    relay.close()
    assert not outcomes[-1].startswith("let in") and "let in" not in outcomes


def _outcome(meet: Callable[[], object]) -> str:
    try:
        meet()
    except (HandshakeFailed, OSError) as error:
        return str(error)
    return "let in"


def _soon() -> float:
    return time.monotonic() + 5


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except (OSError, HandshakeFailed):
        pass
    finally:
        for end in (source, sink):
            end.close()


def test_a_byte_that_is_changed_on_the_way_ends_the_connection_and_is_never_taken() -> None:
    from test_connection import tcp_pair

    (near, one), (other, far) = tcp_pair(), tcp_pair()
    gate, heard = Gate(bytes(32), guard_of(OURS)), list[socket.socket]()
    spoils = threading.Event()

    def change() -> None:
        while data := bytearray(one.recv(65536)):
            if spoils.is_set():
                data[-3] ^= 1
            other.sendall(data)

    def back() -> None:
        while data := other.recv(65536):
            one.sendall(data)

    def welcome() -> None:
        heard.append(gate.welcome(far, lambda _: b"", _soon())[0])

    for work in (change, back):
        threading.Thread(target=work, daemon=True).start()
    listens = threading.Thread(target=welcome)
    listens.start()
    calls = gate.greet(near, b"", _soon())
    listens.join()
    assert isinstance(calls, SealedSocket)
    calls.sendall(b"as it was")
    room = bytearray(9)
    heard[0].settimeout(5)
    assert heard[0].recv_into(room) == 9 and room == b"as it was"
    spoils.set()
    calls.sendall(b"something")
    with pytest.raises(OSError, match=r"(?i)bad[ _]record"):
        heard[0].recv_into(room)
    assert room == b"as it was"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_private_key_that_others_can_read_is_refused(mode: int, tmp_path: Path) -> None:
    folder = signed(tmp_path / "tls")
    key = tmp_path / "tls" / "host.key"
    key.chmod(mode)
    with pytest.raises(SpecError) as caught:
        guard_of(folder)
    assert caught.value.place == "[train] tls"
    assert f"mode {mode:o}" in caught.value.what
    assert caught.value.fix == f"chmod 600 {key}"
    key.chmod(0o400)
    assert guard_of(folder) is not None
