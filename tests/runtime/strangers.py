"""Attacks on listening ports: by strangers, and by one who stole the secret.

    python strangers.py CRIME SECRET ADDRESS PORT...     prints a line for each port

Everything that can be sent carries a pickle that would make the file CRIME: nothing may run it.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ratrain import proof
from ratrain.errors import TransportError
from ratrain.proof import derived
from ratrain.runtime.rank.joining.handshake import RANKS

Port = tuple[int, str, int]
"""Process, address, port."""
HALF_OPEN = 150
ANSWER_S = 0.7


# ---- who listens ----------------------------------------------------------------------------


def listening(pids: list[int]) -> list[Port]:
    """The TCP ports at which these processes listen, each as its own network namespace has it."""
    ports: list[Port] = []
    for pid in pids:
        own_words: set[str] = set()
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                own_words.add(str(handle.readlink()))
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in own_words:
                    ports.append((pid, *_address(fields[1])))
    return ports


def _address(field: str) -> tuple[str, int]:
    host, port = field.split(":")
    raw = bytes.fromhex(host)
    words = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, words), int(port, 16)


# ---- attacks --------------------------------------------------------------------------------


class Crime:
    """Unpickled, it makes a file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return os.mkdir, (self._path,)


def attacks(bomb: bytes, secret: bytes) -> dict[str, Callable[[socket.socket], None]]:
    """What is done over one connection each."""
    rendezvous = derived(secret, b"ratrain rendezvous")

    def says(data: bytes) -> Callable[[socket.socket], None]:
        return lambda sock: sock.sendall(data)

    def proves(key: bytes, words: bytes, then: bytes = b"") -> Callable[[socket.socket], None]:
        def attack(sock: socket.socket) -> None:
            with suppress(TransportError):
                RANKS.greet(sock, key, words, time.monotonic() + ANSWER_S)
                sock.sendall(then)
                sock.settimeout(0.5)
                sock.recv(1)

        return attack

    def replays(sock: socket.socket) -> None:
        """What was said in one session, said again in another, to another nonce."""
        recorder = _Recorder(sock)
        with suppress(TransportError):
            RANKS.greet(recorder, rendezvous, honest, time.monotonic() + ANSWER_S)  # type: ignore[arg-type]
        with socket.create_connection(sock.getpeername()[:2], timeout=3) as again:
            proof.read(again, proof.BANNER_BYTES, time.monotonic() + ANSWER_S)
            again.sendall(b"".join(recorder.said))
            assert not again.recv(1), "a replay was let in"

    honest = json.dumps({"rank": 1, "world_size": 4, "port": 9}).encode()
    deep = b"[" * 16000
    huge = b"RAT\0" + struct.pack("!Q", 1 << 62)
    torch_set = b"\x01" + struct.pack("<Q", 5) + b"/init" + struct.pack("<Q", len(bomb)) + bomb
    return {
        "garbage": says(os.urandom(3000)),
        "a pickle": says(bomb),
        "a pickle for torch's store": says(b"\x00" + struct.pack("<I", 0x3C85F7CE) + torch_set),
        "HTTP": says(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        "endless words": says(b"\xff\xff" + bytes(100_000)),
        "a pickle as words": proves(bytes(32), bomb),
        "a wrong secret": proves(derived(bytes(32), b"ratrain rendezvous"), honest),
        "a replay": replays,
        "stolen secret, a pickle as words": proves(rendezvous, bomb),
        "stolen secret, deep words": proves(rendezvous, deep),
        "stolen secret, a huge frame": proves(rendezvous, honest, huge + bomb),
        "stolen secret, a pickle as frame": proves(
            rendezvous, honest, b"RAT\0" + struct.pack("!Q", len(bomb)) + bomb
        ),
    }


class _Recorder:
    """A socket that keeps what is said over it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.said: list[bytes] = []

    def sendall(self, data: bytes) -> None:
        self.said.append(data)
        self._sock.sendall(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def attack(address: str, port: int, bomb: bytes, secret: bytes) -> str:
    """All attacks, one after the other; "closed" where nobody answers, else "open"."""
    try:
        socket.create_connection((address, port), timeout=2).close()
    except OSError:
        return "closed"
    for do in attacks(bomb, secret).values():
        with socket.create_connection((address, port), timeout=3) as sock, suppress(OSError):
            do(sock)
    return "open"


@contextmanager
def half_open(addresses: list[tuple[str, int]]) -> Generator[None]:
    """Many connections to each, over which nothing is ever said."""
    socks: list[socket.socket] = []
    try:
        for address in addresses:
            with suppress(OSError):
                socks += [socket.create_connection(address, timeout=2) for _ in range(HALF_OPEN)]
        yield
    finally:
        for sock in socks:
            sock.close()


def main() -> None:
    crime, secret, address, *ports = sys.argv[1:]
    bomb = pickle.dumps(Crime(crime))
    for port in map(int, ports):
        print(port, attack(address, port, bomb, bytes.fromhex(secret)), flush=True)


if __name__ == "__main__":
    main()
