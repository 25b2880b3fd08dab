"""`ratrain fit`: what a model needs, and what must move where, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ratrain.cli.terminal import completion
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import Whole

if TYPE_CHECKING:
    from ratrain.describe.job import JobSpec
    from ratrain.plan.search import Way

HOST_RATE, DISK_RATE = "25GB/s", "2GB/s"
CLUSTER = "a100-80g-dgx"


@click.command()
@click.option(
    "--model",
    required=True,
    shell_complete=completion.models,
    help="A preset, a Hugging Face folder, its config.json, or a hub id that is on this machine.",
)
@click.option(
    "--memory", metavar="SIZE", help="Of each device, as 24GB. [default: as the cluster says]"
)
@click.option(
    "--host", metavar="SIZE", help="Host memory that each device may use for optimizer states."
)
@click.option(
    "--host-rate",
    metavar="RATE",
    help=f"Between device and host memory. [default: as the cluster says, or {HOST_RATE}, assumed]",
)
@click.option("--disk", metavar="SIZE", help="Disk that each device may use for them.")
@click.option(
    "--disk-rate",
    metavar="RATE",
    help=f"Read and written. [default: as the cluster says, or {DISK_RATE}, assumed]",
)
@click.option(
    "--cluster",
    shell_complete=completion.clusters,
    help=f"Whose device it is: a preset, or a file of `ratrain profile`. [default: {CLUSTER}]",
)
@click.option(
    "--devices", type=Whole(1, 4096), default=1, show_default=True, help="Equal ones, of one host."
)
@click.option(
    "--sequence",
    type=Whole(1, 1 << 27),
    metavar="S",
    help="Tokens of a sequence. [default: 2048, or the model's most]",
)
@click.option(
    "--batch",
    type=Whole(1, 1 << 20),
    default=8,
    show_default=True,
    metavar="N",
    help="Sequences of a step.",
)
@click.option(
    "--dtype",
    type=click.Choice(["bf16", "fp16", "fp32"]),
    default="bf16",
    show_default=True,
    help="In which devices compute.",
)
@click.option(
    "--gradient-dtype",
    type=click.Choice(["fp32", "bf16", "fp16"]),
    default="fp32",
    show_default=True,
    help="In which gradients add up: 16 bits take half, and round.",
)
@click.option(
    "--optimizer",
    default="adamw",
    show_default=True,
    help="As [train] optimizer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(model: str, as_json: bool, **asked: Any) -> None:
    """What fits a memory: which activations are recomputed, where the optimizer's states wait, how
    fast a step is then, the longest sequence, the largest micro-batch, and memory that is enough.

    Each line is the planner's best plan of that way, proved to fit. Sequence, micro-batch and
    memory that is enough are by an upper bound, of which no program was proved. The exit
    status is 3 if nothing fits.

    \b
    Examples:
      ratrain fit --model gpt-neo-2.7b --memory 24GB --host 64GB --disk 1TB
      ratrain fit --model llama-3.1-8b --cluster this.toml --disk 1TB
    """
    from ratrain.cli.planning.fit_job import job_to_fit
    from ratrain.cli.terminal.progress import progress
    from ratrain.describe.lines import wrapped
    from ratrain.errors import Infeasible
    from ratrain.plan.search import ways_of

    asked["cluster_is_default"] = asked["cluster"] is None
    asked["cluster"] = asked["cluster"] or CLUSTER
    job, assumed = job_to_fit(model, asked, {"host": HOST_RATE, "disk": DISK_RATE})
    with progress("simulating", "plans") as report:
        ways = ways_of(job, report)
    if as_json:
        body = {"headline": _headline(job), "ways": [_json(way) for way in ways]}
        print_json("fit", {**body, "assumed": assumed})
    else:
        said = [part for line in (*_advice(ways), *assumed) for part in wrapped(line)]
        click.echo("\n".join([*_headline(job), "", *_table(ways), "", *said]))
    if not any(way.best for way in ways):
        raise SystemExit(Infeasible.exit_code)


def _headline(job: JobSpec) -> list[str]:
    from ratrain.cost.blocks import total_params
    from ratrain.describe.units import format_bytes, format_bytes_rate, format_count

    model, batch, schedule = job.model, job.batch, job.schedule
    memory, *below = job.cluster.kinds[0].tiers
    tiers = [
        f"{tier.name} {format_bytes(tier.capacity_bytes)} at "
        f"{format_bytes_rate(tier.bandwidth_bytes_per_s)}"
        for tier in below
    ]
    sizes = ", ".join([format_bytes(memory.capacity_bytes), *tiers])
    devices = f"{job.cluster.devices} x {job.cluster.kinds[0].name}: {sizes}"
    return [
        f"{model.spec.name}, {format_count(total_params(model.spec))} parameters",
        devices,
        f"{schedule.dtype}, gradients add up in {schedule.gradients_add_up_in}, "
        f"{job.train.optimizer}; {batch.sequences} sequences of {model.sequence_length:,} tokens "
        "a step",
    ]


def _table(ways: tuple[Way, ...]) -> list[str]:
    rows = [("", "step", "tokens/s", "peak", "needs", "moved")]
    rows += [(way.name, *_cells(way)) for way in ways]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        "  ".join(
            cell.ljust(width) if not number else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return [
        *table,
        "needs: memory of a device that is enough, by an upper bound; moved: to its",
        "  tier and back, a step",
    ]


def _cells(way: Way) -> tuple[str, ...]:
    from ratrain.describe.units import format_bytes, format_time

    least = format_bytes(way.least_memory_bytes) if way.least_memory_bytes else "-"
    moved = format_bytes(way.moved_bytes) if way.tier else "-"
    if way.best is None:
        return "does not fit", "-", "-", least, moved
    tokens, peak = f"{way.tokens_per_s:,.0f}", format_bytes(way.memory_bytes)
    return format_time(way.best.step_s), tokens, peak, least, moved


def _advice(ways: tuple[Way, ...]) -> list[str]:
    """What to do, and what to know about it."""
    from ratrain.describe.units import format_bytes, format_time

    lines: list[str] = []
    for way in ways:
        if way.tier and way.tier_bytes > way.tier_has_bytes:
            lines.append(
                f"{way.name}: it needs {format_bytes(way.tier_bytes)} there, and there are "
                f"{format_bytes(way.tier_has_bytes)}"
            )
    fitting = [way for way in ways if way.best is not None]
    if not fitting:
        least = min((way.least_memory_bytes for way in ways if way.least_memory_bytes), default=0)
        rounded = f"{-(-least // 100_000_000) / 10:g}GB"
        ending = (
            f"memory of a device that would do, by an upper bound: --memory {rounded}"
            if least
            else ("no memory would do")
        )
        return [*lines, f"nothing fits; {ending}"]
    fastest = max(fitting, key=lambda way: way.tokens_per_s)
    keys = ", ".join(f'{key} = "{fastest.tier}"' for key in fastest.sorts)
    key = f" ([schedule] {keys})" if keys else ""
    lines.append(f"fastest: {fastest.name}{key}")
    lines.append(
        f"with that fit sequences of {fastest.longest_sequence:,} tokens, or micro-batches of "
        f"{fastest.largest_micro_batch} (powers of two were tried, on an upper bound)"
    )
    for way in fitting:
        if way.tier and way.best is not None and way.moving_s > 0.5 * way.best.step_s:
            lines.append(
                f"{way.name}: moving takes {format_time(way.moving_s)} of the step, however many "
                "sequences it has: a larger --batch costs less a token"
            )
    return lines


def _json(way: Way) -> dict[str, Any]:
    return {
        "way": way.name,
        **way.places,
        "fits": way.best is not None,
        "step_time_s": way.best.step_s if way.best is not None else None,
        "tokens_per_s": way.tokens_per_s if way.best is not None else None,
        "memory_bytes": way.memory_bytes if way.best is not None else None,
        "least_memory_bytes": way.least_memory_bytes or None,
        "tier_bytes": way.tier_bytes,
        "moved_bytes_per_step": way.moved_bytes,
        "moving_time_s": way.moving_s,
        "longest_sequence_tokens": way.longest_sequence,
        "largest_micro_batch": way.largest_micro_batch,
    }
