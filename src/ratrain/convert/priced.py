"""A converted plan on RATrain's clock, beside the time that its own file names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratrain.convert.cluster_text import cluster_text
from ratrain.convert.converted import CLUSTER_FILE, PLAN_FILE, Converted
from ratrain.cost.measured import Unmeasured
from ratrain.describe.lines import wrapped
from ratrain.describe.units import counted, format_bytes, format_time
from ratrain.plan import case_of_plan, load_plan, write_plan
from ratrain.readers.files import unwritable
from ratrain.readers.writing import write_whole
from ratrain.simulate.engine import Progress
from ratrain.simulate.long import simulate_proved
from ratrain.simulate.simulate import Simulation


@dataclass(frozen=True)
class Written:
    """The files that were written, and the plan's step where there is a plan."""

    files: tuple[Path, ...]
    simulation: Simulation | None


def write(converted: Converted, folder: Path) -> tuple[Path, ...]:
    """Writes cluster and plan into a folder."""
    texts = {CLUSTER_FILE: cluster_text(converted.cluster)}
    if converted.plan is not None:
        texts[PLAN_FILE] = write_plan(converted.plan)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    for name, text in texts.items():
        write_whole(folder / name, text)
    return tuple(folder / name for name in texts)


def priced(
    converted: Converted, files: tuple[Path, ...], progress: Progress | None = None
) -> Written:
    """The step of the plan that was written, read back from its file."""
    if converted.plan is None:
        return Written(files, None)
    plan = files[-1]
    case = case_of_plan(load_plan(plan), str(plan))
    try:
        simulation = simulate_proved(case.proved, case.costs, progress=progress)
    except Unmeasured as error:
        place = f"{files[0]} {error.place}"
        raise Unmeasured(error.what, place=place, fix=error.fix) from error
    return Written(files, simulation)


def as_json(converted: Converted, written: Written) -> dict[str, Any]:
    """What was made and what differs."""
    body: dict[str, Any] = {
        "written": [str(file) for file in written.files],
        "devices": converted.cluster.size,
        "kinds": [kind.name for kind in converted.cluster.device],
        "layer_profiles": sum(len(kind.layer_profile) for kind in converted.cluster.device),
        "differs": list(converted.differs),
    }
    if converted.plan is None or written.simulation is None:
        return body
    step = written.simulation
    theirs = converted.theirs
    return body | {
        "theirs": None
        if theirs is None
        else {"step_time_s": theirs.step_time_s, "how": theirs.how},
        "ours": {
            "step_time_s": step.step_time_s,
            "feasible": step.feasible,
            "bound_bytes": step.bound_bytes,
            "ratio": None if theirs is None else step.step_time_s / theirs.step_time_s,
        },
    }


def as_text(converted: Converted, written: Written) -> list[str]:
    """The same for people, in lines of at most 80 columns."""
    cluster = converted.cluster
    names = ", ".join(kind.name for kind in cluster.device)
    lines = [f"{counted(cluster.size or 0, 'device')} of {names}"]
    if written.simulation is not None:
        lines += ["", *_prices(converted, written.simulation)]
    lines += ["", "what differs:"]
    for sentence in converted.differs:
        lines += wrapped(f"- {sentence}")
    lines += ["", *(f"wrote {file}" for file in written.files)]
    last = written.files[-1]
    verb = "clusters" if converted.plan is None else "simulate"
    return [*lines, f"next: ratrain {verb} {last}"]


def _prices(converted: Converted, step: Simulation) -> list[str]:
    fits = "fits" if step.feasible else "DOES NOT FIT"
    lines = [
        f"RATrain  {format_time(step.step_time_s)} per step, simulated; proven peak "
        f"{format_bytes(step.bound_bytes)}: {fits}"
    ]
    if converted.theirs is not None:
        theirs = converted.theirs
        off = step.step_time_s / theirs.step_time_s - 1
        less = "less" if off < 0 else "more"
        lines.append(
            f"planner  {format_time(theirs.step_time_s)} per step, {theirs.how}; RATrain's is "
            f"{abs(off):.1%} {less}"
        )
    return lines
