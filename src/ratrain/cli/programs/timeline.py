"""`ratrain timeline`: a run's steps, as predicted and as measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import MOST_STEPS, PATH, RUN, Whole

if TYPE_CHECKING:
    from ratrain.runtime.run.reports.difference import RunDifference


@click.command()
@click.argument("run", type=RUN)
@click.option(
    "--step",
    type=Whole(1, MOST_STEPS),
    metavar="N",
    help="A recorded step. [default: nearest to the median length]",
)
@click.option(
    "--trace",
    type=PATH,
    metavar="FILE",
    help="Write a trace of the predicted and the measured step, for Perfetto.",
)
@click.option(
    "--svg", type=PATH, metavar="FILE", help="Draw the predicted and the measured step (SVG)."
)
@click.option(
    "--all", "every", is_flag=True, help="Show kinds and ops under a tenth of the step too."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(
    run: Path,
    step: int | None,
    trace: Path | None,
    svg: Path | None,
    every: bool,
    as_json: bool,
) -> None:
    """Compare a step of RUN with its prediction, op by op.

    A run records every op of its last steps. The span of a message or collective
    starts when all of its ranks have arrived; waiting for them is not part of it.
    Only the first replica is shown.

    \b
    Examples:
      ratrain timeline runs/quickstart-ratrain
      ratrain timeline runs/quickstart-ratrain --svg step.svg --trace trace.json
    """
    from ratrain.cli.terminal.progress import progress
    from ratrain.readers.writing import write_whole
    from ratrain.runtime.run.reports.difference import as_json as difference_json
    from ratrain.runtime.run.reports.difference import difference_of
    from ratrain.runtime.run_folder import RunFolder
    from ratrain.timeline.perfetto import perfetto_traces
    from ratrain.timeline.picture import Panel
    from ratrain.timeline.picture import svg as svg_of

    with progress("comparing"):
        difference = difference_of(RunFolder(run), step)
        timelines = {"predicted": difference.predicted, "measured": difference.measured}
        if trace:
            write_whole(trace, perfetto_traces(timelines))
        if svg:
            panels = [
                Panel("predicted", difference.predicted, difference.predicted_step_s),
                Panel(
                    f"measured, step {difference.step}",
                    difference.measured,
                    difference.measured_step_s,
                ),
            ]
            write_whole(svg, svg_of(panels))
    if as_json:
        print_json("timeline", difference_json(difference))
    else:
        click.echo("\n".join(_lines(difference, every)))


def _lines(difference: RunDifference, every: bool) -> Iterator[str]:
    """At most 80 columns. Kinds and ops under a tenth of the step only if `every` is asked for."""
    from ratrain.describe.lines import wrapped
    from ratrain.describe.units import counted, format_time
    from ratrain.runtime.run.reports.report_text import NOTABLE, against

    predicted_s, measured_s = difference.predicted_step_s, difference.measured_step_s
    if measured_s is not None and predicted_s > 0:
        said = against(measured_s / predicted_s)
        yield f"verdict: step {difference.step} took {format_time(measured_s)}, {said}"
        yield ""
    heads = f"{'ops':>6}{'predicted':>14}{'measured':>14}{'ratio':>10}"
    yield f"{f'step {difference.step}':30}{heads}"
    yield _row("whole", None, predicted_s, measured_s)
    ranks = len({span.rank for span in difference.predicted.spans})
    least_s = 0.0 if every else NOTABLE * max(predicted_s, measured_s or 0.0)
    kinds = difference.ops.kinds
    shown = [kind for kind in kinds if max(kind.first_s, kind.second_s) >= least_s * ranks]
    for kind in shown:
        yield _row(f"  {kind.kind}", kind.ops, kind.first_s, kind.second_s)
    if len(shown) < len(kinds):
        left_out = counted(len(kinds) - len(shown), "kind")
        yield from wrapped(f"  {left_out} of op under a tenth of the step a rank: --all")
    yield ""
    worst = [op for op in difference.worst() if abs(op.length_difference_s) >= least_s]
    yield "largest differences of single ops" + ("" if worst else ": under a tenth of the step")
    for op in worst:
        name = f"  rank {op.rank} {op.word}"
        yield _row(name, None, op.first.length_s, op.second.length_s)
    for title, spans in (
        ("predicted but not run", difference.ops.missing),
        ("run but not predicted", difference.ops.extra),
    ):
        if spans:
            yield f"{title}: {len(spans)} ops, the first is {spans[0].word}"


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
