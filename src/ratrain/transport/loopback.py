"""A network inside one process, on a simulated clock, with faults drawn from a seed.

Engines from `LoopbackNetwork.engine` have the whole surface and run the very same core; only
time and the wire are simulated: delays that reorder, doubled frames, pieces placed by halves,
links that break, peers that die loudly or in silence. One seed gives one history.
"""

from __future__ import annotations

import ctypes
import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ratrain.errors import EngineClosed
from ratrain.transport import frames
from ratrain.transport.address import Address, Endpoint
from ratrain.transport.config import Config
from ratrain.transport.core import Core
from ratrain.transport.engine import Engine
from ratrain.transport.frames import Head
from ratrain.transport.memory import Region
from ratrain.transport.peer import Peer
from ratrain.transport.provider import Iov, Landing, Receiver
from ratrain.transport.segments import Segment

TICK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Faults:
    """How bad the network is."""

    nics: int = 1
    delay_s: tuple[float, float] = (0.0001, 0.0001)
    """Each frame's delay is drawn from this range: a wide one reorders."""
    duplicate: float = 0.0
    """Chance that a frame arrives twice."""
    break_link: float = 0.0
    """Chance that a frame is lost and its link breaks; it comes back after `reconnect_s`."""
    stall_link: float = 0.0
    """Chance that a frame is held for 2 to 6 s, with all that follow it on its link."""


