"""Two ends of a connection prove to each other that they hold the same secret, before anything
else is read.

    server -> client   magic and version (8), nonce (32)
    client -> server   length u16, words (at most 16 KiB), nonce (32), MAC (32)
    server -> client   length u16, words, MAC (32)

MAC = HMAC-SHA256(secret, side | both nonces | words). The secret itself is never sent, both nonces
are drawn for this connection alone, so nothing recorded from another one is of use, and the server
reads the client's words only when their MAC is right. What follows is not protected by this: it
travels as the connection carries it. Each `Protocol` has a magic and versions of its own: ranks of
a run, and engines of the transport.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ratrain.errors import HandshakeFailed

SECRET_BYTES = 32
HEAD_BYTES = 8
NONCE_BYTES = 32
MAC_BYTES = 32
BANNER_BYTES = HEAD_BYTES + NONCE_BYTES
MAX_WORDS = 16384
MOST_CALLERS = 64
MOST_TOLD = 20
"""Reasons of refusals, told once each: strangers must not fill a log."""


class WordsTooLong(HandshakeFailed):
    """The other end announced a longer message than may be read; `size` bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(f"announced a message of {size} bytes")
        self.size = size


class OtherSpeaker(HandshakeFailed):
    """Something else answers there; its `magic`."""

    def __init__(self, magic: bytes, speaker: str) -> None:
        super().__init__(f"the process that answers there is not {speaker}")
        self.magic = magic


@dataclass(frozen=True)
class Protocol:
    """Who speaks, in 6 bytes and, as `speaker`, for people; and in which version."""

    magic: bytes
    version: int
    speaker: str

    @property
    def head(self) -> bytes:
        return self.magic + self.version.to_bytes(2, "big")

    def require(self, head: bytes) -> None:
        """Refuses a server of another protocol, or of another version of this one."""
        magic, theirs = head[:-2], int.from_bytes(head[-2:], "big")
        if magic != self.magic:
            raise OtherSpeaker(magic, self.speaker)
        if theirs != self.version:
            raise HandshakeFailed(
                f"protocol version {self.version} here, {theirs} there",
                fix="run the same version of ratrain on both sides",
            )

    def greet(self, sock: socket.socket, secret: bytes, message: bytes, deadline_s: float) -> bytes:
        """The client's half: sends `message`, returns the server's."""
        banner = read(sock, BANNER_BYTES, deadline_s)
        self.require(banner[:HEAD_BYTES])
        nonces = banner[HEAD_BYTES:] + secrets.token_bytes(NONCE_BYTES)
        mac = _mac(secret, b"client", nonces, message)
        length = len(message).to_bytes(2, "big")
        send(sock, length + message + nonces[NONCE_BYTES:] + mac, deadline_s)
        try:
            answer = _read_message(sock, deadline_s)
            mac = read(sock, MAC_BYTES, deadline_s)
        except ConnectionError as error:
            raise HandshakeFailed(
                "the peer refused our hello",
                fix="give both sides the same secret and version; under TLS, check what sits "
                "between them",
            ) from error
        if not hmac.compare_digest(mac, _mac(secret, b"server", nonces, answer)):
            raise HandshakeFailed(
                "the peer does not hold our secret", fix="give both the same secret"
            )
        return answer

    def welcome(
        self,
        sock: socket.socket,
        secret: bytes,
        answer: Callable[[bytes], bytes],
        deadline_s: float,
    ) -> bytes:
        """The server's half: returns the client's message. `answer` makes the server's own from it;
        a `HandshakeFailed` from it refuses the client."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        send(sock, self.head + nonce, deadline_s)
        message = _read_message(sock, deadline_s)
        tail = read(sock, NONCE_BYTES + MAC_BYTES, deadline_s)
        nonces = nonce + tail[:NONCE_BYTES]
        if not hmac.compare_digest(tail[NONCE_BYTES:], _mac(secret, b"client", nonces, message)):
            raise HandshakeFailed("a client without our secret was refused")
        answered = answer(message)
        mac = _mac(secret, b"server", nonces, answered)
        send(sock, len(answered).to_bytes(2, "big") + answered + mac, deadline_s)
        return message


class Callers:
    """Connections over which nothing is proved yet, at most a fixed number. One more cuts one off:
    of the address with most callers, the one that came first. An honest caller needs milliseconds,
    so those who connect and send nothing keep no one out. The user's lock must be held for each
    call."""

    def __init__(self, most: int = MOST_CALLERS) -> None:
        self._most = most
        self._addresses: dict[socket.socket, str] = {}  # in the order in which they came
        self._told: set[str] = set()

    def __len__(self) -> int:
        return len(self._addresses)

    def add(self, caller: socket.socket, address: str) -> None:
        """One more."""
        if len(self) >= self._most:
            ((busiest, _),) = Counter(self._addresses.values()).most_common(1)
            first = next(sock for sock, its in self._addresses.items() if its == busiest)
            self.remove(first)
            _hang_up(first)
        self._addresses[caller] = address

    def remove(self, caller: socket.socket) -> None:
        """It is heard no longer, or has proved what it must."""
        self._addresses.pop(caller, None)

    def is_news(self, reason: str) -> bool:
        """Whether a refusal is to be told: for a reason that was not, while they are few."""
        news = reason not in self._told and len(self._told) < MOST_TOLD
        self._told |= {reason} if news else set()
        return news

    def hang_up(self) -> None:
        """Cuts all of them off."""
        for caller in self._addresses:
            _hang_up(caller)


def derived(secret: bytes, purpose: bytes) -> bytes:
    """A secret for one purpose, of no use for any other."""
    return hmac.digest(secret, purpose, "sha256")


def read(sock: socket.socket, size: int, deadline_s: float) -> bytes:
    """Exactly that many bytes."""
    data = b""
    while len(data) < size:
        _limit(sock, deadline_s)
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise ConnectionResetError("closed during the handshake")
        data += chunk
    return data


def send(sock: socket.socket, data: bytes, deadline_s: float) -> None:
    """All of the bytes."""
    _limit(sock, deadline_s)
    sock.sendall(data)


def _read_message(sock: socket.socket, deadline_s: float) -> bytes:
    size = int.from_bytes(read(sock, 2, deadline_s), "big")
    if size > MAX_WORDS:
        raise WordsTooLong(size)
    return read(sock, size, deadline_s)


def _mac(secret: bytes, side: bytes, nonces: bytes, message: bytes) -> bytes:
    return hmac.digest(secret, side + nonces + message, "sha256")


def _limit(sock: socket.socket, deadline_s: float) -> None:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the handshake took too long")
    sock.settimeout(left_s)


def _hang_up(caller: socket.socket) -> None:
    """Wakes the thread that listens to it, too."""
    with suppress(OSError):
        caller.shutdown(socket.SHUT_RDWR)
