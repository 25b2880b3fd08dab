"""The lab's networks, as commands for `ip` and `tc`.

Two bridges stand in a namespace of their own. On the first, each port of the lab has a pair of
virtual interfaces shaped at both ends: what a port sends at its own end, what it receives at
the bridge's, so it is full duplex. In between, what is far goes through a relay, which holds it
back. The second is for control: the launcher and the ranks reach each other over it unshaped, but
ranks do not reach each other, so nothing gets round the first.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ratrain.describe.cluster import Level
from ratrain.errors import Infeasible
from ratrain.lab.delays import Delay
from ratrain.lab.ports import Port

DATA_INTERFACE = "lab0"
CONTROL_INTERFACE = "ctl0"
QUEUE_S = 0.05  # how long a queue may get before it drops
LEAST_QUEUE_BYTES = 160 * 1024  # two of the kernel's 64 KiB segments: with less, TCP stalls
BURST_S = 0.002
LEAST_BURST_BYTES, MOST_BURST_BYTES = 32 * 1024, 256 * 1024
TAP_PACKETS = 8192  # that wait for the relay to wake
NEVER_CENTISECONDS = 100_000_000
CONGESTION = "cubic"  # Linux's default; with the host's own, a lab's figures would depend on it
AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
MOST_SEGMENT_BYTES = 64 * 1024  # what Linux's TCP hands to an interface at once, at most
LEAST_LOOPBACK_BURST_BYTES = 128 * 1024  # more than one packet: the loopback's have 64 KiB


@dataclass(frozen=True)
class Names:
    """What a lab's namespaces and its one interface in the launcher's namespace are called."""

    lab: str
    outside: str  # at most 15 letters
    control_network: int  # the third number of 10.89.x.0/24

    @property
    def bridge(self) -> str:
        return f"{self.lab}-net"

    @property
    def master_address(self) -> str:
        return f"10.89.{self.control_network}.1"

    def port(self, port: Port) -> str:
        return f"{self.lab}-p{port.index}"

    def control(self, port: Port) -> str:
        return f"10.89.{self.control_network}.{port.index + 2}"

    def namespaces(self, ports: Sequence[Port]) -> list[str]:
        return [self.bridge, *map(self.port, ports)]


def build(names: Names, ports: Sequence[Port]) -> None:
    """Make every namespace, interface and queue of the lab."""
    for space in names.namespaces(ports):
        run("ip", "netns", "add", space)
    batch("ip", names.bridge, bridge_lines(names, ports))
    batch("ip", None, outside_lines(names))
    batch("ip", names.bridge, launcher_lines())
    for port in ports:
        batch("ip", names.port(port), port_lines(names, port) + congestion_lines(port))
        batch("tc", names.port(port), shape_lines(DATA_INTERFACE, port, ports, "dst"))
        if port.inside_bytes_per_s is not None:
            least = LEAST_LOOPBACK_BURST_BYTES
            batch("tc", names.port(port), [token_bucket("lo", port.inside_bytes_per_s, least)])
        batch("tc", names.bridge, shape_lines(f"p{port.index}", port, ports, "src"))


def delay(names: Names, ports: Sequence[Port], delays: Sequence[Delay]) -> None:
    """Lead what the far pairs send through the relay's interfaces, which exist."""
    batch("ip", names.bridge, tap_lines(delays))
    batch("tc", names.bridge, redirect_lines(ports, delays))


def tap_lines(delays: Sequence[Delay]) -> list[str]:
    """The taps as ports of the data bridge, into which it never sends by itself. What comes out of
    them bears addresses of others, so the bridge must not learn from it, nor forget what it
    learned when a pair last asked for an address."""
    lines = [f"link set data type bridge ageing_time {NEVER_CENTISECONDS}"]
    for tap in (delay.interface for delay in delays):
        lines += [f"link set {tap} addrgenmode none txqueuelen {TAP_PACKETS} master data up"]
        lines += [
            f"link set {tap} type bridge_slave learning off flood off mcast_flood off "
            f"bcast_flood off"
        ]
    return lines


def redirect_lines(ports: Sequence[Port], delays: Sequence[Delay]) -> list[str]:
    """At the bridge's end of a port, before the bridge: each far address to its latency's tap."""
    lines: list[str] = []
    for port in ports:
        far = [
            (ports[target].address, delay.interface)
            for delay in delays
            for source, target in delay.pairs
            if source == port.index
        ]
        lines += [f"qdisc add dev p{port.index} ingress"] if far else []
        lines += [redirect(f"p{port.index}", address, tap) for address, tap in far]
    return lines


def redirect(interface: str, address: str, tap: str) -> str:
    """What comes in for the address goes out of the tap instead."""
    return (
        f"filter add dev {interface} parent ffff: protocol ip u32 match ip dst {address}/32 "
        f"action mirred egress redirect dev {tap}"
    )


def bridge_lines(names: Names, ports: Sequence[Port]) -> list[str]:
    """Both bridges and every pair of interfaces; a port's control interface is isolated."""
    lines: list[str] = []
    for bridge in ("data", "control"):
        lines += [f"link add {bridge} type bridge stp_state 0 forward_delay 0"]
        lines += [f"link set {bridge} addrgenmode none", f"link set {bridge} up"]
    for port in ports:
        space = names.port(port)
        pairs = (("data", "p", DATA_INTERFACE), ("control", "c", CONTROL_INTERFACE))
        for bridge, letter, inside in pairs:
            end = f"{letter}{port.index}"
            lines += [f"link add {end} type veth peer name {inside} netns {space}"]
            lines += [f"link set {end} addrgenmode none", f"link set {end} master {bridge} up"]
        lines += [f"link set c{port.index} type bridge_slave isolated on"]
    return lines