class LoopbackNetwork:
    """The wire, the clock and the dice."""

    def __init__(self, seed: int = 0, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.dice = random.Random(seed)
        self.now_s = 0.0
        self.engines: dict[int, LoopbackEngine] = {}
        self.silent: set[int] = set()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._calls: deque[tuple[LoopbackEngine, Callable[..., object], tuple[Any, ...]]] = deque()

    def engine(self, config: Config) -> LoopbackEngine:
        """A new engine on this network."""
        return LoopbackEngine(config, self)

    def at(self, delay_s: float, event: Callable[[], None]) -> None:
        """Let something happen after `delay_s` of simulated time."""
        self._count += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._count, event))

    def call(self, engine: LoopbackEngine, callback: Callable[..., object], args: Any) -> None:
        """Run a callback after the present event."""
        self._calls.append((engine, callback, args))

    def run_until(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Let time pass until `ready()`; false after `timeout_s` of simulated time."""
        end_s = self.now_s + (3600.0 if timeout_s is None else timeout_s)
        self._settle()
        while not ready():
            if not self._events or self._events[0][0] > end_s:
                self.now_s = end_s
                return ready()
            self.now_s, _, event = heapq.heappop(self._events)
            event()
            self._settle()
        return True

    def kill(self, engine: LoopbackEngine, *, silently: bool) -> None:
        """The process of `engine` ends, as by kill -9; `silently`: its host is unplugged."""
        self.engines.pop(engine.address.incarnation, None)
        self.silent.add(engine.address.incarnation)
        engine.killed = True
        for peer in engine.core.peers.values():
            for link in peer.links:
                channel = link.channel
                assert isinstance(channel, LoopbackChannel)
                channel.closed = True
                if not silently:
                    channel.tell_other("connection reset by peer", reset=True)

    def connect(self, peer: Peer) -> None:
        """Open the missing links between two engines, after a delay."""
        self.at(0.001, lambda: self._open_links(peer))

    def _open_links(self, peer: Peer) -> None:
        core = peer.core
        if core.peers.get(peer.address.incarnation) is not peer:
            return
        other = self.engines.get(peer.address.incarnation)
        if other is None:
            if peer.state == "CONNECTING" and self.now_s >= peer.connect_deadline_s:
                core.connect_failed(peer, "connection refused", stale=False)
            elif peer.state == "CONNECTING":
                self.at(0.05, lambda: self._open_links(peer))
            return
        theirs = other.core.accept(core.address)
        for number in range(self.faults.nics):
            nic = f"nic{number}"
            if any(k.nic == nic for k in peer.links):
                continue
            for stale in [k for k in theirs.links if k.nic == nic]:
                stale.down("replaced", reset=False)
                theirs = other.core.accept(core.address)
            ends = LoopbackChannel(self, core, nic), LoopbackChannel(self, other.core, nic)
            ends[0].other, ends[1].other = ends[1], ends[0]
            links = peer.add_link(ends[0], nic), theirs.add_link(ends[1], nic)
            ends[0].receiver, ends[1].receiver = links
            peer.opened(links[0])
            theirs.opened(links[1])

    def _settle(self) -> None:
        busy = True
        while busy:
            busy = bool(self._calls)
            while self._calls:
                engine, callback, args = self._calls.popleft()
                if not engine.killed:
                    engine.run(callback, args)
            for engine in list(self.engines.values()):
                engine.core.flush_acks()


class LoopbackChannel:
    """One end of a simulated link."""

    def __init__(self, network: LoopbackNetwork, core: Core, nic: str) -> None:
        self.provider = "loopback"
        self.nic = nic
        self.pulls = False
        self.least_page_bytes = 0
        self.reaches: frozenset[str] | None = None
        self.closed = False
        self.other: LoopbackChannel = self
        self.receiver: Receiver | None = None
        self._network = network
        self._core = core
        self._held_until_s = 0.0

    def post(
        self,
        head: Head,
        extra: bytes,
        payload: memoryview | Iov | None,
        lead: tuple[Head, bytes] | None = None,
    ) -> None:
        """Part of Channel: the frame arrives late, twice, or never."""
        if lead is not None:
            self.post(*lead, None)
        if self.closed:
            return
        net, faults = self._network, self._network.faults
        dice = net.dice
        if faults.break_link and dice.random() < faults.break_link:
            self.closed = True
            self.tell_other("link broken", reset=False)
            net.at(0.0, lambda: self._tell("link broken", reset=False))
            return
        if faults.stall_link and dice.random() < faults.stall_link:
            self._held_until_s = net.now_s + dice.uniform(2.0, 6.0)
        data = gather(payload)
        for _ in range(2 if dice.random() < faults.duplicate else 1):
            delay_s = max(0.0, self._held_until_s - net.now_s) + dice.uniform(*faults.delay_s)
            net.at(delay_s, lambda: self.other.arrive(frames.pack(head), extra, data))

    def offer(self, segment: Segment) -> None:
        """Part of Channel: nothing can be mapped over a simulated wire."""

    def hold(self) -> None:
        """Part of Channel: nothing is sent together here."""

    def release(self) -> None:
        """Part of Channel."""

    def arrive(self, packed: bytes, extra: bytes, data: bytes) -> None:
        """A frame has come; a piece is placed in two steps."""
        if self.closed or self.receiver is None:
            return
        head = frames.unpack(packed)
        if head.kind not in (frames.WRITE, frames.MSG):
            self.receiver.control(head, extra)
            return
        landing = self.receiver.begin(head, extra)
        half = self._network.dice.randrange(len(data) + 1) if data else 0
        place(landing, 0, data[:half])
        delay_s = self._network.dice.uniform(*self._network.faults.delay_s)
        self._network.at(delay_s, lambda: self._rest(landing, half, data))

    def _rest(self, landing: Landing, half: int, data: bytes) -> None:
        if self.closed or self.receiver is None:
            return
        place(landing, half, data[half:])
        self.receiver.end(landing)

    def tell_other(self, reason: str, *, reset: bool) -> None:
        """The other end learns, a little later, that the link is gone."""
        other = self.other
        self._network.at(0.001, lambda: other._tell(reason, reset=reset))

    def _tell(self, reason: str, *, reset: bool) -> None:
        self.closed = True
        if self.receiver is not None and self._core.address.incarnation not in self._network.silent:
            self.receiver.down(reason, reset=reset)

    def close(self) -> None:
        """Part of Channel."""
        if not self.closed:
            self.closed = True
            self.tell_other("closed by the peer", reset=False)


class LoopbackEngine(Engine):
    """An engine whose waits let simulated time pass."""

    def __init__(self, config: Config, network: LoopbackNetwork) -> None:
        self.network = network
        self.killed = False
        super().__init__(config)

    def _open(self) -> None:
        net = self.network
        ends = tuple(Endpoint("loopback", f"nic{i}", "") for i in range(net.faults.nics))
        incarnation = net.dice.getrandbits(63) | 1
        self.address = Address(self.config.name, incarnation, "loopback", ends)
        self.core = Core(self, self.config, self.address, lambda: net.now_s, net.connect)
        net.engines[incarnation] = self
        net.at(TICK_S, self._tick)

    def _tick(self) -> None:
        if self.address.incarnation in self.network.engines:
            self.core.tick()
            self.network.at(TICK_S, self._tick)

    def close(self) -> None:
        """Leave the network in good order."""
        if self.network.engines.pop(self.address.incarnation, None) is None:
            return
        for peer in list(self.core.peers.values()):
            for link in list(peer.links):
                link.post(Head(frames.BYE))
            self.core.peer_down(peer, "engine closed", error=EngineClosed("this engine was closed"))
        for word in self._words:
            word.stop()
        self._closed = True

    def reachable(self) -> frozenset[str]:
        """No device is simulated."""
        return frozenset()

    def _share(self, region: Region) -> None:
        """Nothing is registered with a simulated NIC."""

    def _unshare(self, region: Region) -> None:
        """Nothing was."""

    def wait_until(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Let simulated time pass until `ready()`."""
        return self.network.run_until(ready, timeout_s)

    def dispatch(self, callback: Callable[..., object], *args: Any) -> None:
        """Run a callback after the present event, on the caller's thread."""
        self.network.call(self, callback, args)

    def run(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Run one callback; what it raises is counted."""
        try:
            callback(*args)
        except Exception as error:
            self._dispatcher.report(error)


def gather(payload: memoryview | Iov | None) -> bytes:
    """The bytes of a payload."""
    if payload is None:
        return b""
    if isinstance(payload, memoryview):
        return bytes(payload)
    return b"".join(ctypes.string_at(a, n) for a, n in payload.tolist())


def place(landing: Landing, start: int, data: bytes) -> None:
    """Put `data` to byte `start` of a landing, if it is still allowed."""
    if not landing.live or not data:
        return
    if landing.view is not None:
        landing.view[start : start + len(data)] = data
        return
    assert landing.iov is not None
    source = np.frombuffer(data, np.uint8).ctypes.data
    left = len(data)
    for address, length in landing.iov.tolist():
        if start >= length:
            start -= length
            continue
        size = min(length - start, left)
        ctypes.memmove(address + start, source, size)
        source, left, start = source + size, left - size, 0
        if not left:
            return
