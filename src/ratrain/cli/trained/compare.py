"""`ratrain compare`: two runs, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import click

from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import RUN

if TYPE_CHECKING:
    from ratrain.runtime.run.reports.run_pair import RunPair


@click.command()
@click.argument("first", type=RUN, metavar="RUN")
@click.argument("second", type=RUN, metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(first: Path, second: Path, as_json: bool) -> None:
    """Compare two runs: losses step by step, weights, step times.

    Compares the losses of all steps that both have, then every buffer (weights and
    optimizer moments) of the latest checkpoint that both have.

    Exit status 0: identical bit by bit; or the runs' collectives add replicas in
    different orders, and losses are within 1e-4. 1: something else differs, or
    there are no checkpoints to compare.

    \b
    Examples:
      ratrain compare runs/job-ratrain runs/job-baseline-1f1b
    """
    from ratrain.cli.terminal.progress import progress
    from ratrain.runtime.run.reports.run_pair import as_json as pair_json
    from ratrain.runtime.run.reports.run_pair import compare_runs
    from ratrain.runtime.run_folder import RunFolder

    with progress("comparing", "elements") as report:
        pair = compare_runs(RunFolder(first), RunFolder(second), report)
    if as_json:
        print_json("compare", pair_json(pair))
    else:
        click.echo("\n".join(lines_of(pair)))
    if not pair.agrees:
        raise SystemExit(1)


def lines_of(pair: RunPair) -> Iterator[str]:
    """What is said of two runs."""
    from ratrain.describe.units import counted, format_time

    first, second = pair.precision
    if first != second:
        numbers = f"{first}; {second}: the runs round differently"
        yield from wrap(numbers, 80, initial_indent="numbers  ", subsequent_indent=" " * 9)
    orders = [order or "of replicas" for order in pair.sum_orders]
    if orders[0] != orders[1]:
        sums = f"gradients added in the order {orders[0]}; {orders[1]}: last bits may differ"
        yield from wrap(sums, 80, initial_indent="sums     ", subsequent_indent=" " * 9)
    losses = pair.losses
    if losses.identical:
        yield f"losses   {counted(losses.steps, 'step')}, identical bit by bit"
    else:
        yield (
            f"losses   {losses.differing} of {losses.steps} differ, first at step "
            f"{losses.first_step}, by at most {losses.largest:.2g} (relative)"
        )
    yield f"weights  {_weights(pair)}"
    first_s, second_s = pair.step_time_s
    faster, by = (
        ("first", pair.time_ratio) if pair.time_ratio >= 1 else ("second", 1 / pair.time_ratio)
    )
    yield (
        f"step     {format_time(first_s)} and {format_time(second_s)}: "
        f"the {faster} run is {by:.2f} x as fast"
    )


def _weights(pair: RunPair) -> str:
    from ratrain.describe.units import counted

    if pair.weights is None:
        return f"not compared: {pair.problem}"
    unlike = [difference for difference in pair.weights if not difference.identical]
    at = f"{counted(len(pair.weights), 'buffer')} of step {pair.checkpoint_step}"
    if not unlike:
        return f"all {at} identical bit by bit"
    worst = max(unlike, key=lambda difference: difference.largest)
    return (
        f"{len(unlike)} of {at} differ;\n         most in {worst.unit}/{worst.kind}: "
        f"{worst.differing:,} elements, by at most {worst.largest:.2g}"
    )
