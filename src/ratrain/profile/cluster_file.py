"""A profile as a cluster file that jobs can name."""

from __future__ import annotations

from collections.abc import Iterator

from ratrain.profile import links
from ratrain.profile.driving import DRIVING, driving_toml
from ratrain.profile.layers import profile_toml
from ratrain.profile.machine import MachineProfile
from ratrain.profile.memory import (
    DEVICE_COPY,
    DISK_READ,
    DISK_WRITE,
    MEMORY_COPY,
    capacity_bytes,
)
from ratrain.profile.products import LAUNCH


def cluster_toml(profile: MachineProfile) -> str:
    """A cluster file: this machine's CPU, all of its cores, or its GPU as one device; its loopback
    as link.

    Rates are the fastest product of each dtype there; peaks are not measured and stand at the
    same figure. Every product and message is listed in comments. What is doubtful is marked where
    it stands.
    """
    rates, attention = _rates(profile), _attention_rates(profile)
    name = f"{profile.name}-{profile.device}"
    processor = {"cpu": "CPU", "cuda": "GPU"}[profile.device]
    messages = [message.figure for message in profile.messages]
    large = [message.figure for message in profile.messages if message.size_bytes >= 1 << 20]
    lines = [
        '# Written by `ratrain profile`. A job names it: [cluster] name = "this-file.toml"',
        *_warning(profile),
        'name = "profiled"',
        'source = "ratrain profile, this machine"',
        "",
        "[[device]]",
        f'name = "{name}"',
        f'launch = "{profile.launch_s * 1e6:.3f}us"' + _mark(profile, LAUNCH),
        'launch_source = "measured: a numpy product of one element"',
        "memory_efficiency = 1.0",
        'memory_efficiency_source = "the bandwidth below is what a copy reached"',
        "",
        "[[device.tiers]]",
        f'name = "{"RAM" if profile.device == "cpu" else "HBM"}"',
        f'capacity = "{profile.capacity_bytes / 1e9:.3f}GB"',
        f'bandwidth = "{profile.memory_bytes_per_s / 1e9:.3f}GB/s"' + _mark(profile, MEMORY_COPY),
        'source = "capacity: as the system reports; bandwidth: measured, a large copy"',
        *_host(profile),
        "",
        "[[device.tiers]]",
        'name = "disk"',
        f'capacity = "{profile.disk_free_bytes / 1e9:.3f}GB"',
        f'bandwidth = "{profile.disk_bytes_per_s / 1e9:.3f}GB/s"'
        + _mark(profile, DISK_WRITE, DISK_READ),
        'shared_by = "host"',
        'source = "measured: free bytes of the temporary folder; as many bytes written and flushed '
        'there as read"',
        *_driving(profile),
    ]
    for dtype, rate in rates.items():
        source = f"measured: the fastest product on the {processor}; the peak is not known"
        lines += [
            "",
            "[[device.rates]]",
            f'dtype = "{dtype}"',
            f'peak = "{max(rate, attention.get(dtype, 0.0)) / 1e9:.3f}GFLOP/s"',
            f'gemm = "{rate / 1e9:.3f}GFLOP/s"' + _mark(profile, *_products_of(profile, dtype)),
        ]
        if dtype in attention:
            mark = _mark(profile, *_attentions_of(profile, dtype)[-1:])
            lines.append(f'attention = "{attention[dtype] / 1e9:.3f}GFLOP/s"{mark}')
            source += "; attention: both directions of the longest causal one"
        lines.append(f'source = "{source}"')
    lines += profile_toml(profile.layers, lambda figure: _mark(profile, figure))
    lines += [
        "",
        "[[host]]",
        'name = "this"',
        f'device = "{name}"',
        "devices = 1",
        "count = 1  # raise it for more machines like this one",
        "",
        "[links.room]",
        f'latency = "{profile.latency_s * 1e6:.3f}us"' + _mark(profile, messages[0]),
        f'bandwidth = "{profile.bandwidth_bytes_per_s / 1e9:.9g}GB/s"' + _mark(profile, *large),
        "by_size = [",
        *_bandwidths(profile),
        "]",
        'source = "measured: two processes over a loopback socket; no other machine was measured"',
        "",
        *_comments(profile),
    ]
    return "\n".join(lines) + "\n"


