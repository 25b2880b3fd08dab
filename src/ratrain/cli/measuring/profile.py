"""`ratrain profile`: this machine measured, and written as a cluster file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import click

from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import NEW_FILE, Whole
from ratrain.errors import SpecError

if TYPE_CHECKING:
    from ratrain.describe.model import ModelSpec
    from ratrain.profile.layers import LayersTimed
    from ratrain.profile.machine import MachineProfile

_WARNINGS = 8
_MOST_SIZE = 1_000_000


@click.command()
@click.option(
    "-o",
    "output",
    type=NEW_FILE,
    help="Write a cluster file that jobs can name.",
)
@click.option(
    "--layers",
    "models",
    multiple=True,
    metavar="MODEL",
    help="Also time this model's layer, embedding and head: a preset or a config.json. May be "
    "given several times.",
)
@click.option(
    "--sequence",
    type=Whole(1, 1 << 27),
    default=2048,
    show_default=True,
    metavar="N",
    help="Tokens per sequence.",
)
@click.option(
    "--micro-batch",
    "sizes",
    default="1,2,4",
    show_default=True,
    help="Sizes to time, separated by commas.",
)
@click.option(
    "--tensor",
    type=Whole(1, 1 << 16),
    default=1,
    show_default=True,
    metavar="N",
    help="Tensor degree: one rank's part of a layer is timed.",
)
@click.option(
    "--dtype",
    type=click.Choice(["fp32", "bf16", "fp16"]),
    default="fp32",
    show_default=True,
    help="Dtype of the timed layers.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="The device to measure.",
)
@click.option("--strict", is_flag=True, help="Fail, and write nothing, if a figure is doubtful.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(
    output: Path | None,
    models: tuple[str, ...],
    sequence: int,
    sizes: str,
    tensor: int,
    dtype: str,
    device: str,
    strict: bool,
    as_json: bool,
) -> None:
    """Measure this machine in under two minutes: matrix products by shape and dtype, memory,
    messages between two processes and what
    they take of the processors, disk. With torch installed, products in bf16 and on a GPU
    too, and causal attention forward and backward. Reports what it could not measure.

    --layers adds a layer profile: the forward and backward of the same functions that training
    runs, by micro-batch. Plans and simulations then use these times instead of formulas.

    Every figure is measured several times while the kernel's count of processor time is
    watched. If other programs used the processors, or the figure varied, it is marked as doubtful,
    in the output and in the file.

    A job names the file as its cluster, or a device of a cluster file names it as its `profile`.

    \b
    Examples:
      ratrain profile -o this-machine.toml
      ratrain profile -o this-machine.toml --strict
      ratrain profile --layers tiny-llama --sequence 256 -o this.toml
    """
    from ratrain.cli.terminal.progress import progress
    from ratrain.describe.tables import as_json as plain
    from ratrain.profile.cluster_file import cluster_toml
    from ratrain.profile.layers import LayersAsked, layer_profiles
    from ratrain.profile.machine import measure
    from ratrain.readers.writing import write_whole

    if output is not None and not output.parent.is_dir():
        raise SpecError("no such folder", place=str(output.parent), fix="create it first")
    counts = _sizes(sizes)
    requests = [
        LayersAsked(_model(name), sequence, counts, tensor, dtype, device) for name in models
    ]
    timed: list[LayersTimed] = []
    for request in requests:
        with progress(f"timing {request.model.name}", "micro-batches") as tick:
            timed.append(layer_profiles(request, tick))
    with progress("measuring", "parts") as tick:
        profile = measure(tick, device)
    profile = replace(
        profile,
        # Models may share an embedding or a head: a file has one entry for it.
        layers=tuple({entry.case: entry for model in timed for entry in model.entries}.values()),
        doubts=tuple(doubt for model in timed for doubt in model.doubts) + profile.doubts,
    )
    if profile.doubts and strict:
        first = profile.doubts[0]
        raise SpecError(
            f"{len(profile.doubts)} of {profile.figures} figures are doubtful, the first: "
            f"{first.figure} ({first.why}); nothing was written",
            place="ratrain profile",
            fix="stop other programs on this machine, or remove --strict",
        )
    if output is not None:
        write_whole(output, cluster_toml(profile))
    if as_json:
        print_json("profile", plain(profile))
    else:
        click.echo("\n".join(_lines(profile)))
        if output is not None:
            click.echo(f"written: {output}")
    for line in _doubts(profile):
        click.echo(line, err=True)


def _model(name: str) -> ModelSpec:
    from ratrain.describe.huggingface import load_config
    from ratrain.describe.presets import model_preset

    return load_config(Path(name)) if name.endswith(".json") else model_preset(name)


def _sizes(text: str) -> tuple[int, ...]:
    from ratrain.readers.files import shown
    from ratrain.readers.numbers import whole

    try:
        return tuple(sorted({whole(part.strip(), 1, _MOST_SIZE) for part in text.split(",")}))
    except ValueError as error:
        raise SpecError(
            f"{shown(text)} is not a list of sizes: {error}",
            place="--micro-batch",
            fix="write it as 1,2,4",
        ) from None


def _lines(profile: MachineProfile) -> Iterator[str]:
    """Every figure in at most 80 columns; `?` marks those that are doubtful."""
    from ratrain.profile.driving import DRIVING
    from ratrain.profile.layers import layer_figure
    from ratrain.profile.memory import DISK_READ, DISK_WRITE, MEMORY_COPY

    def mark(*figures: str) -> str:
        return "? " if profile.why(*figures) else "  "

    for time in profile.products:
        shape = f"{time.m} x {time.n} x {time.k}"
        yield (
            f"{mark(time.figure)}{time.library} {time.device} {time.dtype:<5}{shape:>20}"
            f"{time.flops_rate / 1e9:>12,.1f} GFLOP/s"
        )
    for time in profile.attention:
        shape = f"{time.sequences} x {time.heads} x {time.tokens} x {time.head_dim}"
        yield (
            f"{mark(time.figure)}torch {time.device} {time.dtype:<5}{shape:>20}"
            f"{time.flops_rate / 1e9:>12,.1f} GFLOP/s attention, both ways"
        )
    yield f"{mark(MEMORY_COPY)}memory copy   {profile.memory_bytes_per_s / 1e9:8.2f} GB/s"
    yield (
        f"{mark(DISK_WRITE, DISK_READ)}disk          "
        f"{profile.disk_write_bytes_per_s / 1e9:8.2f} GB/s written, "
        f"{profile.disk_read_bytes_per_s / 1e9:.2f} GB/s read"
    )
    for message in profile.messages:
        size, took = message.size_bytes, message.time_s * 1e6
        yield f"{mark(message.figure)}message {size:>11,} bytes {took:>10,.1f} us"
    yield (
        f"  loopback: latency {profile.latency_s * 1e6:.1f} us, "
        f"{profile.bandwidth_bytes_per_s / 1e9:.2f} GB/s"
    )
    if profile.driving is not None:
        yield (
            f"{mark(DRIVING)}moving bytes takes {profile.driving.per_message_s * 1e6:.0f} us of a "
            f"processor a message, {profile.driving.per_byte_s * 1e9:.2f} ns a byte"
        )
        yield f"  compute stands still {profile.driving.stall:.2f} times as long for it"
    for entry in profile.layers:
        yield from wrap(f"  {entry.case}", 80, subsequent_indent="    ")
        for time in entry.times:
            assert time.backward_s is not None, "both passes were measured"
            yield (
                f"{mark(layer_figure(entry.case, time.micro_batch))}"
                f"  micro-batch {time.micro_batch:<4}{time.forward_s * 1e3:>10.3f} ms forward"
                f"{time.backward_s * 1e3:>10.3f} ms backward"
            )
    for reason in profile.missing:
        yield from wrap(f"  not measured: {reason}", 80, subsequent_indent="    ")


def _doubts(profile: MachineProfile) -> Iterator[str]:
    """What to say on stderr about figures that are doubtful."""
    if not profile.doubts:
        return
    count = len(profile.doubts)
    yield f"warning: {count} of {profile.figures} figures are doubtful (marked ?):"
    for doubt in profile.doubts[:_WARNINGS]:
        yield from wrap(f"  {doubt.figure}: {doubt.why}", 80, subsequent_indent="    ")
    if count > _WARNINGS:
        yield f"  ... and {count - _WARNINGS} more"
    yield "  measure again when the machine is idle; --strict refuses such a profile"
