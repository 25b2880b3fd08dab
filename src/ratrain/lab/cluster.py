"""`Lab`: a cluster file's devices, made of this machine's own processors, memory and network."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from ratrain.describe.cluster import ClusterSpec, Device
from ratrain.describe.units import format_bytes, format_bytes_rate
from ratrain.errors import Infeasible
from ratrain.lab import delays, groups, record, relay_order, wires
from ratrain.lab.needs import missing, missing_for_latency
from ratrain.lab.place import Place
from ratrain.lab.ports import Port, lab_spec, memory_limit_bytes, ports

ENDING = (signal.SIGTERM, signal.SIGHUP)


class Lab:
    """A slow, small, unequal cluster in one machine, for as long as the `with` block runs.

    `places`: one for each device; a process goes in with `enter(place)`. `master_address`: where
    the launcher listens so that every rank reaches it, over a network that is not slowed.
    `without_latency`: why the file's latencies are not added, "" where they are.
    """

    def __init__(self, cluster: ClusterSpec, devices: int) -> None:
        """An error here says what in the cluster file a lab cannot make; nothing is made yet."""
        self.cluster = cluster
        self.devices = cluster.devices(devices)
        self.ports = ports(cluster, devices)
        self.delays = delays.delays(cluster.name, self.ports)
        self.without_latency = ""
        self.places: tuple[Place, ...] = ()
        self.master_address = ""
        self._record: record.Record | None = None
        self._relay: subprocess.Popen[bytes] | None = None
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Lab:
        if reasons := missing():
            raise Infeasible(
                f"this machine cannot run a lab: {'; '.join(reasons)}",
                place="lab",
                fix="run it as root, on a Linux with iproute2 and writable control groups",
            )
        record.clean()
        self._catch_signals()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ended = self._remove()
        if ended and error is None:
            raise Infeasible(
                f"the relay that adds latency ended by itself, with {ended}: from then on nothing "
                f"passed between far ranks",
                place="lab",
                fix="see its message above, or the kernel's log; then try again",
            )

    def limits(self) -> list[str]:
        """What is in force, in lines for people."""
        versions = {parent.version for parent in groups.here()}
        lines = [_rank_line(device) for device in self.devices]
        lines += [_port_line(port) for port in self.ports]
        lines += [f"control groups: version {' and '.join(map(str, versions)) or 'none'}"]
        lines += delays.lines(self.ports, self.delays, self.without_latency)
        return lines + _shortages(self.devices)

    def oom_kills(self, rank: int) -> int:
        """How many of the rank's processes the kernel killed because its memory ran out."""
        return groups.oom_kills(self.places[rank].cgroups)

    def _build(self) -> None:
        with record.alone():
            parents = groups.here()
            names = _free_names()
            tops = tuple(str(parent.path / names.lab) for parent in parents)
            spaces = tuple(names.namespaces(self.ports))
            pid = os.getpid()
            started = record.start_ticks(pid) or 0
            self._record = record.Record(names.lab, pid, started, spaces, names.outside, tops)
            record.write(self._record)
            wires.build(names, self.ports)
        self.master_address = names.master_address
        self.places = tuple(
            self._place(device, port, names, parents)
            for port in self.ports
            for device in self.devices
            if device.index in port.ranks
        )
        self.without_latency = missing_for_latency() if self.delays else ""
        if self.delays and not self.without_latency:
            self._add_latency(names, parents)

    def _add_latency(self, names: wires.Names, parents: list[groups.Parent]) -> None:
        """A relay, outside of every rank's groups, and the far pairs' packets led through it."""
        folders = [str(groups.make_beside(parent, names.lab, "relay")) for parent in parents]
        most_bytes = delays.buffers(self.ports, self.delays)
        order = relay_order.Order(
            os.getpid(),
            names.bridge,
            tuple(folders),
            tuple(relay_order.Held(d.interface, d.held_s, d.queue_bytes) for d in self.delays),
            tuple(
                relay_order.Buffers(names.port(port), most_bytes[port.index])
                for port in self.ports
                if port.index in most_bytes
            ),
        )
        self._relay = relay_order.start(order)
        wires.delay(names, self.ports, self.delays)

    def _place(
        self, device: Device, port: Port, names: wires.Names, parents: list[groups.Parent]
    ) -> Place:
        cpus, memory_bytes = lab_spec(device).cpus, memory_limit_bytes(device)
        rank = device.index
        folders = [groups.make(parent, names.lab, rank, cpus, memory_bytes) for parent in parents]
        return Place(
            rank,
            device.host,
            names.port(port),
            port.address,
            wires.DATA_INTERFACE,
            tuple(str(folder) for folder in folders),
            cpus,
            memory_bytes,
        )

    def _remove(self) -> str:
        """How the relay had ended before, "" where it had not. A signal that comes meanwhile
        waits: half a removal would leave the other half."""
        ended = ""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *ENDING})
        try:
            if self._record is not None and self._record.pid == os.getpid():  # not a fork of us
                ended = relay_order.stop(self._relay) if self._relay is not None else ""
                record.remove(self._record)
                self._record = self._relay = None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            self._handlers = {}
        return ended

    def _catch_signals(self) -> None:
        """A polite end of this process must end the lab too; only where nobody else listens."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                self._handlers[number] = signal.signal(number, _leave)


def _leave(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _free_names() -> wires.Names:
    """Names that no lab of this process has, and a control network that is not in use here."""
    taken = {lab.name for lab in record.records()}
    count = next(n for n in range(1000) if f"ratlab-{os.getpid()}-{n}" not in taken)
    in_use = subprocess.run(
        ["ip", "-4", "route", "show", "table", "all"], capture_output=True, text=True, check=False
    ).stdout
    network = next((n for n in range(256) if f"10.89.{n}." not in in_use), None)
    if network is None:
        raise Infeasible(
            "all of 10.89.0.0/16 is in use", place="lab", fix="stop other labs: `ratrain lab clean`"
        )
    return wires.Names(f"ratlab-{os.getpid()}-{count}", f"rl{os.getpid()}.{count}", network)


def _rank_line(device: Device) -> str:
    lab, memory = lab_spec(device), device.kind.memory.capacity_bytes
    return (
        f"rank {device.index} ({device.kind.name}): processors {lab.cpus:g}, "
        f"memory {format_bytes(memory)} + {format_bytes(lab.overhead_bytes)} overhead"
    )


def _port_line(port: Port) -> str:
    ranks = ", ".join(map(str, port.ranks))
    owners = f"rank {ranks}" if len(port.ranks) == 1 else f"ranks {ranks} share one port"
    rates = [f"{format_bytes_rate(rate)} {level}" for level, rate in port.rates_bytes_per_s]
    if port.inside_bytes_per_s is not None:
        rates.append(f"{format_bytes_rate(port.inside_bytes_per_s)} in all between these ranks")
    return f"{owners}: {port.address}, {'; '.join(rates) or 'no link'}"


def _shortages(devices: tuple[Device, ...]) -> list[str]:
    """What this machine has too little of for all devices at once."""
    lines: list[str] = []
    cpus, cores = sum(lab_spec(device).cpus for device in devices), os.cpu_count() or 1
    if cpus > cores:
        lines.append(
            f"{cpus:g} processors are needed and this machine has {cores}: ranks that compute "
            f"at the same time are slower than the file says"
        )
    memory = sum(map(memory_limit_bytes, devices))
    available = available_memory_bytes()
    if memory > available:
        lines.append(
            f"{format_bytes(memory)} of memory is needed and {format_bytes(available)} is free"
        )
    return lines


def available_memory_bytes() -> int:
    """Bytes that new processes can have without swapping (proc(5), MemAvailable)."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024
