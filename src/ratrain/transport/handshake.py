"""Before anything else: both sides prove that they hold the job's secret.

    server -> client   magic and version (8), nonce (32)
    client -> server   length u16, hello (JSON, at most 16 KiB), nonce (32), MAC (32)
    server -> client   length u16, hello, MAC (32)

MAC = HMAC-SHA256(secret, side | both nonces | hello). The server reads the client's hello only
after its MAC is right, so a stranger reaches neither the JSON parser nor the frames.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import time
from dataclasses import dataclass
from typing import Any, cast

from ratrain.errors import HandshakeFailed, SpecError
from ratrain.transport.address import PROTOCOL_VERSION, Address

MAGIC = b"RATNET"
TLS_MAGIC = b"RATTLS"
BANNER_BYTES = 40
NO_TLS = TLS_MAGIC + PROTOCOL_VERSION.to_bytes(2, "big") + bytes(32)  # before TLS: tls.py
WANTS_TLS = b"\xff\xff"  # in place of a hello's length
_MAX_HELLO = 16384
_SAME_TLS = "give every engine of the job the same kind of Config.tls"


@dataclass(frozen=True, slots=True)
class Hello:
    """What each side says of itself. `probe` is (pid, address, nonce): memory to try to read."""

    address: Address
    nic: str
    probe: tuple[int, int, str] | None = None


def greet(sock: socket.socket, secret: bytes, mine: Hello, deadline_s: float) -> Hello:
    """The client's half: the server's hello."""
    banner = _read(sock, BANNER_BYTES, deadline_s)
    if banner[:6] == TLS_MAGIC:
        _send(sock, MAGIC, deadline_s)  # no record of TLS: tells the peer why
        raise HandshakeFailed("the peer demands TLS, none here", fix=_SAME_TLS)
    if banner[:6] != MAGIC:
        raise HandshakeFailed("the other end is no ratrain transport")
    theirs = int.from_bytes(banner[6:8], "big")
    if theirs != PROTOCOL_VERSION:
        raise HandshakeFailed(
            f"protocol version {PROTOCOL_VERSION} here, {theirs} there",
            fix="run the same ratrain version on both sides",
        )
    nonces = banner[8:] + secrets.token_bytes(32)
    body = _encode(mine)
    mac = _mac(secret, b"client", nonces, body)
    _send(sock, len(body).to_bytes(2, "big") + body + nonces[32:] + mac, deadline_s)
    try:
        body = _read_hello(sock, deadline_s)
        mac = _read(sock, 32, deadline_s)
    except ConnectionError as error:
        raise HandshakeFailed(
            "the peer refused our hello",
            fix="give both sides the same secret and version; under TLS, see who sits between",
        ) from error
    if not hmac.compare_digest(mac, _mac(secret, b"server", nonces, body)):
        raise HandshakeFailed("the peer does not hold our secret", fix="give both the same secret")
    return _decode(body)


def welcome(sock: socket.socket, secret: bytes, mine: Hello, deadline_s: float) -> Hello:
    """The server's half: the client's hello."""
    nonce = secrets.token_bytes(32)
    _send(sock, MAGIC + PROTOCOL_VERSION.to_bytes(2, "big") + nonce, deadline_s)
    body = _read_hello(sock, deadline_s)
    tail = _read(sock, 64, deadline_s)
    nonces = nonce + tail[:32]
    if not hmac.compare_digest(tail[32:], _mac(secret, b"client", nonces, body)):
        raise HandshakeFailed("a client without our secret was refused")
    theirs = _decode(body)
    body = _encode(mine)
    mac = _mac(secret, b"server", nonces, body)
    _send(sock, len(body).to_bytes(2, "big") + body + mac, deadline_s)
    return theirs


def _mac(secret: bytes, side: bytes, nonces: bytes, body: bytes) -> bytes:
    return hmac.digest(secret, side + nonces + body, "sha256")


def _encode(hello: Hello) -> bytes:
    body = {"address": hello.address.to_json(), "nic": hello.nic, "probe": hello.probe}
    return json.dumps(body).encode()


def _decode(data: bytes) -> Hello:
    try:
        body = cast("dict[str, Any]", json.loads(data))
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


def _read_hello(sock: socket.socket, deadline_s: float) -> bytes:
    size = int.from_bytes(_read(sock, 2, deadline_s), "big")
    if size == 0xFFFF:
        raise HandshakeFailed("the peer demands TLS, none here", fix=_SAME_TLS)
    if size > _MAX_HELLO:
        raise HandshakeFailed(f"a hello of {size} bytes")
    return _read(sock, size, deadline_s)


def _read(sock: socket.socket, size: int, deadline_s: float) -> bytes:
    data = b""
    while len(data) < size:
        _limit(sock, deadline_s)
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionResetError("closed during the handshake")
        data += more
    return data


def _send(sock: socket.socket, data: bytes, deadline_s: float) -> None:
    _limit(sock, deadline_s)
    sock.sendall(data)


def _limit(sock: socket.socket, deadline_s: float) -> None:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the handshake took too long")
    sock.settimeout(left_s)
