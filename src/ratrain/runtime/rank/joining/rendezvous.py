"""Where the ranks of one attempt find each other, and no one else.

Rank 0 listens; every other rank proves the run's secret to it, and says where it will listen
itself. When all have come, and answer, rank 0 tells each of them the name of this attempt, drawn at
random, and where everybody listens. The secret of all later connections is derived from that name,
so ranks of an earlier attempt, and whatever was recorded of one, open nothing.

    rank -> 0   (the words of its proof) {"rank", "world_size", "start", "port", "networks"}
    0 -> rank   an empty frame, which the rank sends back: it is still there
    0 -> rank   {"attempt", "book": [[address, port], ...], "networks": [...]}, by rank

A rank on several networks says where it listens on each of the further ones, too.

A launcher's ranks say which start of them they belong to. One of another start is refused: it may
be left over on a host that was cut off, and its place be taken by a new process.

Nothing listens beyond this machine unless the ranks are on several.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ratrain.errors import HandshakeFailed, RunFailed, SpecError, TransportError
from ratrain.readers.json import as_table, parse_json
from ratrain.runtime.environment import ADDRESS, PORT, Launch
from ratrain.runtime.rank.joining.call_back import CallBack
from ratrain.runtime.rank.joining.handshake import Gate, HandshakeListener
from ratrain.runtime.rank.joining.near_sockets import close_all, listen_near
from ratrain.runtime.rank.joining.whereabouts import tell, told
from ratrain.runtime.step.network.broadcast import Broadcast
from ratrain.runtime.step.network.connection import Connection
from ratrain.transport.wire.tls_socket import TlsRefused

REACH_S = 60.0
"""How long a rank looks for rank 0: ranks must start within this time of each other."""
FREE_S = 20.0
"""How long rank 0 of a launcher that tells starts apart waits for its port to be free."""
_RETRY_S = 0.25
_CALL_S = 5.0
_LONGER_S = 1.0
"""More than rank 0 waits: it knows which rank did not come."""
_LOOK_S = 0.2
_REFUSED_S = 3.0
"""Somebody else may have had the port; a certificate becomes no better by waiting."""
_ANSWER_S = 20.0
_MAX_BOOK = 1 << 20
_BACKLOG = 512


Addresses = tuple[tuple[str, int], ...]
Everybody = Callable[[str], list[str]]
"""Every rank's words, by rank. All ranks call it together."""


@dataclass(frozen=True)
class Joined:
    """All ranks of an attempt. `gate`: their connections'; `book`: where each listens; `listener`:
    this rank's own; `near`: that for ranks of this machine; `broadcast`: for words to everybody
    while the run is set up; `networks`, `further`: where each listens on further networks, and this
    rank's own sockets there."""

    rank: int
    world_size: int
    gate: Gate
    book: tuple[tuple[str, int], ...]
    listener: socket.socket
    near: socket.socket | None
    broadcast: Broadcast
    networks: tuple[Addresses, ...]
    further: tuple[socket.socket, ...]
    call_back: CallBack = field(default_factory=CallBack)

    def close(self) -> None:
        """This rank listens no more."""
        close_all([self.listener, self.near, *self.further])

    def everybody(self, text: str) -> list[str]:
        """Every rank's words, by rank."""
        return [reply.decode() for reply in self.broadcast.exchange(text.encode())]


def join(
    launch: Launch, gate: Gate, patience_s: float, call_back: CallBack | None = None
) -> Joined:
    """Returns when all ranks of this attempt are there. `gate`: that of the run; `patience_s`: how
    long to wait for all, and later on for words; `call_back` ends it."""
    gate, call_back = gate.derived(b"ratrain rendezvous"), call_back or CallBack()
    kind = _OtherRank if launch.rank else _RankZero
    met = replace(kind(launch, gate, patience_s, call_back).join(), call_back=call_back)
    call_back.ends(met.broadcast.hang_up)
    return met


