"""Adds latency: a process that holds each packet back, `python -m ratrain.lab.relay ORDER`.

The kernel's own means (`netem`) is missing in many kernels. This process owns one tap interface
for each latency, in the bridges' namespace; the far pairs' packets are redirected into it
(`wires.delay`). What it reads there it writes back when its time has come, and the bridge passes it
on. Packets of one latency stay in order; where a queue is full, the packet that comes is dropped.

A tap takes a TCP burst of up to 64 KiB as one packet and its checksums undone, which is why an
interpreter is fast enough: it sees a fifth to a fortieth of the packets.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import select
import signal
import struct
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ratrain.errors import RatrainError
from ratrain.lab.place import NETWORKS, join_network
from ratrain.lab.relay_order import READY, TUN, Held, Order, order_from

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
TAP_WITHOUT_INFO_WITH_OFFLOAD_HEADER = 0x0002 | 0x1000 | 0x4000
CHECKSUM_AND_TCP_SEGMENTS = 0x1 | 0x2 | 0x8  # TUN_F_CSUM, _TSO4, _TSO_ECN
PR_SET_TIMERSLACK = 29
MOST_PACKET_BYTES = 66 * 1024  # 64 KiB, the link's header, and the one about offloads
MOST_AT_ONCE = 64


@dataclass
class Queue:
    """What one tap's packets wait in, each with when it is due."""

    tap: int
    held: Held
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque[tuple[float, bytes]])
    waiting_bytes: int = 0

    def take(self) -> None:
        """Read what has come; what finds the queue full is dropped."""
        with suppress(BlockingIOError):
            for _ in range(MOST_AT_ONCE):
                packet = os.read(self.tap, MOST_PACKET_BYTES)
                if self.waiting_bytes + len(packet) <= self.held.queue_bytes:
                    self.waiting.append((time.monotonic() + self.held.delay_s, packet))
                    self.waiting_bytes += len(packet)

    def give(self) -> float | None:
        """Pass on what is due; when the next one is. A packet that the kernel refuses is lost."""
        while self.waiting:
            due_s, packet = self.waiting[0]
            if due_s > time.monotonic():
                return due_s
            self.waiting.popleft()
            self.waiting_bytes -= len(packet)
            with suppress(OSError):
                os.write(self.tap, packet)
        return None


def main(order: Order) -> None:
    """Take the place, make the taps, and relay until the maker is gone."""
    maker = os.pidfd_open(order.maker)
    if os.getppid() != order.maker:
        return
    _be_punctual()
    joined = [_joins(Path(group)) for group in order.cgroups]
    if not any(joined):
        raise OSError(f"no control group takes it, of {', '.join(order.cgroups)}")
    for buffers in order.buffers:
        join_network(NETWORKS / buffers.namespace)
        _raise_buffers(buffers.most_bytes)
    join_network(NETWORKS / order.namespace)
    queues = {tap: Queue(tap, held) for held in order.held for tap in [open_tap(held.interface)]}
    print(READY, flush=True)
    _relay(queues, maker)


def _joins(group: Path) -> bool:
    """Whether the group takes this process. A processor group of version 1 takes none that is
    scheduled in real time: then this one stays in its maker's, and needs no share."""
    try:
        (group / "cgroup.procs").write_text("0")  # 0: whoever writes
    except OSError:
        return False
    return True


def _relay(queues: dict[int, Queue], maker: int) -> None:
    files = [*queues, maker]
    while True:
        due = [due_s for queue in queues.values() if (due_s := queue.give()) is not None]
        wait_s = max(0.0, min(due) - time.monotonic()) if due else None
        for file in select.select(files, [], [], wait_s)[0]:
            if file == maker:
                return
            queues[file].take()


def open_tap(name: str) -> int:
    """A tap interface in this namespace, for as long as it is open; it does not block."""
    tap = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    wish = struct.pack("16sH22x", name.encode(), TAP_WITHOUT_INFO_WITH_OFFLOAD_HEADER)
    fcntl.ioctl(tap, TUNSETIFF, wish)
    fcntl.ioctl(tap, TUNSETOFFLOAD, CHECKSUM_AND_TCP_SEGMENTS)
    return tap


def _raise_buffers(most_bytes: int) -> None:
    for name in ("tcp_rmem", "tcp_wmem"):
        file = Path("/proc/sys/net/ipv4") / name
        least, usual, most = map(int, file.read_text().split())
        file.write_text(f"{least} {usual} {max(most, most_bytes)}")


def _be_punctual() -> None:
    """Before all else on this machine: what is late here is late in every measurement."""
    gc.disable()
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    with suppress(OSError):  # some kernels refuse it within a control group
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        main(order_from(sys.argv[1]))
    except (OSError, RatrainError) as error:
        print(f"error: the lab's relay: {error}", file=sys.stderr)
        sys.exit(3)
