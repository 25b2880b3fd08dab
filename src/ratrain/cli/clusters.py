"""`ratrain clusters`: the presets, or one cluster with the source of each constant."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ratrain.describe.cluster import ClusterSpec, DeviceKind, Link


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys carry their unit.")
def command(name: str | None, as_json: bool) -> None:
    """List the clusters, or show one with the source of each constant.

    NAME is a preset or the path of a cluster file (.toml).

    \b
    Example: ratrain clusters mt3000
    """
    from ratrain.describe.presets import cluster_names, cluster_preset, load_cluster
    from ratrain.describe.tables import as_json as plain

    if name is None:
        found = [cluster_preset(each) for each in cluster_names()]
        click.echo(json.dumps(plain(found), indent=2) if as_json else _list(found))
        return
    cluster = load_cluster(Path(name)) if name.endswith(".toml") else cluster_preset(name)
    click.echo(json.dumps(plain(cluster), indent=2) if as_json else _details(cluster))


def _list(found: list[ClusterSpec]) -> str:
    lines = [f"{'name':15}{'devices':>8}  kinds"]
    for cluster in found:
        size = "any" if cluster.size is None else str(cluster.size)
        lines.append(f"{cluster.name:15}{size:>8}  {cluster.device[0]}")
        lines += [f"{'':25}{kind}" for kind in cluster.device[1:]]
    return "\n".join(lines)


def _details(cluster: ClusterSpec) -> str:
    lines = [cluster.name, *_source(cluster.source)]
    for kind in cluster.device:
        lines += _device(kind)
    for host in cluster.host:
        where = f"room {host.room}, site {host.site}"
        lines += [
            "",
            f"host {host.name}: {host.devices} x {host.device}, count {host.count}, {where}",
        ]
        for level, link in host.links.items():
            lines += _link(level, link)
    lines += ["", "links"]
    for level, link in cluster.links.items():
        lines += _link(level, link)
    return "\n".join(lines)


def _device(kind: DeviceKind) -> list[str]:
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
    return lines + _source(kind.memory_efficiency_source)


def _link(level: str, link: Link) -> list[str]:
    from ratrain.describe.units import format_bytes_rate, format_time

    speed = f"{format_bytes_rate(link.bandwidth_bytes_per_s)}, {format_time(link.latency_s)}"
    return [f"  {level}: {speed}, one per {link.shared_by}", *_source(link.source)]


def _source(text: str) -> list[str]:
    return wrap(f"[{text}]", 79, initial_indent="    ", subsequent_indent="     ")
