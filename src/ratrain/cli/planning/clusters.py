"""`ratrain clusters`: the presets, or one cluster with the source of each constant."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import click

from ratrain.cli.terminal import completion
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import PATH

if TYPE_CHECKING:
    from ratrain.describe.cluster import ClusterSpec, Link
    from ratrain.describe.device import DeviceKind
    from ratrain.describe.layer_profile import LayerProfile


@click.command()
@click.argument("name", required=False, shell_complete=completion.clusters)
@click.option(
    "--from",
    "engine",
    type=click.Choice(["slurm", "ray", "kubernetes"]),
    help="Write a cluster file of this engine's nodes.",
)
@click.option(
    "-o", "--output", type=PATH, metavar="FILE", help="With --from. [default: ENGINE.toml]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(name: str | None, engine: str | None, output: Path | None, as_json: bool) -> None:
    """List the clusters and device profiles, or show one with the source of every constant.

    NAME is a preset, a device profile, or the path of a cluster file (.toml). With --from,
    asks an engine for its nodes and writes them as a cluster file, by kind.

    \b
    Examples:
      ratrain clusters mt3000
      ratrain clusters --from slurm
    """
    if engine is not None:
        if name is not None or as_json:
            raise click.UsageError("--from writes a file: give no NAME and no --json with it")
        _write_from(engine, output or Path(f"{engine}.toml"))
        return
    from ratrain.describe.presets import cluster_names, cluster_preset, load_cluster
    from ratrain.describe.profiles import profile_names
    from ratrain.describe.tables import as_json as plain

    if name is None:
        clusters = [cluster_preset(preset) for preset in cluster_names()]
        profiles = [cluster_preset(preset) for preset in profile_names()]
        if as_json:
            print_json("clusters", {"clusters": plain(clusters), "profiles": plain(profiles)})
        else:
            click.echo(_list(clusters))
            click.echo("\ndevice profiles, for `profile =` in a [[device]] of a cluster file")
            click.echo("\n".join(_profile_line(profile.device[0]) for profile in profiles))
        return
    cluster = load_cluster(Path(name)) if name.endswith(".toml") else cluster_preset(name)
    if as_json:
        print_json("clusters", plain(cluster))
    else:
        click.echo(_details(cluster))


def _write_from(engine: str, file: Path) -> None:
    from ratrain.cli.planning.starting import require_new, write_new
    from ratrain.engines.clusters import SOURCES

    require_new(file)
    write_new(file, SOURCES[engine]())
    click.echo(f"wrote {file}: its first lines say what to measure")


def _list(clusters: list[ClusterSpec]) -> str:
    lines = [f"{'name':15}{'devices':>8}  kinds"]
    for cluster in clusters:
        size = "any" if cluster.size is None else str(cluster.size)
        lines.append(f"{cluster.name:15}{size:>8}  {cluster.device[0]}")
        lines += [f"{'':25}{kind}" for kind in cluster.device[1:]]
    return "\n".join(lines)


def _profile_line(kind: DeviceKind) -> str:
    layers = sum(entry.block == "layer" for entry in kind.layer_profile)
    shapes = len({entry.shape for entry in kind.layer_profile if entry.block == "layer"})
    measured = f"{layers:>3} measured layer{'s' * (layers != 1)}"
    return f"  {kind.name:20}{measured} of {shapes} shape{'s' * (shapes != 1)}"


def _details(cluster: ClusterSpec) -> str:
    lines = [cluster.name, *_source(cluster.source)]
    for kind in cluster.device:
        lines += _device(kind)
    for host in cluster.host:
        location = f"room {host.room}, site {host.site}"
        lines += [
            "",
            f"host {host.name}: {host.devices} x {host.device}, count {host.count}, {location}",
        ]
        for level, link in host.links.items():
            lines += _link(level, link)
    lines += ["", "links"]
    for level, link in cluster.links.items():
        lines += _link(level, link)
    return "\n".join(lines)


def _device(kind: DeviceKind) -> list[str]:
    from ratrain.describe.device import BY_OTHERS
    from ratrain.describe.units import (
        format_bytes,
        format_bytes_rate,
        format_flops_rate,
        format_time,
    )

    lines = ["", f"device {kind.name}, {kind.devices_per_chip} per chip"]
    for tier in kind.tiers:
        size, rate = (
            format_bytes(tier.capacity_bytes),
            format_bytes_rate(tier.bandwidth_bytes_per_s),
        )
        lines += [f"  tier {tier.name}: {size} at {rate}", *_source(tier.source)]
    for rate in kind.rates:
        peak, gemm = format_flops_rate(rate.peak_flops), format_flops_rate(rate.gemm_flops)
        lines += [f"  {rate.dtype}: peak {peak}, GEMM {gemm}", *_source(rate.source)]
    lines += [f"  launch: {format_time(kind.launch_s)}", *_source(kind.launch_source)]
    lines += [f"  memory efficiency: {kind.memory_efficiency:g}"]
    lines += _source(kind.memory_efficiency_source)
    if kind.driving != BY_OTHERS:
        driving = kind.driving
        lines += [
            f"  moving bytes: {format_time(driving.per_message_s)} a message, "
            f"{format_time(driving.per_byte_s)} a byte",
            f"  compute stands still {driving.stall:g} times as long",
            *_source(driving.source),
        ]
    return [*lines, *(line for entry in kind.layer_profile for line in _entry(entry))]


def _entry(entry: LayerProfile) -> list[str]:
    from ratrain.describe.units import format_time

    times = "; ".join(
        f"{time.micro_batch}: {format_time(time.forward_s)} + "
        + ("not measured" if time.backward_s is None else format_time(time.backward_s))
        for time in entry.times
    )
    sums = ", its group's sums included" if entry.sums == "included" else ""
    lines = wrap(f"{entry.case}{sums}", 78, initial_indent="  ", subsequent_indent="    ")
    lines += wrap(
        f"micro-batch: forward + backward {times}",
        78,
        initial_indent="    ",
        subsequent_indent="      ",
    )
    return lines + _source(entry.source)


def _link(level: str, link: Link) -> list[str]:
    from ratrain.describe.units import format_bytes, format_bytes_rate, format_time

    speed = f"{format_bytes_rate(link.bandwidth_bytes_per_s)}, {format_time(link.latency_s)}"
    points = "; ".join(
        f"{format_bytes(point.size_bytes)} {format_bytes_rate(point.bandwidth_bytes_per_s)}"
        for point in link.points
    )
    sized = wrap(f"by size: {points}", 78, initial_indent="    ", subsequent_indent="      ")
    return [
        f"  {level}: {speed}, shared by each {link.shared_by}",
        *(sized if points else []),
        *_source(link.source),
    ]


def _source(text: str) -> list[str]:
    return wrap(f"[{text}]", 79, initial_indent="    ", subsequent_indent="     ")