class _RankZero:
    """Rank 0's side."""

    def __init__(self, launch: Launch, gate: Gate, patience_s: float, call_back: CallBack) -> None:
        self._launch, self._gate, self._patience_s = launch, gate, patience_s
        self._call_back = call_back
        self._changed = threading.Condition(threading.RLock())
        self._joined: dict[int, Connection] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._networks: dict[int, Addresses] = {}
        self._asks = False

    def join(self) -> Joined:
        world_size = self._launch.world_size
        self._call_back.ends(self._hang_up)
        with _rendezvous_listener(self._launch, self._call_back) as listener:
            host = listener.getsockname()[0]
            handshakes = HandshakeListener(listener, self._gate, self._answer, self._take)
            if self._launch.told_in is not None:
                tell(self._launch.told_in, listener.getsockname()[:2])
            try:
                end_s = time.monotonic() + self._patience_s
                self._wait(end_s)
                while not self._all_answer():
                    self._wait(end_s)
            finally:
                handshakes.close()
                if self._launch.told_in is not None:
                    self._launch.told_in.unlink(missing_ok=True)
        own_listener = listen(host)
        near = listen_near(own_listener.getsockname()[:2])
        attempt = secrets.token_bytes(16)
        book = (own_listener.getsockname()[:2], *(self._addresses[rank] for rank in self._others))
        further = listen_further(self._launch.networks)
        networks = (_addresses_of(further), *(self._networks[rank] for rank in self._others))
        body = json.dumps({"attempt": attempt.hex(), "book": book, "networks": networks}).encode()
        for other in self._joined.values():
            other.patience_s = self._patience_s
            other.send(body)
        broadcast = Broadcast(0, world_size, self._joined)
        gate = self._gate.derived(attempt)
        return Joined(0, world_size, gate, book, own_listener, near, broadcast, networks, further)

    @property
    def _others(self) -> range:
        return range(1, self._launch.world_size)

    def _wait(self, end_s: float) -> None:
        with self._changed:
            while len(self._joined) < len(self._others):
                self._call_back.require()
                if time.monotonic() > end_s:
                    missing = [rank for rank in self._others if rank not in self._joined]
                    raise _ranks_missing(self._launch, missing, self._patience_s)
                self._changed.wait(_LOOK_S)
                self._forget_the_gone()

    def _all_answer(self) -> bool:
        """Whether all that joined are ranks that still wait; others are forgotten."""
        joined = dict(self._joined)
        self._asks = True
        for other in joined.values():
            with suppress(TransportError):
                other.send(b"")
        for rank, other in joined.items():
            try:
                other.receive(memoryview(b""))
            except TransportError:
                self._forget(rank)
        self._asks = False
        return len(self._joined) == len(self._others)

    def _forget_the_gone(self) -> None:
        """Another rank that speaks before it is asked is none, nor is one that has ended."""
        if self._asks:
            return
        poll = select.poll()
        for other in self._joined.values():
            poll.register(other.fd, select.POLLIN)
        disconnected = {fd for fd, _ in poll.poll(0)}
        for rank, other in list(self._joined.items()):
            if other.fd in disconnected:
                self._forget(rank)

    def _hang_up(self) -> None:
        for other in list(self._joined.values()):
            other.hang_up()

    def _forget(self, rank: int) -> None:
        with self._changed:
            self._joined.pop(rank).close()

    def _answer(self, message: bytes) -> bytes:
        rank, _, _ = self._read(message)
        with self._changed:
            self._forget_the_gone()
            if rank in self._joined:
                raise HandshakeFailed(f"rank {rank} has already connected")
        return b"{}"

    def _take(self, message: bytes, other: socket.socket) -> None:
        rank, port, networks = self._read(message)
        with self._changed:
            if rank in self._joined:
                other.close()
                return
            self._addresses[rank] = other.getpeername()[0], port
            self._networks[rank] = networks
            self._joined[rank] = Connection(other, 0, rank, _ANSWER_S)
            self._changed.notify_all()

    def _read(self, message: bytes) -> tuple[int, int, Addresses]:
        body = _body(message)
        rank, port, world_size = (body.get(name) for name in ("rank", "port", "world_size"))
        ours = self._launch.world_size
        if world_size != ours:
            raise HandshakeFailed(
                f"a rank of a run of {world_size} ranks connected to a run of {ours}"
            )
        if body.get("start", "") != self._launch.start:
            raise HandshakeFailed(
                f"rank {rank} of another start of the run connected: it may be left over from "
                "an earlier one, or rank 0 is"
            )
        if not (isinstance(rank, int) and 0 < rank < ours):
            raise HandshakeFailed(f"rank {rank!r} is not one of {ours} ranks")
        if not (isinstance(port, int) and 0 < port < 1 << 16):
            raise HandshakeFailed(f"{port!r} is not a port")
        return rank, port, _addresses(body.get("networks", ()))


