"""`ratrain timeline`: a run's steps, as predicted and as measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ratrain.runtime.run.difference import RunDifference

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("run", type=PATH)
@click.option("--step", type=click.IntRange(1), help="A recorded step. [one of median length]")
@click.option("--trace", type=PATH, metavar="FILE", help="Write both as a trace for Perfetto.")
@click.option("--svg", type=PATH, metavar="FILE", help="Draw both as a picture.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys carry their unit.")
def command(
    run: Path, step: int | None, trace: Path | None, svg: Path | None, as_json: bool
) -> None:
    """Compare a step of RUN with its prediction, op by op.

    A run records every op of its last steps. A message's or collective's span
    begins when all of its ranks are there; the wait for them is not in it. Of
    ranks with the same part the first is shown.

    \b
    Examples:
      ratrain timeline runs/quickstart-ratrain
      ratrain timeline runs/quickstart-ratrain --svg step.svg --trace trace.json
    """
    from ratrain.runtime.run.difference import as_json as difference_json
    from ratrain.runtime.run.difference import difference_of
    from ratrain.runtime.run_folder import RunFolder
    from ratrain.timeline.perfetto import perfetto_traces
    from ratrain.timeline.picture import svg as svg_of
    from ratrain.timeline.timeline import write_whole

    found = difference_of(RunFolder(run), step)
    both = {"predicted": found.predicted, "measured": found.measured}
    if trace:
        write_whole(trace, perfetto_traces(both))
    if svg:
        write_whole(svg, svg_of(both))
    if as_json:
        click.echo(json.dumps(difference_json(found), indent=2))
    else:
        click.echo("\n".join(_lines(found)))


def _lines(found: RunDifference) -> Iterator[str]:
    """At most 80 columns."""
    measured = found.measured_step_s
    yield f"{f'step {found.step}':30}{'ops':>6}{'predicted':>14}{'measured':>14}{'ratio':>10}"
    yield _row("whole", None, found.predicted_step_s, measured)
    for kind in found.ops.kinds:
        yield _row(f"  {kind.kind}", kind.ops, kind.first_s, kind.second_s)
    yield ""
    yield "furthest apart"
    for op in found.worst():
        name = f"  rank {op.rank} {op.word}"
        yield _row(name, None, op.first.length_s, op.second.length_s)
    for what, spans in (("not run", found.ops.missing), ("not predicted", found.ops.extra)):
        if spans:
            yield f"{what}: {len(spans)} ops, first {spans[0].word}"


def _row(name: str, ops: int | None, predicted_s: float, measured_s: float | None) -> str:
    from ratrain.describe.units import format_time

    count = "" if ops is None else f"{ops:,}"
    if measured_s is None:
        return f"{name:30}{count:>6}{format_time(predicted_s):>14}{'-':>14}{'-':>10}"
    # A transfer predicted at no time has no ratio.
    ratio = f"{measured_s / predicted_s:.2f}" if predicted_s > 1e-9 else "-"
    return (
        f"{name:30}{count:>6}{format_time(predicted_s):>14}{format_time(measured_s):>14}{ratio:>10}"
    )
