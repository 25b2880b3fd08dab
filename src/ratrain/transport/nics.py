"""The network interfaces of this host, and which of ours should talk to which of theirs."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from ratrain.errors import SpecError

_SIOCGIFADDR, _SIOCGIFNETMASK, _SIOCGIFFLAGS = 0x8915, 0x891B, 0x8913


@dataclass(frozen=True, slots=True)
class Nic:
    """One interface with its address."""

    name: str
    host: str
    prefix: int = 32

    def reaches(self, host: str) -> bool:
        """True when `host` is in this interface's own subnet."""
        net = ipaddress.ip_network(f"{self.host}/{self.prefix}", strict=False)
        return ipaddress.ip_address(host) in net


def discover() -> list[Nic]:
    """Every interface that is up and has an IPv4 address."""
    found: list[Nic] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                flags = fcntl.ioctl(probe, _SIOCGIFFLAGS, request)[16:18]
                host = socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24])
                mask = fcntl.ioctl(probe, _SIOCGIFNETMASK, request)[20:24]
            except OSError:
                continue
            if int.from_bytes(flags, "little") & 1:
                found.append(Nic(name, host, int.from_bytes(mask, "big").bit_count()))
    return found


def choose(wanted: str | tuple[str, ...]) -> list[Nic]:
    """The interfaces that `Config.nics` names."""
    if wanted == "loopback":
        return [Nic("lo", "127.0.0.1", 8)]
    known = discover()
    if wanted == "all":
        outward = [n for n in known if not n.host.startswith("127.")]
        return outward or [Nic("lo", "127.0.0.1", 8)]
    names = (wanted,) if isinstance(wanted, str) else wanted
    chosen: list[Nic] = []
    for name in names:
        match = [n for n in known if name in (n.name, n.host)]
        if not match and name.startswith("127."):
            match = [Nic(name, name, 8)]
        if not match and ":" in name:
            match = [_version6(name)]
        if not match:
            have = ", ".join(f"{n.name} ({n.host})" for n in known)
            raise SpecError(
                f"no interface {name!r} is up here",
                place="Config.nics",
                fix=f"choose among {have}",
            )
        chosen.append(match[0])
    return chosen


def family(host: str) -> socket.AddressFamily:
    """The address family of a numeric address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _version6(name: str) -> Nic:
    """An IPv6 address of this host, named as such (interfaces are listed by IPv4 only)."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind((str(ipaddress.IPv6Address(name)), 0))
    except (OSError, ValueError) as error:
        raise SpecError(
            f"{name!r} is no IPv6 address of this host: {error}",
            place="Config.nics",
            fix="see `ip -6 addr`",
        ) from error
    return Nic(name, name, 64)


def pair(local: list[Nic], remote: list[str]) -> list[tuple[Nic, int]]:
    """Pairs (our NIC, index of their address): same subnet first, and every NIC of both sides
    used; counts may differ."""
    pairs: list[tuple[Nic, int]] = []
    used: set[int] = set()
    for number, nic in enumerate(local):
        near = [i for i, host in enumerate(remote) if nic.reaches(host)]
        fresh = [i for i in near if i not in used]
        index = fresh[0] if fresh else near[number % len(near)] if near else number % len(remote)
        used.add(index)
        pairs.append((nic, index))
    for index, host in enumerate(remote):
        if index not in used:
            near_local = [n for n in local if n.reaches(host)]
            pairs.append((near_local[0] if near_local else local[index % len(local)], index))
    return pairs


def host_id() -> str:
    """The same for all processes of one running kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
