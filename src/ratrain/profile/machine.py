"""The whole profile, measured piece by piece; which of its figures to doubt."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from ratrain.describe.layer_profile import LayerProfile
from ratrain.errors import SpecError
from ratrain.profile import links, memory, products
from ratrain.profile.attention import AttentionTime, attention_count, attention_times
from ratrain.profile.doubt import Doubt, Watch
from ratrain.profile.driving import DrivingTimes, driving_times
from ratrain.profile.links import MessageTime
from ratrain.profile.products import ProductTime
from ratrain.profile.quota import processors

Progress = Callable[[int, int], None]
T = TypeVar("T")
OTHER_PARTS = 5
"""Memory, messages, what these take of the processors, disk, launch."""
ABOVE = 1.2
"""How far a rate may lie above what bounds it: measurements are not exact."""


@dataclass(frozen=True)
class MachineProfile:
    """What was measured, and in `missing` what was not and why. `doubts` names the figures that
    something disturbed or that cannot be."""

    name: str
    products: tuple[ProductTime, ...]
    launch_s: float
    memory_bytes_per_s: float
    capacity_bytes: int
    device_copy_bytes_per_s: tuple[float, float] | None
    messages: tuple[MessageTime, ...]
    latency_s: float
    bandwidth_bytes_per_s: float
    disk_free_bytes: int
    disk_write_bytes_per_s: float
    disk_read_bytes_per_s: float
    missing: tuple[str, ...]
    attention: tuple[AttentionTime, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    device: str = "cpu"  # what the file describes: cpu, or cuda
    layers: tuple[LayerProfile, ...] = ()
    driving: DrivingTimes | None = None  # of a CPU: it moves its own bytes

    @property
    def disk_bytes_per_s(self) -> float:
        """Of as many bytes written as read, one after the other."""
        return 2 / (1 / self.disk_write_bytes_per_s + 1 / self.disk_read_bytes_per_s)

    @property
    def figures(self) -> int:
        """How many figures were measured."""
        layers = sum(len(entry.times) for entry in self.layers)
        others = 4 if self.driving is None else 5
        return len(self.products) + len(self.attention) + len(self.messages) + layers + others

    def why(self, *figures: str) -> str:
        """Why to doubt the first of these figures that is doubted; "" where none is."""
        reasons = {doubt.figure: doubt.why for doubt in self.doubts}
        return next((reasons[figure] for figure in figures if figure in reasons), "")


def measure(progress: Progress | None = None, device: str = "cpu") -> MachineProfile:
    """This machine's profile: of its CPU, all of its cores, or of its first GPU."""
    if device == "cuda" and not products.gpu_present():
        raise SpecError("torch sees no CUDA device", place="--device", fix="use --device cpu")
    watch = Watch()
    report = _Counted(progress, products.product_count() + attention_count() + OTHER_PARTS)
    times = tuple(report.each(products.product_times(watch)))
    capacity, memory_rate = (
        memory.gpu_memory(watch)
        if device == "cuda"
        else (memory.capacity_bytes(), memory.memory_bytes_per_s(watch))
    )
    copies = memory.device_copy_bytes_per_s(watch)
    report.next()
    messages = links.message_times(watch)
    latency_s, bandwidth = links.latency_and_bandwidth(messages)
    report.next()
    driving = driving_times(watch, processors()) if device == "cpu" else None
    report.next()
    write_bytes_per_s, read_bytes_per_s = memory.disk_bytes_per_s(watch)
    report.next()
    start_s = products.launch_s(watch)
    report.next()
    attention = tuple(report.each(attention_times(watch)))
    profile = MachineProfile(
        name=platform.machine() or "machine",
        products=times,
        launch_s=start_s,
        memory_bytes_per_s=memory_rate,
        capacity_bytes=capacity,
        device_copy_bytes_per_s=copies,
        messages=tuple(messages),
        latency_s=latency_s,
        bandwidth_bytes_per_s=bandwidth,
        disk_free_bytes=memory.disk_free_bytes(),
        disk_write_bytes_per_s=write_bytes_per_s,
        disk_read_bytes_per_s=read_bytes_per_s,
        missing=tuple(_missing()),
        attention=attention,
        device=device,
        driving=driving,
    )
    return replace(profile, doubts=tuple(_first_of_each([*watch.doubts, *implausible(profile)])))


def implausible(profile: MachineProfile) -> Iterator[Doubt]:
    """Figures that cannot be true beside the others."""
    fastest: dict[tuple[str, str], float] = {}
    for time in profile.products:
        kind = time.device, time.dtype
        fastest[kind] = max(fastest.get(kind, 0.0), time.flops_rate)
    for time in profile.attention:
        bound = fastest.get((time.device, time.dtype))
        if bound is not None and time.flops_rate > ABOVE * bound:
            share = time.flops_rate / bound
            yield Doubt(time.figure, f"{share:.1f} times the rate of the fastest product")
    rates = {
        memory.DISK_WRITE: profile.disk_write_bytes_per_s,
        memory.DISK_READ: profile.disk_read_bytes_per_s,
        profile.messages[-1].figure: profile.bandwidth_bytes_per_s,
    }
    for figure, rate in rates.items():
        if rate > ABOVE * profile.memory_bytes_per_s:
            yield Doubt(figure, "faster than a copy in memory")


def _first_of_each(doubts: Iterable[Doubt]) -> Iterator[Doubt]:
    seen: set[str] = set()
    for doubt in doubts:
        if doubt.figure not in seen:
            seen.add(doubt.figure)
            yield doubt


class _Counted:
    """Reports how many parts are measured."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._done, self._total = progress, 0, total
        self._report()

    def next(self) -> None:
        """One more."""
        self._done += 1
        self._report()

    def each(self, parts: Iterable[T]) -> Iterator[T]:
        """The parts, each counted once it is there."""
        for part in parts:
            self.next()
            yield part

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self._done, self._total)


def _missing() -> Iterator[str]:
    if not products.torch_installed():
        yield "products in fp16 and bf16, and on a GPU: torch is not installed"
        yield "attention: torch is not installed; it is costed like other products"
        yield "copies between host and GPU memory: torch is not installed"
    elif not products.gpu_present():
        yield "anything on a GPU, and copies to and from it: torch sees none"
    yield "links to other machines: one machine was measured, over its loopback"
