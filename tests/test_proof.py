"""The proof of a shared secret, and who is heard while many call."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratrain import proof
from ratrain.errors import HandshakeFailed

TESTS = proof.Protocol(b"RATTES", 1, "a test")
KEY, OTHER = bytes(32), bytes(31) + b"\x01"


def proved(
    server_key: bytes,
    client_key: bytes,
    words: bytes,
    answer: bytes,
    client_speaks: proof.Protocol = TESTS,
) -> list[object]:
    """What the server and the client have heard, or why not."""
    heard: list[object] = [None, None]

    def keep(place: int, work: Callable[[], object], sock: socket.socket) -> None:
        try:
            heard[place] = work()
        except (HandshakeFailed, OSError) as error:
            heard[place] = error
        finally:
            sock.close()

    near, far = socket.socketpair()
    end_s = time.monotonic() + 5

    def server() -> bytes:
        return TESTS.welcome(near, server_key, lambda _words: answer, end_s)

    def client() -> bytes:
        return client_speaks.greet(far, client_key, words, end_s)

    thread = threading.Thread(target=keep, args=(0, server, near))
    thread.start()
    keep(1, client, far)
    thread.join()
    return heard


@settings(max_examples=30, deadline=None)
@given(words=st.binary(max_size=200), answer=st.binary(max_size=200))
def test_both_ends_of_one_secret_hear_each_other_s_words(words: bytes, answer: bytes) -> None:
    assert proved(KEY, KEY, words, answer) == [words, answer]


def test_ends_of_two_secrets_hear_nothing() -> None:
    server, client = proved(KEY, OTHER, b"words", b"answer")
    assert isinstance(server, HandshakeFailed) and isinstance(client, HandshakeFailed)


@pytest.mark.parametrize(
    ("client", "reason"),
    [
        (proof.Protocol(b"RATTED", 1, "a ted"), "the process that answers there is not a ted"),
        (proof.Protocol(b"RATTES", 2, "a test"), "protocol version 2 here, 1 there"),
    ],
)
def test_a_server_of_another_protocol_or_version_hears_nothing(
    client: proof.Protocol, reason: str
) -> None:
    server, refused = proved(KEY, KEY, b"words", b"answer", client)
    assert isinstance(server, ConnectionError)
    assert isinstance(refused, HandshakeFailed) and refused.what == reason


def test_refusals_are_told_once_each_and_few() -> None:
    callers = proof.Callers()
    told = [callers.is_news(f"reason {number % 30}") for number in range(60)]
    assert told == [True] * proof.MOST_TOLD + [False] * (60 - proof.MOST_TOLD)


def test_words_beyond_the_limit_are_refused_before_they_are_read() -> None:
    longest = bytes(proof.MAX_WORDS)
    assert proved(KEY, KEY, longest, longest) == [longest, longest]
    server, _ = proved(KEY, KEY, longest + b"x", b"")
    assert isinstance(server, proof.WordsTooLong) and server.size == proof.MAX_WORDS + 1


@given(st.lists(st.sampled_from("aab"), min_size=1, max_size=40))
@settings(deadline=None)
def test_a_crowd_of_one_address_cuts_off_its_own_oldest_callers_alone(addresses: list[str]) -> None:
    callers, pairs = proof.Callers(8), [socket.socketpair() for _ in addresses]
    heard: list[tuple[str, socket.socket]] = []
    for address, (near, _) in zip(addresses, pairs, strict=True):
        if len(heard) == 8:
            names = [each for each, _ in heard]
            most = max(names.count(each) for each in names)
            victims = [i for i, each in enumerate(names) if names.count(each) == most]
            gone = heard.pop(victims[0])
            victim = gone[1]
        else:
            victim = None
        heard.append((address, near))
        callers.add(near, address)
        if victim is not None:
            with pytest.raises(OSError):
                victim.send(b"x")
    assert len(callers) == len(heard) <= 8
    for _, near in heard:
        near.send(b"x")
    for near, far in pairs:
        near.close()
        far.close()
