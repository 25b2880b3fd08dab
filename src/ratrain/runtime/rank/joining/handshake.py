"""How ranks let each other in: who proves the run's secret, under TLS where the job asks for it.

Every connection of a run passes a `Gate` at both its ends. The callers of a listening socket
have a thread each and a few seconds for their proof, and only a limited number are served at once
(`proof.Callers`): strangers keep no one waiting. Ranks of one machine that meet without the network
need no TLS; nothing else goes without it where it is asked for.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ratrain import proof
from ratrain.errors import HandshakeFailed
from ratrain.runtime.step.network.sealed_socket import SealedSocket
from ratrain.transport.wire.handshake import UNDER_TLS, WANTS_TLS
from ratrain.transport.wire.tls import Guard
from ratrain.transport.wire.tls_socket import TlsRefused

RANKS = proof.Protocol(b"RATRUN", 2, "a rank of a run")
_PROOF_S = 5.0
_PAUSE_S = 0.05
_ONE_SIDE_ALONE = "TLS there, none here"
_DEMAND = int.from_bytes(WANTS_TLS, "big")


@dataclass(frozen=True)
class Gate:
    """What both ends of a connection must prove, and with `guard` the TLS under which they do."""

    key: bytes
    guard: Guard | None = None

    def derived(self, purpose: bytes) -> Gate:
        """For one purpose, of no use for any other."""
        return replace(self, key=proof.derived(self.key, purpose))

    def greet(self, sock: socket.socket, words: bytes, deadline_s: float) -> socket.socket:
        """Who calls says `words`; the socket to talk over. `sock` is closed if that fails."""
        secured, key = self._secured(sock, deadline_s, server=False)
        try:
            RANKS.greet(secured, key, words, deadline_s)
        except proof.OtherSpeaker as other:
            secured.close()
            if other.magic == UNDER_TLS.magic:
                raise TlsRefused(_ONE_SIDE_ALONE) from other
            raise
        except BaseException:
            secured.close()
            raise
        return _ready(secured)

    def welcome(
        self, sock: socket.socket, answer: Callable[[bytes], bytes], deadline_s: float
    ) -> tuple[socket.socket, bytes]:
        """Who listens: the socket to talk over, which is another one under TLS, and the caller's
        words."""
        own = sock if self._is_plain(sock) else sock.dup()
        secured, key = self._secured(own, deadline_s, server=True)
        try:
            words = RANKS.welcome(secured, key, answer, deadline_s)
        except BaseException as error:
            if secured is not sock:
                secured.close()
            if isinstance(error, proof.WordsTooLong) and error.size == _DEMAND:
                raise TlsRefused(_ONE_SIDE_ALONE) from error
            raise
        return _ready(secured), words

    def _is_plain(self, sock: socket.socket) -> bool:
        return self.guard is None or sock.family == getattr(socket, "AF_UNIX", None)

    def _secured(
        self, sock: socket.socket, deadline_s: float, *, server: bool
    ) -> tuple[socket.socket, bytes]:
        if self.guard is None or self._is_plain(sock):
            return sock, self.key
        return self.guard.secure(
            sock, self.key, server=server, deadline_s=deadline_s, speaks=RANKS, kind=SealedSocket
        )


def _ready(sock: socket.socket) -> socket.socket:
    if isinstance(sock, SealedSocket):
        sock.ready()
    return sock


class HandshakeListener:
    """Takes callers until it is closed. `answer` makes our words from a caller's, or raises
    `HandshakeFailed`; `came` gets the caller's words and its socket. Both are called one caller at
    a time."""

    def __init__(
        self,
        listener: socket.socket,
        gate: Gate,
        answer: Callable[[bytes], bytes],
        came: Callable[[bytes, socket.socket], None],
    ) -> None:
        self._listener, self._gate = listener, gate
        self._answer, self._came = answer, came
        self._lock = threading.Lock()
        self._callers = proof.Callers()
        self._closed = False
        self._wake, self._waker = os.pipe()
        self._thread = threading.Thread(target=self._accept, name="handshakes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No one is let in any more. The listening socket stays open; it belongs to the caller."""
        with self._lock:
            self._closed = True
            self._callers.hang_up()
        os.close(self._waker)
        self._thread.join()
        os.close(self._wake)

    def _accept(self) -> None:
        self._listener.setblocking(False)
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        while not self._closed:
            poll.poll()
            try:
                caller, address = self._listener.accept()
            except BlockingIOError:  # the caller has gone again, or this is being closed
                continue
            except OSError:  # this process has too many files open: some callers will end
                time.sleep(_PAUSE_S)
                continue
            self._take(caller, str(address[0]) if address else "this machine")

    def _take(self, caller: socket.socket, address: str) -> None:
        with self._lock:
            if self._closed:
                caller.close()
                return
            self._callers.add(caller, address)
        threading.Thread(target=self._hear, args=(caller, address), daemon=True).start()

    def _hear(self, caller: socket.socket, address: str) -> None:
        deadline_s = time.monotonic() + _PROOF_S
        problem = ""
        try:
            sock, message = self._gate.welcome(caller, self._answer_alone, deadline_s)
            with self._lock:
                self._callers.remove(caller)
                if sock is not caller:
                    caller.close()
                if self._closed:
                    sock.close()
                else:
                    self._came(message, sock)
                return
        except HandshakeFailed as error:
            problem = error.what
        except OSError as error:
            problem = str(error)
        with self._lock:
            self._callers.remove(caller)
            line = f"a connection from {address} was refused: {problem}"
            if not self._closed and self._callers.is_news(line):
                print(line, flush=True)  # into the rank's log
        caller.close()

    def _answer_alone(self, message: bytes) -> bytes:
        with self._lock:
            return self._answer(message)