def _warning(profile: MachineProfile) -> Iterator[str]:
    """The header of a file that is not to be trusted."""
    if profile.doubts:
        count = len({doubt.figure for doubt in profile.doubts})
        yield f"# WARNING: {count} of {profile.figures} figures are doubtful. Something else ran on"
        yield "# this machine. Each is marked `DOUBTFUL` below; measure again when it is quiet."


def _host(profile: MachineProfile) -> Iterator[str]:
    """The host's memory beside a GPU's, at the rate of copies there and back."""
    if profile.device_copy_bytes_per_s is None or profile.device == "cpu":
        return
    there, back = profile.device_copy_bytes_per_s
    yield from ("", "[[device.tiers]]", 'name = "host"')
    yield f'capacity = "{capacity_bytes() / 1e9:.3f}GB"'
    yield f'bandwidth = "{2 / (1 / there + 1 / back) / 1e9:.3f}GB/s"' + _mark(profile, DEVICE_COPY)
    yield 'source = "capacity: as the system reports, of the whole host; bandwidth: measured"'


def _driving(profile: MachineProfile) -> Iterator[str]:
    """What the device's own processors take to move bytes, where these are its own."""
    if profile.driving is not None:
        yield from ("", *driving_toml(profile.driving, _mark(profile, DRIVING)))


def _mark(profile: MachineProfile, *figures: str) -> str:
    """The comment behind a value that rests on one of these figures, where one is doubtful."""
    reason = profile.why(*figures)
    return f"  # DOUBTFUL: {reason}" if reason else ""


def _products_of(profile: MachineProfile, dtype: str) -> list[str]:
    """The figures on which a dtype's rate rests: a busy moment may have hidden a faster one."""
    kind = profile.device, dtype
    return [time.figure for time in profile.products if (time.device, time.dtype) == kind]


def _attentions_of(profile: MachineProfile, dtype: str) -> list[str]:
    """The figures of a dtype's attentions, the largest last."""
    kind = profile.device, dtype
    return [time.figure for time in profile.attention if (time.device, time.dtype) == kind]


def _rates(profile: MachineProfile) -> dict[str, float]:
    """FLOP/s of the fastest product of each dtype."""
    rates: dict[str, float] = {}
    for time in profile.products:
        if time.device == profile.device:
            rates[time.dtype] = max(rates.get(time.dtype, 0.0), time.flops_rate)
    return rates


def _attention_rates(profile: MachineProfile) -> dict[str, float]:
    """FLOP/s of the last, largest attention of each dtype."""
    return {
        time.dtype: time.flops_rate for time in profile.attention if time.device == profile.device
    }


def _bandwidths(profile: MachineProfile) -> Iterator[str]:
    """What the link reached at each size of message."""
    points = links.by_size(list(profile.messages), profile.latency_s, profile.bandwidth_bytes_per_s)
    for size, rate in points:
        mark = _mark(profile, links.message_figure(size))
        yield f'  {{size = "{size}B", bandwidth = "{rate / 1e9:.9g}GB/s"}},{mark}'


def _comments(profile: MachineProfile) -> Iterator[str]:
    def line(figure: str, text: str) -> str:
        return f"# {figure}: {text}{_mark(profile, figure).replace('  # ', '  <- ')}"

    for time in profile.products:
        yield line(time.figure, f"{time.time_s * 1e6:.1f} us, {time.flops_rate / 1e9:.1f} GFLOP/s")
    for time in profile.attention:
        took = f"{time.forward_s * 1e6:.1f} us forward, {time.backward_s * 1e6:.1f} us backward"
        yield line(time.figure, f"{took}, {time.flops_rate / 1e9:.1f} GFLOP/s")
    for message in profile.messages:
        yield line(message.figure, f"{message.time_s * 1e6:.1f} us")
    yield line(DISK_READ, f"{profile.disk_read_bytes_per_s / 1e9:.2f} GB/s")
    for reason in profile.missing:
        yield f"# not measured: {reason}"
