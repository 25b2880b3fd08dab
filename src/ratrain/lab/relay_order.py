"""What a relay is told, and how it is started and stopped; `relay` is the process itself."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from ratrain.describe.strict import load
from ratrain.errors import Infeasible
from ratrain.readers.json import as_table, parse_json

TUN = Path("/dev/net/tun")
READY = "ready"


@dataclass(frozen=True)
class Held:
    """One latency of an order."""

    interface: str
    delay_s: float
    queue_bytes: int


@dataclass(frozen=True)
class Buffers:
    """How far the TCP buffers of a namespace may grow, where the kernel's default is less."""

    namespace: str
    most_bytes: int


@dataclass(frozen=True)
class Order:
    """What a relay is to do, and for which process: it ends with that."""

    maker: int
    namespace: str
    cgroups: tuple[str, ...]
    held: tuple[Held, ...]
    buffers: tuple[Buffers, ...]


def order_from(text: str) -> Order:
    """The order that a maker wrote."""
    return load(Order, *as_table(*parse_json(text, "the relay's order")))


def start(order: Order) -> subprocess.Popen[bytes]:
    """A relay whose taps exist. In a session of its own: Ctrl-C is for its maker."""
    relay = subprocess.Popen(
        [sys.executable, "-P", "-m", "ratrain.lab.relay", json.dumps(asdict(order))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert relay.stdout is not None
    with relay.stdout as said:
        if said.readline().strip() == READY.encode():
            return relay
    relay.kill()
    raise Infeasible(
        f"the relay that adds latency ended with status {relay.wait()}",
        place="lab",
        fix="see its message above",
    )


def stop(relay: subprocess.Popen[bytes]) -> str:
    """End it; how it had ended before, "" where it still ran."""
    status = relay.poll()
    if status is None:
        relay.kill()
        relay.wait()
        return ""
    return f"signal {-status}" if status < 0 else f"status {status}"
