"""`ratrain lab chaos`: a job trained on a lab's hosts while they fail."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratrain.cli.terminal.jobs import set_values
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import PATH, Real, Whole

if TYPE_CHECKING:
    from ratrain.runtime.run.chaos import Audit

KINDS = "kill,host,hang,cut,slow"


@click.command()
@click.argument("job", type=PATH)
@click.option("--run", type=PATH, metavar="FOLDER", help="The run's folder. [default: in runs/]")
@click.option(
    "--faults",
    default=KINDS,
    show_default=True,
    metavar="KIND,...",
    help="What happens: kill a host's ranks, take a host away, hang its kernel, cut its link, "
    "slow its processors.",
)
@click.option(
    "--seed", type=Whole(0, 1 << 31), default=0, show_default=True, help="Draws what, where, when."
)
@click.option(
    "--every",
    "every_s",
    type=Real(1.0, 1e6),
    default=29.0,
    show_default=True,
    metavar="SECONDS",
    help="From one fault's end to the next one, on average.",
)
@click.option(
    "--lasts",
    "lasts_s",
    type=Real(0.1, 1e6),
    default=8.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a host is away, cut or slow, on average.",
)
@click.option(
    "--for",
    "most_s",
    type=Real(1.0, 1e7),
    default=1800.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop the run then, if it has not ended.",
)
@set_values
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def chaos(
    job: Path,
    run: Path | None,
    faults: str,
    seed: int,
    every_s: float,
    lasts_s: float,
    most_s: float,
    overrides: tuple[str, ...],
    as_json: bool,
) -> int:
    """Train JOB on a lab's hosts while they fail, one fault after another.

    Starts the run as `ratrain launch hosts RUN --restarts N` does, and audits it at the end: every
    step must count exactly once, whatever happened. One seed draws the same faults again.
    Hosts have one device each.

    The exit status is 1 if a step is missing or came twice in a start, else the run's.

    \b
    Example:
      ratrain lab chaos job.toml --seed 7 --faults kill,host,slow --every 20
    """
    from ratrain.cli.runs.train import new_run, prepare_data
    from ratrain.cli.terminal.progress import progress
    from ratrain.plan import load_job
    from ratrain.runtime.run.chaos import Chaos, host_ranks, run_chaos
    from ratrain.runtime.run.prepare import RunRequest
    from ratrain.runtime.run.ready import Launcher

    kinds, asked = _kinds(faults), load_job(job, overrides)
    host_ranks(asked)
    with ExitStack() as owning:
        launcher = Launcher("ratrain lab chaos", _say, prepare_data, owning, starts_here=False)
        ready = new_run(launcher, RunRequest(job, overrides=overrides), run, None, None)
    wanted = ready.spec.end_step
    plan = Chaos(seed, kinds, every_s, lasts_s, most_s)
    with progress("training", "steps") as report:
        found = run_chaos(ready.folder, ready.job, plan, lambda steps: report(steps, wanted))
    if as_json:
        print_json("lab chaos", {"run": str(ready.folder.path), **_body(found)})
    else:
        click.echo("\n".join(audit_lines(found, ready.folder.path)))
    return 1 if found.wrong_steps else found.status


def _say(line: str) -> None:
    click.echo(line, err=True)


def _kinds(text: str) -> tuple[str, ...]:
    from ratrain.describe.strict import nearest
    from ratrain.errors import SpecError
    from ratrain.lab.faults import FAULTS

    kinds = tuple(word.strip() for word in text.split(",") if word.strip())
    for kind in kinds:
        if kind not in FAULTS:
            raise SpecError(
                f"no kind of fault is called {kind!r}",
                place="--faults",
                fix=nearest(kind, list(FAULTS)),
            )
    if not kinds:
        raise SpecError("no kind of fault", place="--faults", fix=f"use {KINDS}")
    return kinds


def _body(found: Audit) -> dict[str, Any]:
    from ratrain.describe.tables import as_json as plain
    from ratrain.runtime.run.reports.goodput import goodput_json

    return {
        "status": found.status,
        "steps": found.steps,
        "wanted_steps": found.wanted_steps,
        "wrong_steps": list(found.wrong_steps),
        "again_loss_difference": found.again_loss_difference,
        "median_step_time_s": found.median_step_s,
        "faults": plain(found.faults),
        "goodput": goodput_json(found.goodput),
        "log": str(found.log),
    }


def audit_lines(found: Audit, run: Path) -> list[str]:
    """The verdict first."""
    from statistics import median

    from ratrain.describe.lines import wrapped
    from ratrain.describe.units import format_time
    from ratrain.lab.faults import FAULTS

    count = f"{found.steps} of {found.wanted_steps} steps"
    if found.wrong_steps:
        listed = ", ".join(map(str, found.wrong_steps[:10]))
        verdict = f"NOT SOUND: of {count}, these are missing or came twice: {listed}"
    elif found.is_clean:
        verdict = f"nothing lost: each of {count} counts exactly once"
    else:
        verdict = f"the run failed with status {found.status} after {count}: see {found.log}"
    if not any(each.hit for each in found.faults):
        verdict += "; but no fault met a host that trained: give a longer run, or a smaller --every"
    lines = [*wrapped(verdict), ""]
    lines.append(
        f"{'at':>8}  {'fault':6}{'host':14}{'lasted':>9}{'longest wait':>14}  started again"
    )
    for each in found.faults:
        lasted = f"{each.lasted_s:.1f} s" if FAULTS[each.kind].lasts else ""
        again = f"yes, {each.steps_again} steps done again" if each.restarted else "no"
        again = again if each.hit else "no: it was left out"
        lines.append(
            f"{each.at_s:>6.1f} s  {each.kind:6}{each.host:14}{lasted:>9}"
            f"{each.longest_wait_s:>12.1f} s  {again}"
        )
    waits = sorted(each.longest_wait_s for each in found.faults if each.restarted)
    lines.append("")
    if waits:
        lines.append(
            f"from a fault to a step after a new start: median {format_time(median(waits))}, worst "
            f"{format_time(waits[-1])}"
        )
    if any(each.steps_again for each in found.faults):
        lines.append(
            "losses of steps that were done again differ from those of the first time by "
            f"{found.again_loss_difference:.1e} at most, relatively"
        )
    if found.goodput is not None:
        lines.append(
            f"goodput {found.goodput.fraction:.1%}; a step takes "
            f"{format_time(found.median_step_s)} in the median"
        )
    lines.append(f"ratrain report {run} shows the run; its output: {found.log}")
    return [part for line in lines for part in (wrapped(line) if len(line) > 80 else [line])]
