"""Before anything else: both sides prove that they hold the job's secret, and say hello.

The proof, and what is on the wire, is `ratrain/proof.py`'s; a hello (JSON) is its words. The server
reads the client's hello only after its MAC is right, so a stranger reaches neither the JSON parser
nor the frames.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from ratrain import proof
from ratrain.errors import HandshakeFailed, SpecError
from ratrain.readers.json import as_table, parse_json
from ratrain.transport.wire.address import PROTOCOL_VERSION, Address

ENGINES = proof.Protocol(b"RATNET", PROTOCOL_VERSION, "a ratrain transport")
UNDER_TLS = proof.Protocol(b"RATTLS", PROTOCOL_VERSION, "a ratrain transport")
NO_TLS = UNDER_TLS.head + bytes(proof.NONCE_BYTES)  # before TLS: tls.py
WANTS_TLS = b"\xff\xff"  # in place of a hello's length
_SAME_TLS = "give every engine of the job the same kind of Config.tls"


@dataclass(frozen=True, slots=True)
class Hello:
    """What each side says about itself. `probe` is (pid, address, nonce): memory to try to read."""

    address: Address
    nic: str
    probe: tuple[int, int, str] | None = None


def greet(sock: socket.socket, secret: bytes, mine: Hello, deadline_s: float) -> Hello:
    """The client's half: the server's hello."""
    try:
        with _lengths_told():
            return _decode(ENGINES.greet(sock, secret, _encode(mine), deadline_s))
    except proof.OtherSpeaker as other:
        if other.magic != UNDER_TLS.magic:
            raise
        proof.send(sock, ENGINES.magic, deadline_s)  # no record of TLS: tells the peer why
        raise HandshakeFailed("the peer demands TLS, none here", fix=_SAME_TLS) from other


def welcome(sock: socket.socket, secret: bytes, mine: Hello, deadline_s: float) -> Hello:
    """The server's half: the client's hello."""
    heard: list[Hello] = []

    def answer(words: bytes) -> bytes:
        heard.append(_decode(words))
        return _encode(mine)

    with _lengths_told():
        ENGINES.welcome(sock, secret, answer, deadline_s)
    return heard[0]


@contextmanager
def _lengths_told() -> Generator[None]:
    """A length that signals a demand for TLS is reported as such."""
    try:
        yield
    except proof.WordsTooLong as error:
        if error.size == int.from_bytes(WANTS_TLS, "big"):
            raise HandshakeFailed("the peer demands TLS, none here", fix=_SAME_TLS) from error
        raise HandshakeFailed(f"the peer's hello has {error.size} bytes: too many") from error


def _encode(hello: Hello) -> bytes:
    body = {"address": hello.address.to_json(), "nic": hello.nic, "probe": hello.probe}
    return json.dumps(body).encode()


def _decode(data: bytes) -> Hello:
    try:
        body, _ = as_table(*parse_json(data, "hello"))
        probe = body["probe"]
        if probe is not None:
            probe = (int(probe[0]), int(probe[1]), str(probe[2]))
        hello = Hello(Address.from_json(body["address"]), str(body["nic"]), probe)
    except (SpecError, KeyError, TypeError, ValueError, IndexError) as error:
        raise HandshakeFailed(f"the peer's hello is damaged: {error}") from error
    if hello.address.version != PROTOCOL_VERSION:
        raise HandshakeFailed(
            f"protocol version {PROTOCOL_VERSION} here, {hello.address.version} there"
        )
    return hello
