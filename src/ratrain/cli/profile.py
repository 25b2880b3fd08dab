"""`ratrain profile`: this machine measured, and written as a cluster file."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.option(
    "-o",
    "output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a cluster file that jobs can name.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys carry their unit.")
def command(output: Path | None, as_json: bool) -> None:
    """Measure this machine in under two minutes: matrix products by shape and dtype, memory,
    messages between two processes by size, disk. With torch installed, products in bf16 and on
    a GPU too, and causal attention forward and backward. Says what it could not measure.

    A job names the file as its cluster, or a device of a cluster file names it as its `profile`.

    \b
    Example: ratrain profile -o this-machine.toml
    """
    from ratrain.cli.progress import progress
    from ratrain.describe.tables import as_json as plain
    from ratrain.errors import SpecError
    from ratrain.profile.machine import cluster_toml, measure

    if output is not None and not output.parent.is_dir():
        raise SpecError("no such folder", place=str(output.parent), fix="create it first")
    with progress("measuring", "parts") as tick:
        found = measure(tick)
    if output is not None:
        output.write_text(cluster_toml(found), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(plain(found), indent=2))
        return
    for time in found.products:
        shape = f"{time.m} x {time.n} x {time.k}"
        click.echo(
            f"{time.library} {time.device} {time.dtype:<5}{shape:>20}"
            f"{time.flops_rate / 1e9:>12,.1f} GFLOP/s"
        )
    for one in found.attention:
        what = f"{one.sequences} x {one.heads} x {one.tokens} x {one.head_dim}"
        click.echo(
            f"torch {one.device} {one.dtype:<5}{what:>20}"
            f"{one.flops_rate / 1e9:>12,.1f} GFLOP/s attention, both directions"
        )
    click.echo(f"memory copy   {found.memory_bytes_per_s / 1e9:8.2f} GB/s")
    click.echo(
        f"disk          {found.disk_write_bytes_per_s / 1e9:8.2f} GB/s written, "
        f"{found.disk_read_bytes_per_s / 1e9:.2f} GB/s read"
    )
    for message in found.messages:
        click.echo(f"message {message.size_bytes:>11,} bytes {message.time_s * 1e6:>10,.1f} us")
    click.echo(
        f"loopback: latency {found.latency_s * 1e6:.1f} us, "
        f"{found.bandwidth_bytes_per_s / 1e9:.2f} GB/s"
    )
    for reason in found.missing:
        click.echo(f"not measured: {reason}")
    if output is not None:
        click.echo(f"written: {output}")
