"""One attempt at a run, from the launch of its ranks to its report."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ratrain.checkpoint.best import read_best
from ratrain.checkpoint.folder import step_of
from ratrain.checkpoint.listing import latest
from ratrain.describe.job import JobSpec
from ratrain.errors import RatrainError
from ratrain.lab.cluster import Lab
from ratrain.lab.needs import missing
from ratrain.runtime.attempts import begin_attempt
from ratrain.runtime.ownership import Claim
from ratrain.runtime.rank.progress import Progress, ProgressMeter
from ratrain.runtime.rank.trackers import trackers
from ratrain.runtime.run.launch import launch
from ratrain.runtime.run.watch import Follower
from ratrain.runtime.run_folder import RunFolder, RunSpec


@dataclass(frozen=True)
class Ending:
    """How an attempt ended. `step`: that of the newest checkpoint; `stopped`: before its end,
    because someone asked for it."""

    step: int
    stopped: bool


def run_session(
    folder: RunFolder,
    spec: RunSpec,
    *,
    claim: Claim,
    lab: Lab | None,
    restarts: int,
    first_step: int,
    show: Callable[[Progress | None, bool], None],
    say: Callable[[str], None],
) -> Ending:
    """Launches the ranks and watches them. `show` gets a step's `Progress`, or None where there is
    nothing new, and whether a stop was asked for; `say` a line where all ranks start again."""
    best = read_best(folder.path)
    before = best and (best.step, best.validation_loss)
    follower, meter = Follower(folder), ProgressMeter(spec.end_step, before)
    _clear_measurements(folder)
    begin_attempt(folder, first_step, lab=lab is not None, restarts=restarts)
    charts = trackers(folder.path)

    starts, going_on = 1, list[bool]()

    def left() -> int:
        return restarts + 1 - starts

    def tick() -> None:
        stopping = folder.stop_request.exists()
        rows = follower.new_rows()
        for row in rows:
            if going_on and "started_s" in row:
                going_on.clear()
                begin_attempt(folder, row["step"], lab=lab is not None, restarts=left())
            for chart in charts:
                chart.write(row)
            show(meter.take(row), stopping)
        if not rows:
            show(None, stopping)

    def starting_again(cause: RatrainError, goes_on: bool) -> None:
        nonlocal starts
        starts, step = starts + 1, newest_step(folder)
        how = "the other ranks go on" if goes_on else f"restarting from step {step}"
        say(f"{cause.what}; {how} (start {starts} of {restarts + 1})")
        if goes_on:
            going_on[:] = [True]  # from which step its first row says
        else:
            begin_attempt(folder, step, lab=lab is not None, restarts=left())

    try:
        launch(
            folder,
            spec,
            claim=claim,
            lab=lab,
            restarts=restarts,
            tick=tick,
            starting_again=starting_again,
        )
    finally:
        for chart in charts:
            chart.close()
    step = newest_step(folder)
    return Ending(step, stopped=step < spec.end_step)


def newest_step(folder: RunFolder) -> int:
    """The step of the newest whole checkpoint; 0 where there is none."""
    newest = latest(folder.checkpoints, skip_damaged=True)
    return (step_of(newest.path) or 0) if newest else 0


def _clear_measurements(folder: RunFolder) -> None:
    """What an earlier attempt measured must not be taken for this one's."""
    for path in (folder.path / "ranks").glob("records-*.json"):
        path.unlink()
    for path in (folder.measured, folder.predicted, folder.path / "prediction.json"):
        path.unlink(missing_ok=True)


@contextmanager
def lab_if_possible(
    job: JobSpec, spec: RunSpec, use_lab: bool, say: Callable[[str], None]
) -> Generator[Lab | None]:
    """The devices of a run's cluster made of this machine, where that is wanted and possible: as
    many as there are up to the last that a rank runs on."""
    reasons = missing() if use_lab else []
    if reasons:
        say(f"no lab on this machine: {'; '.join(reasons)}. Running without its limits.")
    if not use_lab or reasons:
        yield None
        return
    with Lab(job.cluster.spec, 1 + max(spec.device_numbers)) as lab:
        if lab.without_latency:
            say(f"the lab adds no latency on this machine: {lab.without_latency}.")
        yield lab


def torchrun_command(folder: Path, world_size: int) -> list[str]:
    """What to type on each of several machines, lines of one command."""
    return [
        "PYTHONSAFEPATH=1 torchrun --nnodes M --nproc-per-node P --node-rank N \\",
        "  --master-addr HOST --master-port 29500 \\",
        f"  -m ratrain.runtime.rank {folder.resolve()}",
        f"where M machines run P ranks each (M x P = {world_size}), N is the machine's number",
        "from 0, and HOST is the address of machine 0",
    ]
