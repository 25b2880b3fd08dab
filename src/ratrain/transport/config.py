"""The options of an engine. Every option is a field with its meaning below it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ratrain.errors import SpecError

PROVIDERS = ("shm", "sock")
KNOWN = ("shm", "ofi", "sock")
DEVICES = ("system", "cuda", "rocr", "ze", "neuron", "synapseai")
"""libfabric's kinds of memory, in the order of its numbers for them."""


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS 1.3 between hosts. `Tls()` alone: throw-away certificates, trusted because both sides
    prove the job's secret. With files (PEM, all three): both sides also show a certificate signed
    by the authority."""

    certificate: str | Path = ""
    """This host's certificate, and any between it and the authority."""
    key: str | Path = ""
    """The certificate's private key, without a password."""
    authority: str | Path = ""
    """The certificates that sign the peers'."""

    def __post_init__(self) -> None:
        given = [bool(str(p)) for p in (self.certificate, self.key, self.authority)]
        if any(given) and not all(given):
            raise SpecError(
                "certificate, key and authority go together, and some are missing",
                place="Config.tls",
                fix="give all three, or none to use the job's secret alone",
            )


@dataclass(frozen=True, slots=True)
class Config:
    """Options of an engine."""

    secret: bytes = b""
    """The job's shared secret, at least 16 bytes: whoever has it may write to descriptors."""
    name: str = "engine"
    """The engine's name in messages."""
    nics: str | tuple[str, ...] = "loopback"
    """Where to listen and send from: "loopback", "all", or names of interfaces or addresses."""
    providers: tuple[str, ...] = PROVIDERS
    """The providers allowed, best first. A single one is forced; there is no silent fallback."""
    fabric: str = "tcp;ofi_rxm"
    """libfabric's provider for `ofi`: "efa", "verbs;ofi_rxm", "tcp;ofi_rxm", as `fi_info` lists."""
    devices: tuple[str, ...] = ()
    """Kinds of device memory that `ofi` must reach, as libfabric names them, e.g. "cuda"."""
    tls: Tls | None = None
    """Encrypt what `sock` sends. (`shm` never leaves the host.)"""
    connect_timeout_s: float = 5.0
    """How long a first connection is tried before the peer counts as down."""
    deadline_s: float = 60.0
    """The deadline of a transfer or wait that is given none."""
    ping_s: float = 1.0
    """Silence after which a link is pinged."""
    suspect_s: float = 3.0
    """Silence after which a peer is SUSPECT."""
    dead_s: float = 10.0
    """Silence after which a peer is DEAD: all its transfers and waits fail."""
    nic_dead_s: float = 2.5
    """Silence after which one NIC is dropped while another NIC of the same peer answers."""
    reconnect_s: float = 1.0
    """How often a dropped NIC is tried again."""
    piece_bytes: int = 0
    """Size of a piece; 0 means 256 KiB on several NICs, 1 MiB on one, 16 MiB where the peer reads
    our memory itself."""
    send_buffer_bytes: int = 0
    """SO_SNDBUF of each connection; 0 leaves it to the kernel."""
    congestion: str = ""
    """TCP's congestion control, e.g. "bbr"; "" means the kernel's, and "reno" within one host."""
    spin_s: float = 150e-6
    """How long a waiter polls before it sleeps, as long as that has paid off lately; 0: never."""
    on_callback_error: Callable[[BaseException], None] | None = None
    """Receives what a callback raised; without it, the error is logged. Both ways it is counted."""

    def __post_init__(self) -> None:
        if len(self.secret) < 16:
            raise SpecError(
                f"the job secret has {len(self.secret)} bytes",
                place="Config.secret",
                fix="give every process of the job the same 16 bytes or more, "
                "e.g. secrets.token_bytes(32)",
            )
        if not self.ping_s < self.suspect_s < self.dead_s:
            raise SpecError("need ping_s < suspect_s < dead_s", place="Config", fix="order them so")
        if not 0 <= self.spin_s <= 0.001:
            raise SpecError("spin_s must be 0 to 0.001 seconds", place="Config.spin_s")
        if self.piece_bytes and not 4096 <= self.piece_bytes <= 4 << 20:
            raise SpecError("piece_bytes must be 4096..4194304", place="Config.piece_bytes")
        if self.tls is not None and "ofi" in self.providers:
            raise SpecError(
                "libfabric moves payloads outside TLS: they would travel unencrypted",
                place="Config.tls",
                fix='leave "ofi" out of Config.providers, or leave tls out',
            )
        unreachable = set(self.devices) - set(DEVICES)
        if unreachable or (self.devices and "ofi" not in self.providers):
            raise SpecError(
                f"no provider reaches memory on {', '.join(sorted(unreachable or self.devices))}",
                place="Config.devices",
                fix=f'choose among {", ".join(DEVICES[1:])}, and list "ofi" in Config.providers',
            )
        unknown = set(self.providers) - {*KNOWN, "loopback"}
        if unknown or not self.providers:
            raise SpecError(
                f"unknown provider {sorted(unknown)}",
                place="Config.providers",
                fix=f"choose among {', '.join(KNOWN)}",
            )
