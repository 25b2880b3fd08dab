"""The network interfaces of this host, and which of them talks to which of a peer's."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from ratrain.errors import SpecError

_SIOCGIFADDR, _SIOCGIFNETMASK, _SIOCGIFFLAGS = 0x8915, 0x891B, 0x8913
_INET6 = Path("/proc/net/if_inet6")
# Scopes and flags of its lines (linux/if_addr.h, net/ipv6.h)
_GLOBAL, _LINK = 0x00, 0x20
_TEMPORARY, _DADFAILED, _DEPRECATED, _TENTATIVE = 0x01, 0x08, 0x20, 0x40


@dataclass(frozen=True, slots=True)
class Nic:
    """One interface with its address."""

    name: str
    host: str
    prefix: int = 32

    def reaches(self, host: str) -> bool:
        """True when `host` is in this interface's own subnet."""
        net = ipaddress.ip_network(f"{_bare(self.host)}/{self.prefix}", strict=False)
        try:
            return ipaddress.ip_address(_bare(host)) in net
        except ValueError:  # a peer's address may say anything
            return False

    @property
    def is_loopback(self) -> bool:
        """True when it reaches only this host."""
        return ipaddress.ip_address(_bare(self.host)).is_loopback

    @property
    def is_link_local(self) -> bool:
        """True for an IPv6 address that is valid on one link only, with its interface's name."""
        return ":" in self.host and ipaddress.ip_address(_bare(self.host)).is_link_local


def discover() -> list[Nic]:
    """Every interface that is up and has an address: its IPv4 address, or else its IPv6 address
    (a global one before a link-local one)."""
    with_ipv4: list[Nic] = []
    up: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                flags = fcntl.ioctl(probe, _SIOCGIFFLAGS, request)[16:18]
                if int.from_bytes(flags, "little") & 1:
                    up.append(name)
                host = socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24])
                mask = fcntl.ioctl(probe, _SIOCGIFNETMASK, request)[20:24]
            except OSError:
                continue
            if name in up:
                with_ipv4.append(Nic(name, host, int.from_bytes(mask, "big").bit_count()))
    named = {nic.name for nic in with_ipv4}
    return with_ipv4 + [n for n in _discover_ipv6() if n.name in up and n.name not in named]


def _discover_ipv6() -> list[Nic]:
    """The best IPv6 address of each interface."""
    best: dict[str, tuple[int, Nic]] = {}
    lines = _INET6.read_text().splitlines() if _INET6.exists() else []
    for digits, _, prefix, scope, flags, name in (line.split() for line in lines):
        state = int(flags, 16)
        if state & (_TENTATIVE | _DADFAILED):
            continue  # not yet ours, or another host's
        host = str(ipaddress.IPv6Address(bytes.fromhex(digits)))
        kind = int(scope, 16)
        if kind == _LINK:
            host += f"%{name}"
        rank = (kind != _GLOBAL) * 2 + bool(state & (_TEMPORARY | _DEPRECATED))
        if name not in best or rank < best[name][0]:
            best[name] = rank, Nic(name, host, int(prefix, 16))
    return [nic for _, nic in best.values()]


def choose(wanted: str | tuple[str, ...]) -> list[Nic]:
    """The interfaces that `Config.nics` names."""
    if wanted == "loopback":
        return [Nic("lo", "127.0.0.1", 8)]
    interfaces = discover()
    if wanted == "all":
        outward = [n for n in interfaces if not n.is_loopback]
        routable = [n for n in outward if not n.is_link_local]
        return routable or outward or [Nic("lo", "127.0.0.1", 8)]
    names = (wanted,) if isinstance(wanted, str) else wanted
    chosen: list[Nic] = []
    for name in names:
        match = [n for n in interfaces if name in (n.name, n.host)]
        if not match and name.startswith("127."):
            match = [Nic(name, name, 8)]
        if not match and ":" in name:
            match = [_ipv6_nic(name)]
        if not match:
            names = ", ".join(f"{n.name} ({n.host})" for n in interfaces)
            raise SpecError(
                f"no interface {name!r} is up here",
                place="Config.nics",
                fix=f"choose among {names}",
            )
        chosen.append(match[0])
    return chosen


def family(host: str) -> socket.AddressFamily:
    """The address family of a numeric address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def place(host: str, port: int, nic: Nic) -> tuple[str, int] | tuple[str, int, int, int]:
    """The socket address by which `nic` reaches a host, or itself. A link-local address is looked
    up on our end of the link: the peer's interface may have another name."""
    bare = _bare(host)
    if ":" in bare and ipaddress.ip_address(bare).is_link_local:
        interface = nic.host.partition("%")[2] or nic.name
        return bare, port, 0, socket.if_nametoindex(interface)
    return host, port


def _bare(host: str) -> str:
    """An address without the name of its interface."""
    return host.partition("%")[0]


def _ipv6_nic(name: str) -> Nic:
    """The NIC of an IPv6 address of this host that `discover` does not list."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            nic = Nic(name, str(ipaddress.IPv6Address(name)), 64)
            probe.bind(place(nic.host, 0, nic))
    except (OSError, ValueError) as error:
        raise SpecError(
            f"{name!r} is not an IPv6 address of this host: {error}",
            place="Config.nics",
            fix="see `ip -6 addr`",
        ) from error
    return nic


def pair(local: list[Nic], remote: list[str]) -> list[tuple[Nic, int]]:
    """Pairs (our NIC, index of the peer's address) of one IP version: the same subnet first, and
    every NIC of both sides if possible; the two sides may have different numbers of NICs."""
    pairs: list[tuple[Nic, int]] = []
    used: set[int] = set()
    for number, nic in enumerate(local):
        same = [i for i, host in enumerate(remote) if family(host) == family(nic.host)]
        if not same:
            continue
        near = [i for i in same if nic.reaches(remote[i])]
        fresh = [i for i in near if i not in used]
        index = (
            fresh[0] if fresh else near[number % len(near)] if near else same[number % len(same)]
        )
        used.add(index)
        pairs.append((nic, index))
    for index, host in enumerate(remote):
        same_local = [n for n in local if family(n.host) == family(host)]
        if index not in used and same_local:
            near_local = [n for n in same_local if n.reaches(host)]
            pairs.append(
                (near_local[0] if near_local else same_local[index % len(same_local)], index)
            )
    return pairs


def host_id() -> str:
    """The same for all processes of one running kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
