"""A listening socket that lets in only who proves the run's secret; strangers keep no one waiting.

Each caller has a thread of its own and a few seconds for its proof, and only a limited number are
served at once (`proof.Callers`)."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable

from ratrain import proof
from ratrain.errors import HandshakeFailed

RANKS = proof.Protocol(b"RATRUN", 2, "a rank of a run")
_PROOF_S = 5.0
_PAUSE_S = 0.05


class HandshakeListener:
    """Takes callers until it is closed. `answer` makes our words from a caller's, or raises
    `HandshakeFailed`; `came` gets the caller's words and its socket. Both are called one caller at
    a time."""

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        answer: Callable[[bytes], bytes],
        came: Callable[[bytes, socket.socket], None],
    ) -> None:
        self._listener, self._key = listener, key
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
            message = RANKS.welcome(caller, self._key, self._answer_alone, deadline_s)
            with self._lock:
                self._callers.remove(caller)
                if not self._closed:
                    self._came(message, caller)
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
