"""The whole profile: measured piece by piece, and written as a cluster file."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ratrain.profile import links, memory, products
from ratrain.profile.attention import AttentionTime, attention_times
from ratrain.profile.links import MessageTime
from ratrain.profile.products import ProductTime

Progress = Callable[[int, int], None]
STEPS = 6


@dataclass(frozen=True)
class MachineProfile:
    """What was measured, and in `missing` what was not and why."""

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


def measure(progress: Progress | None = None) -> MachineProfile:
    """This machine's profile."""
    report = progress or _quiet
    report(0, STEPS)
    times = tuple(products.product_times())
    report(1, STEPS)
    memory_rate, copies = memory.memory_bytes_per_s(), memory.device_copy_bytes_per_s()
    report(2, STEPS)
    messages = links.message_times()
    latency_s, bandwidth = links.latency_and_bandwidth(messages)
    report(3, STEPS)
    written, read = memory.disk_bytes_per_s()
    report(4, STEPS)
    start_s = products.launch_s()
    report(5, STEPS)
    attention = tuple(attention_times())
    report(6, STEPS)
    return MachineProfile(
        name=platform.machine() or "machine",
        products=times,
        launch_s=start_s,
        memory_bytes_per_s=memory_rate,
        capacity_bytes=memory.capacity_bytes(),
        device_copy_bytes_per_s=copies,
        messages=tuple(messages),
        latency_s=latency_s,
        bandwidth_bytes_per_s=bandwidth,
        disk_free_bytes=memory.disk_free_bytes(),
        disk_write_bytes_per_s=written,
        disk_read_bytes_per_s=read,
        missing=tuple(_missing()),
        attention=attention,
    )


def _quiet(_done: int, _total: int) -> None:
    """Progress that nobody watches."""


def _missing() -> Iterator[str]:
    if not products.torch_installed():
        yield "products in fp16 and bf16, and on a GPU: torch is not installed"
        yield "attention: torch is not installed; it is priced as other products"
        yield "copies between host and GPU memory: torch is not installed"
    elif not products.gpu_present():
        yield "anything on a GPU, and copies to and from it: torch sees none"
    yield "links to other machines: one machine was measured, over its loopback"


def cluster_toml(profile: MachineProfile) -> str:
    """A cluster file: this machine's CPU, all of its cores, as one device; its loopback as link.

    Rates are the fastest product of each dtype on the CPU; peaks are not measured and stand at
    the same figure. Every product and message is listed in comments.
    """
    rates, attention = _cpu_rates(profile), _attention_rates(profile)
    lines = [
        '# Written by `ratrain profile`. A job names it: [cluster] name = "this-file.toml"',
        'name = "profiled"',
        'source = "ratrain profile, this machine"',
        "",
        "[[device]]",
        f'name = "{profile.name}-cpu"',
        f'launch = "{profile.launch_s * 1e6:.3f}us"',
        'launch_source = "measured: a numpy product of one element"',
        "memory_efficiency = 1.0",
        'memory_efficiency_source = "the bandwidth below is what a copy reached"',
        "",
        "[[device.tiers]]",
        'name = "RAM"',
        f'capacity = "{profile.capacity_bytes / 1e9:.3f}GB"',
        f'bandwidth = "{profile.memory_bytes_per_s / 1e9:.3f}GB/s"',
        'source = "capacity: as the system says; bandwidth: measured, a large copy"',
        "",
        "[[device.tiers]]",
        'name = "disk"',
        f'capacity = "{profile.disk_free_bytes / 1e9:.3f}GB"',
        f'bandwidth = "{profile.disk_write_bytes_per_s / 1e9:.3f}GB/s"',
        'source = "measured: free bytes of the temporary folder; written and flushed there"',
    ]
    for dtype, rate in rates.items():
        source = "measured: the fastest product on the CPU; the peak is not known"
        lines += [
            "",
            "[[device.rates]]",
            f'dtype = "{dtype}"',
            f'peak = "{max(rate, attention.get(dtype, 0.0)) / 1e9:.3f}GFLOP/s"',
            f'gemm = "{rate / 1e9:.3f}GFLOP/s"',
        ]
        if dtype in attention:
            lines.append(f'attention = "{attention[dtype] / 1e9:.3f}GFLOP/s"')
            source += "; attention: both directions of the longest causal one"
        lines.append(f'source = "{source}"')
    lines += [
        "",
        "[[host]]",
        'name = "this"',
        f'device = "{profile.name}-cpu"',
        "devices = 1",
        "count = 1  # raise it for more machines like this one",
        "",
        "[links.room]",
        f'latency = "{profile.latency_s * 1e6:.3f}us"',
        f'bandwidth = "{profile.bandwidth_bytes_per_s / 1e9:.3f}GB/s"',
        'source = "measured: two processes over a loopback socket; no other machine was reached"',
        "",
        *_comments(profile),
    ]
    return "\n".join(lines) + "\n"


def _cpu_rates(profile: MachineProfile) -> dict[str, float]:
    """FLOP/s of the fastest product of each dtype."""
    found: dict[str, float] = {}
    for time in profile.products:
        if time.device == "cpu":
            found[time.dtype] = max(found.get(time.dtype, 0.0), time.flops_rate)
    return found


def _attention_rates(profile: MachineProfile) -> dict[str, float]:
    """FLOP/s of the last, largest attention of each dtype on the CPU."""
    return {time.dtype: time.flops_rate for time in profile.attention if time.device == "cpu"}


def _comments(profile: MachineProfile) -> Iterator[str]:
    for time in profile.products:
        what = f"{time.library} {time.device} {time.dtype} {time.m} x {time.n} x {time.k}"
        yield f"# product {what}: {time.time_s * 1e6:.1f} us, {time.flops_rate / 1e9:.1f} GFLOP/s"
    for time in profile.attention:
        what = f"{time.sequences} x {time.heads} heads, {time.tokens} x {time.head_dim}"
        took = f"{time.forward_s * 1e6:.1f} us forward, {time.backward_s * 1e6:.1f} us backward"
        rate = f"{time.flops_rate / 1e9:.1f} GFLOP/s"
        yield f"# attention torch {time.device} {time.dtype} {what}: {took}, {rate}"
    for message in profile.messages:
        yield f"# message {message.size_bytes} bytes: {message.time_s * 1e6:.1f} us"
    for reason in profile.missing:
        yield f"# not measured: {reason}"