class _OtherRank:
    """The side of any other rank."""

    def __init__(self, launch: Launch, gate: Gate, patience_s: float, call_back: CallBack) -> None:
        self._launch, self._gate, self._patience_s = launch, gate, patience_s
        self._call_back = call_back

    def join(self) -> Joined:
        reach_s = time.monotonic() + min(self._patience_s, REACH_S)
        end_s = time.monotonic() + self._patience_s + _LONGER_S
        accepted = False
        while True:
            further = listen_further(self._launch.networks)
            try:
                sock, listener = self._call(end_s if accepted else reach_s, _addresses_of(further))
                near = listen_near(listener.getsockname()[:2])
                try:
                    accepted = True
                    return self._listen_to(sock, listener, near, further, end_s)
                except (TransportError, OSError):
                    close_all([sock, listener, near])
                    raise
            except (TransportError, OSError) as error:
                close_all(further)
                self._call_back.require()
                if self._has_no_loopback(error):
                    raise self._without_loopback(error) from error
                now_s = time.monotonic()
                if isinstance(error, TlsRefused):
                    reach_s = min(reach_s, now_s + _REFUSED_S)
                if accepted and now_s > end_s - _RETRY_S:
                    raise _ranks_missing(self._launch, [], self._patience_s) from error
                if not accepted and now_s > reach_s - _RETRY_S:
                    raise self._unreached(error) from error
            time.sleep(_RETRY_S)

    def _call(self, end_s: float, networks: Addresses) -> tuple[socket.socket, socket.socket]:
        """A connection to rank 0, which knows us, and our own listener."""
        launch, left_s = self._launch, max(end_s - time.monotonic(), _RETRY_S)
        deadline_s = time.monotonic() + min(left_s, _CALL_S)
        source = (launch.own_address, 0) if launch.own_address else None
        sock = socket.create_connection(
            told(launch.told_in) or (launch.address, launch.port),
            timeout=min(left_s, _CALL_S),
            source_address=source,
        )
        listener: socket.socket | None = None
        try:
            listener = listen(sock.getsockname()[0])
            port = listener.getsockname()[1]
            body = {"rank": launch.rank, "world_size": launch.world_size, "start": launch.start}
            body |= {"port": port, "networks": networks}
            return self._gate.greet(sock, json.dumps(body).encode(), deadline_s), listener
        except BaseException:
            close_all([sock, listener])
            raise

    def _listen_to(
        self,
        sock: socket.socket,
        listener: socket.socket,
        near: socket.socket | None,
        further: tuple[socket.socket, ...],
        end_s: float,
    ) -> Joined:
        launch = self._launch
        left_s = max(end_s - time.monotonic(), _RETRY_S)
        upwards = Connection(sock, launch.rank, 0, left_s)
        self._call_back.ends(upwards.hang_up)
        message = b""
        while not message:
            message = upwards.receive_bytes(_MAX_BOOK)
            if not message:
                upwards.send(b"")
        body = _body(message)
        attempt, book = bytes.fromhex(str(body.get("attempt"))), _book(body, launch.world_size)
        networks = tuple(map(_addresses, body.get("networks", ())))
        if len(networks) != launch.world_size:
            raise TransportError("rank 0's list of networks is damaged")
        upwards.patience_s = self._patience_s
        broadcast = Broadcast(launch.rank, launch.world_size, {0: upwards})
        return Joined(
            launch.rank,
            launch.world_size,
            self._gate.derived(attempt),
            book,
            listener,
            near,
            broadcast,
            networks,
            further,
        )

    def _has_no_loopback(self, error: Exception) -> bool:
        """Whether no later call can succeed either: this machine does not even reach itself."""
        unreachable = isinstance(error, OSError) and error.errno == errno.ENETUNREACH
        return unreachable and _is_loopback(self._launch.address)

    def _without_loopback(self, error: Exception) -> RunFailed:
        return RunFailed(
            f"rank 0 was not reached at {self._launch.rendezvous_address}: {error}",
            place=f"rank {self._launch.rank}",
            fix="bring this machine's loopback interface up: ip link set lo up",
        )

    def _unreached(self, error: Exception) -> RunFailed:
        reason = error.what if isinstance(error, TransportError) else str(error)
        if isinstance(error, OSError):
            reason = error.strerror or reason
        launch = self._launch
        if isinstance(error, TlsRefused):
            return RunFailed(
                f"rank 0 at {launch.rendezvous_address} is not met under TLS: {reason}",
                place=f"rank {launch.rank}",
                fix="every host needs the same job ([train] tls), and certificates of one "
                "authority, for server and client use",
            )
        if launch.told_in is not None and told(launch.told_in) is None:
            return RunFailed(
                f"rank 0 has not written where it listens for {min(self._patience_s, REACH_S):g} "
                f"s, and does not answer at {launch.rendezvous_address}",
                place=str(launch.told_in),
                fix="check that rank 0 runs, and that all hosts share the run's folder; where they "
                "do not, set MASTER_ADDR and MASTER_PORT on all of them",
            )
        return RunFailed(
            f"rank 0 was not reached at {launch.rendezvous_address}: {reason}, for "
            f"{min(self._patience_s, REACH_S):g} s",
            place=f"rank {launch.rank}",
            fix="check that rank 0 runs, that MASTER_ADDR is its machine's address on every "
            "machine, "
            f"and that its firewall lets the port through ({PORT} sets another)",
        )


