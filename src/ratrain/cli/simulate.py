"""`ratrain simulate`: a job's program on a clock."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill

import click


@click.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--schedule", metavar="NAME", help="Another strategy than the job's, by name.")
@click.option(
    "--without",
    multiple=True,
    metavar="PASS",
    help="Leave a pass out: forward-recovery, layerwise-state-pipeline or update-prefetch.",
)
@click.option("--steps", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option("--trace", type=click.Path(path_type=Path), help="Write a trace for Perfetto.")
@click.option("--svg", type=click.Path(path_type=Path), help="Draw one step as a picture.")
@click.option("--timeline", type=click.Path(path_type=Path), help="Write the timeline as a file.")
@click.option("--picture", is_flag=True, help="Draw the schedule (small programs).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys carry their unit.")
def command(
    job: Path,
    schedule: str | None,
    without: tuple[str, ...],
    steps: int,
    trace: Path | None,
    svg: Path | None,
    timeline: Path | None,
    picture: bool,
    as_json: bool,
) -> None:
    """Run a job's program on a clock: step time, memory, where the time goes.

    JOB is a job file (.toml; planned first where it has no layout) or a plan file (.json). The
    program is proved first; one that does not fit is simulated
    all the same, and the exit status is 3.

    \b
    Examples:
      ratrain simulate examples/qwen32b-mt3000.toml
      ratrain simulate examples/qwen32b-mt3000.toml --without forward-recovery
      ratrain simulate examples/small.toml --picture --svg step.svg
    """
    from ratrain.cli.jobs import case_of_file
    from ratrain.cli.progress import progress
    from ratrain.simulate.simulate import simulate, timeline_of
    from ratrain.simulate.summary import as_json as summary_json
    from ratrain.simulate.summary import as_text
    from ratrain.timeline.perfetto import perfetto_trace
    from ratrain.timeline.picture import svg as svg_of
    from ratrain.timeline.timeline import write_timeline, write_whole

    case = case_of_file(job, schedule, without)
    with progress("simulating", "ops") as report:
        simulation = simulate(case.program, case.costs, steps=steps, progress=report)
    if trace or svg or timeline:
        spans = timeline_of(simulation)
        if trace:
            write_whole(trace, perfetto_trace(spans))
        if svg:
            write_whole(svg, svg_of({job.stem: spans}, step=max(s.step for s in spans.spans)))
        if timeline:
            write_timeline(spans, timeline)
    if as_json:
        body = {"job": case.facts(), **summary_json(simulation, case.tokens)}
        click.echo(json.dumps(body, indent=2))
    else:
        click.echo("\n".join([*case.headline(), ""]))
        if picture:
            from ratrain.program.grid import draw

            click.echo("\n".join([*draw(case.program), ""]))
        click.echo("\n".join(as_text(simulation, case.tokens)))
        for finding in simulation.verdict.findings[:5]:
            message = f"{finding.rule}: {finding.message}"
            click.echo(fill(message, 80, subsequent_indent="  "), err=True)
    if not simulation.feasible:
        raise SystemExit(3)
