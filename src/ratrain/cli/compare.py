"""`ratrain compare`: two runs, bit by bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ratrain.runtime.run.run_pair import RunPair

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("first", type=PATH, metavar="RUN")
@click.argument("second", type=PATH, metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys carry their unit.")
def command(first: Path, second: Path, as_json: bool) -> None:
    """Compare two runs: losses step by step, weights, step times.

    Losses of the steps that both have are compared bit by bit, then every buffer
    (weights and moments) of the newest checkpoint whose step both have.

    Exit status 0: identical bit by bit. 1: something differs, or there are no
    checkpoints that can be compared.

    \b
    Examples:
      ratrain compare runs/job-ratrain runs/job-baseline-1f1b
    """
    from ratrain.cli.progress import progress
    from ratrain.runtime.run.run_pair import as_json as pair_json
    from ratrain.runtime.run.run_pair import compare_runs
    from ratrain.runtime.run_folder import RunFolder

    with progress("comparing", "elements") as report:
        pair = compare_runs(RunFolder(first), RunFolder(second), report)
    click.echo(json.dumps(pair_json(pair), indent=2) if as_json else "\n".join(_lines(pair)))
    if not pair.identical:
        raise SystemExit(1)


def _lines(pair: RunPair) -> Iterator[str]:
    from ratrain.describe.units import format_time

    losses = pair.losses
    if losses.identical:
        yield f"losses   {losses.steps} steps, identical bit by bit"
    else:
        yield (
            f"losses   {losses.differing} of {losses.steps} differ, first at step "
            f"{losses.first_step}, by at most {losses.largest:.2g} of the loss"
        )
    yield f"weights  {_weights(pair)}"
    first_s, second_s = pair.step_time_s
    yield (
        f"step     {format_time(first_s)} and {format_time(second_s)}: "
        f"the second takes {pair.time_ratio:.3f} of the first's time"
    )


def _weights(pair: RunPair) -> str:
    if pair.weights is None:
        return f"not compared: {pair.problem}"
    unlike = [each for each in pair.weights if not each.identical]
    at = f"{len(pair.weights)} buffers of step {pair.checkpoint_step}"
    if not unlike:
        return f"all {at} identical bit by bit"
    worst = max(unlike, key=lambda each: each.largest)
    return (
        f"{len(unlike)} of {at} differ,\n         {worst.unit}/{worst.kind} in {worst.differing:,} "
        f"elements by at most {worst.largest:.2g}"
    )