def _named(address: str, host: str) -> str:
    """An address with what it stands for, where that is not the same."""
    return address if address == host else f"{address} ({host})"


def _rendezvous_listener(launch: Launch, call_back: CallBack) -> socket.socket:
    """Where the others come to: inherited from the launcher, or opened here."""
    if launch.listener is not None:
        return socket.socket(fileno=launch.listener)
    address = launch.own_address or launch.address
    try:
        host = socket.getaddrinfo(address, launch.port, type=socket.SOCK_STREAM)[0][4][0]
        if launch.ranks_here is not None and not launch.one_host and _is_loopback(str(host)):
            raise SpecError(
                f"{_named(address, str(host))} is this machine's loopback; ranks on other machines "
                "cannot reach it",
                place="MASTER_ADDR",
                fix=f"give an address of this machine's network; or set {ADDRESS} to it here",
            )
        try:
            return _listen_when_free(
                str(host), launch.port, FREE_S if launch.start else 0.0, call_back
            )
        except OSError:
            if launch.told_in is None:
                raise
            return listen(str(host))  # another job has the port: the file says which it is
    except OSError as error:
        raise RunFailed(
            f"cannot listen at {address}, port {launch.port}: {error.strerror or error}",
            place="rank 0",
            fix=f"MASTER_ADDR must be an address of rank 0's machine ({ADDRESS} there sets "
            f"another one), and the port must be free ({PORT} sets another)",
        ) from error


def _listen_when_free(
    host: str, port: int, patience_s: float, call_back: CallBack
) -> socket.socket:
    """As `listen`; a rank of an earlier start may have the port for a while."""
    end_s = time.monotonic() + patience_s
    while True:
        try:
            return listen(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > end_s:
                raise
        call_back.require()
        time.sleep(_RETRY_S)


def listen(host: str, port: int = 0) -> socket.socket:
    """A socket that listens at one address, and at no other."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def listen_further(networks: Sequence[str]) -> tuple[socket.socket, ...]:
    """Sockets that listen on further networks."""
    made: list[socket.socket] = []
    for address in networks:
        try:
            made.append(listen(address))
        except OSError as error:
            close_all(made)
            raise SpecError(
                f"cannot listen at {address!r}: {error.strerror or error}",
                place=ADDRESS,
                fix="give an address of this machine on each network: `ip address` lists them",
            ) from error
    return tuple(made)


def _addresses_of(listeners: Sequence[socket.socket]) -> Addresses:
    return tuple(each.getsockname()[:2] for each in listeners)


def _is_loopback(host: str) -> bool:
    """Whether it is an address, not a name, of the machine itself."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _addresses(listed: Any) -> Addresses:
    try:
        return tuple((str(address), int(port)) for address, port in listed)
    except (TypeError, ValueError) as error:
        raise HandshakeFailed(f"a list of addresses is damaged: {error}") from error


def _book(body: Mapping[str, Any], world_size: int) -> Addresses:
    book = _addresses(body.get("book", ()))
    if len(book) != world_size:
        raise TransportError(f"rank 0's list has {len(book)} addresses for {world_size} ranks")
    return book


def told_by_all(texts: Sequence[str]) -> list[dict[str, Any]]:
    """The tables that all ranks have exchanged, by rank."""
    return [as_table(*parse_json(text, f"rank {rank}"))[0] for rank, text in enumerate(texts)]


def _body(data: bytes) -> dict[str, Any]:
    try:
        body, _ = as_table(*parse_json(data, "a rank's first message"))
    except SpecError as error:
        raise HandshakeFailed(f"the message is not a JSON object: {error.what}") from error
    return body


def _ranks_missing(launch: Launch, missing: list[int], patience_s: float) -> RunFailed:
    awaited = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
    return RunFailed(
        f"waited {patience_s:g} s for {awaited if missing else f'all {launch.world_size} ranks'}",
        place=f"rank {launch.rank}",
        fix="check that every machine runs its ranks and can reach rank 0's machine",
    )