def outside_lines(names: Names) -> list[str]:
    """The launcher's end of the control network; not isolated, so that it reaches all."""
    return [
        f"link add {names.outside} type veth peer name launcher netns {names.bridge}",
        f"link set {names.outside} addrgenmode none",
        f"addr add {names.master_address}/24 dev {names.outside}",
        f"link set {names.outside} up",
    ]


def launcher_lines() -> list[str]:
    """The bridge's end of it."""
    return ["link set launcher addrgenmode none", "link set launcher master control up"]


def port_lines(names: Names, port: Port) -> list[str]:
    """Addresses within a port's namespace. No IPv6: the filters distinguish ends by IPv4."""
    lines = ["link set lo up"]
    for interface, address in (
        (DATA_INTERFACE, f"{port.address}/16"),
        (CONTROL_INTERFACE, f"{names.control(port)}/24"),
    ):
        lines += [f"link set {interface} addrgenmode none"]
        lines += [f"addr add {address} dev {interface}", f"link set {interface} up"]
    return [*lines, f"link set {DATA_INTERFACE} gso_max_size {segment_bytes(port)}"]


def shape_lines(interface: str, port: Port, ports: Sequence[Port], match: str) -> list[str]:
    """The queues of one end of a port: one bucket, or a class for each level.

    `match`: whether the other end of the traffic is its "dst" or its "src" here.
    """
    if not port.rates_bytes_per_s:
        return []
    if len(port.rates_bytes_per_s) == 1:
        return [token_bucket(interface, port.rates_bytes_per_s[0][1])]
    classes: dict[Level, int] = {
        level: 10 + i for i, (level, _) in enumerate(port.rates_bytes_per_s)
    }
    lines = [f"qdisc add dev {interface} root handle 1: htb default {max(classes.values())}"]
    for level, rate in port.rates_bytes_per_s:
        lines += _class_lines(interface, classes[level], rate)
    return lines + [
        _filter_line(interface, classes, level, match, other.address)
        for other, level in zip(ports, port.levels, strict=True)
        if level is not None
    ]


def _class_lines(interface: str, number: int, rate: float) -> list[str]:
    burst = burst_bytes(rate)
    return [
        f"class add dev {interface} parent 1: classid 1:{number} htb rate {round(rate * 8)}bit "
        f"burst {burst}b cburst {burst}b quantum 60000",
        f"qdisc add dev {interface} parent 1:{number} handle {number}: bfifo "
        f"limit {queue_bytes(rate)}b",
    ]


def _filter_line(
    interface: str, classes: dict[Level, int], level: Level, match: str, address: str
) -> str:
    return (
        f"filter add dev {interface} parent 1: protocol ip u32 match ip {match} {address}/32 "
        f"flowid 1:{classes[level]}"
    )


def token_bucket(
    interface: str, rate_bytes_per_s: float, least_burst_bytes: int = LEAST_BURST_BYTES
) -> str:
    """One rate for all that leaves the interface."""
    burst = burst_bytes(rate_bytes_per_s, least_burst_bytes)
    return (
        f"qdisc replace dev {interface} root tbf rate {round(rate_bytes_per_s * 8)}bit "
        f"burst {burst}b limit {queue_bytes(rate_bytes_per_s)}b"
    )


def burst_bytes(rate_bytes_per_s: float, least_bytes: int = LEAST_BURST_BYTES) -> int:
    """Bytes that pass at once after a pause: 2 ms at the rate, within 32 and 256 KiB."""
    return min(MOST_BURST_BYTES, max(least_bytes, round(rate_bytes_per_s * BURST_S)))


def segment_bytes(port: Port) -> int:
    """Bytes that TCP may hand to the port at once. A bucket cuts what is larger than its burst into
    single packets, each with an interrupt of its own, and whichever rank computes then pays: up to
    half as much processor time again. On real machines the network card does that."""
    bursts = [burst_bytes(rate) // 2 for _, rate in port.rates_bytes_per_s]
    return min([MOST_SEGMENT_BYTES, *bursts])


def queue_bytes(rate_bytes_per_s: float) -> int:
    """Bytes that may wait: 50 ms at the rate and one burst, 160 KiB at least."""
    waiting = round(rate_bytes_per_s * QUEUE_S) + burst_bytes(rate_bytes_per_s)
    return max(LEAST_QUEUE_BYTES, waiting)


def congestion_lines(port: Port) -> list[str]:
    """TCP over the data interface, and between ranks that share the port, gets `CONGESTION`, where
    the kernel has it. A namespace cannot choose it for itself, but its routes can."""
    if CONGESTION not in AVAILABLE.read_text().split():
        return []
    network = f"{port.address.rsplit('.', 2)[0]}.0.0/16"
    source = f"src {port.address} congctl {CONGESTION}"
    return [
        f"route replace {network} dev {DATA_INTERFACE} proto kernel scope link {source}",
        f"route replace table local local {port.address} dev lo proto kernel scope host {source}",
    ]


def batch(tool: str, namespace: str | None, lines: list[str]) -> None:
    """Run the lines with one call of the tool, in a namespace or in this one."""
    if lines:
        option = ["-n", namespace] if namespace else []
        run(tool, *option, "-batch", "-", text="\n".join(lines) + "\n")


def run(*command: str, text: str = "") -> str:
    """What the command printed; its own message where it fails."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Infeasible(
            f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}",
            place="this machine's network",
            fix="docs/how-to/lab.md says what a lab needs",
        )
    return done.stdout
