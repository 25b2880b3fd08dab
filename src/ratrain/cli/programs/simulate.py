"""`ratrain simulate`: a job's program on a clock."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

import click

from ratrain.cli.terminal import completion
from ratrain.cli.terminal.jobs import set_values
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import PATH, Whole
from ratrain.cli.terminal.untrainable import notes, untrainable


@click.command()
@click.argument("job", metavar="JOB|PLAN", type=PATH)
@click.option(
    "--schedule",
    metavar="NAME",
    shell_complete=completion.schedules,
    help="Use this schedule instead of the job's.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="PASS",
    shell_complete=completion.passes,
    help="Leave out forward-recovery, layerwise-state-pipeline or update-prefetch.",
)
@click.option(
    "--steps",
    type=Whole(1, 64),
    metavar="N",
    default=4,
    show_default=True,
    help="Steps to simulate.",
)
@click.option("--trace", type=PATH, help="Write a trace that Perfetto opens.")
@click.option("--svg", type=PATH, help="Draw one step (SVG).")
@click.option("--timeline", type=PATH, help="Write every span of time (JSON).")
@click.option("--picture", is_flag=True, help="Print the schedule (small programs).")
@set_values
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(
    job: Path,
    schedule: str | None,
    without: tuple[str, ...],
    steps: int,
    trace: Path | None,
    svg: Path | None,
    timeline: Path | None,
    picture: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Predict a job's step: its time, its memory, where the time goes.

    Takes a job file (.toml; planned first if it has no [layout]) or a plan file (.json). The
    program is proved, then simulated. One that does not fit is simulated anyway; the exit
    status is then 3.

    \b
    Examples:
      ratrain simulate examples/qwen32b-mt3000.toml
      ratrain simulate examples/qwen32b-mt3000.toml --without forward-recovery
      ratrain simulate examples/small.toml --picture --svg step.svg
    """
    from ratrain.cli.terminal.jobs import case_of_file
    from ratrain.cli.terminal.progress import progress
    from ratrain.readers.writing import write_whole
    from ratrain.simulate.long import simulate_proved
    from ratrain.simulate.simulate import timeline_of
    from ratrain.simulate.summary import as_json as summary_json
    from ratrain.simulate.summary import as_text
    from ratrain.timeline.compare import one_step
    from ratrain.timeline.perfetto import perfetto_trace
    from ratrain.timeline.picture import Panel
    from ratrain.timeline.picture import svg as svg_of
    from ratrain.timeline.timeline import write_timeline

    case = case_of_file(job, schedule, without, overrides)
    with progress("simulating", "ops") as report:  # the program is built and proved in here too
        simulation = simulate_proved(case.proved, case.costs, steps=steps, progress=report)
    if trace or svg or timeline:
        spans = timeline_of(simulation)
        if trace:
            write_whole(trace, perfetto_trace(spans))
        if svg:
            last = one_step(spans, max(span.step for span in spans.spans))
            title = job.stem + simulation.drawn_step
            write_whole(svg, svg_of([Panel(title, last, simulation.step_time_s)]))
        if timeline:
            write_timeline(spans, timeline)
    why = untrainable(case.job)
    if as_json:
        body = {"job": case.facts(), "untrainable": why, "unused": case.job.unused}
        body |= summary_json(simulation, case.job.tokens)
        print_json("simulate", body)
    else:
        click.echo("\n".join([*case.headline(), *notes(case.job, why), ""]))
        if picture:
            from ratrain.program.text.grid import draw

            click.echo("\n".join([*draw(simulation.program), ""]))
        click.echo("\n".join(as_text(simulation, case.job.tokens)))
        for finding in simulation.verdict.findings[:5]:
            message = f"{finding.rule}: {finding.message}"
            click.echo(fill(message, 80, subsequent_indent="  "), err=True)
    if not simulation.feasible:
        raise SystemExit(3)
