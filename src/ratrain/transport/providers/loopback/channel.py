"""The simulated wire: frames come late, twice or never, and pieces are placed by halves."""

from __future__ import annotations

import ctypes

import numpy as np

from ratrain.transport.engine.channel import Channel, Landing, Receiver
from ratrain.transport.memory.rows import Iov, gather
from ratrain.transport.providers.loopback.simulation import Simulation
from ratrain.transport.wire import frames
from ratrain.transport.wire.frames import Head


class LoopbackChannel(Channel):
    """One end of a simulated link, in the engine of incarnation `owner`."""

    def __init__(self, simulation: Simulation, owner: int, nic: str) -> None:
        super().__init__("loopback", nic)
        self.other: LoopbackChannel = self
        self.receiver: Receiver | None = None
        self._simulation = simulation
        self._owner = owner
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
        sim, faults = self._simulation, self._simulation.faults
        dice = sim.dice
        if faults.break_link and dice.random() < faults.break_link:
            self.closed = True
            self.tell_other("link broken", reset=False)
            sim.at(0.0, lambda: self._tell("link broken", reset=False))
            return
        if faults.stall_link and dice.random() < faults.stall_link:
            self._held_until_s = sim.now_s + dice.uniform(2.0, 6.0)
        data = _bytes_of(payload)
        for _ in range(2 if dice.random() < faults.duplicate else 1):
            delay_s = max(0.0, self._held_until_s - sim.now_s) + dice.uniform(*faults.delay_s)
            sim.at(delay_s, lambda: self.other.arrive(frames.pack(head), extra, data))

    def arrive(self, packed: bytes, extra: bytes, data: bytes) -> None:
        """A frame has come; a piece is placed in two steps."""
        if self.closed or self.receiver is None:
            return
        head = frames.unpack(packed)
        if head.kind not in (frames.WRITE, frames.MSG):
            self.receiver.control(head, extra)
            return
        landing = self.receiver.begin(head, extra)
        sim = self._simulation
        half = sim.dice.randrange(len(data) + 1) if data else 0
        _place(landing, 0, data[:half])
        delay_s = sim.dice.uniform(*sim.faults.delay_s)
        sim.at(delay_s, lambda: self._rest(landing, half, data))

    def _rest(self, landing: Landing, half: int, data: bytes) -> None:
        if self.closed or self.receiver is None:
            return
        _place(landing, half, data[half:])
        self.receiver.end(landing)

    def tell_other(self, reason: str, *, reset: bool) -> None:
        """The other end learns, a little later, that the link is gone."""
        other = self.other
        self._simulation.at(0.001, lambda: other._tell(reason, reset=reset))

    def _tell(self, reason: str, *, reset: bool) -> None:
        self.closed = True
        if self.receiver is not None and self._owner not in self._simulation.killed:
            self.receiver.down(reason, reset=reset)

    def close(self) -> None:
        """Part of Channel."""
        if not self.closed:
            self.closed = True
            self.tell_other("closed by the peer", reset=False)


def _bytes_of(payload: memoryview | Iov | None) -> bytes:
    """A copy of a payload."""
    if payload is None:
        return b""
    return bytes(payload if isinstance(payload, memoryview) else gather(payload))


def _place(landing: Landing, start: int, data: bytes) -> None:
    """Write `data` at byte `start` of a landing, if that is still allowed."""
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
