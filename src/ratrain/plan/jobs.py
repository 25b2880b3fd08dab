"""A job file read, with the names that this room and the program room know checked too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ratrain.describe.job import JobSpec, ScheduleSpec
from ratrain.describe.job_checks import Check
from ratrain.describe.job_file import job_of_file
from ratrain.errors import SpecError
from ratrain.plan.fixed_orders import ENDING
from ratrain.plan.gradient_groups import require_collective
from ratrain.program.strategies import STRATEGIES, combined, strategy
from ratrain.readers.faults import Faults
from ratrain.readers.place import Place


def load_job(path: Path | str, overrides: Sequence[str] = ()) -> JobSpec:
    """The job of a file, every choice resolved and every number checked against the others.
    `overrides`: values in place of the file's, as `--set` has them (see describe/overrides.py)."""
    return job_of_file(Path(path), overrides, _NAMES, keeps_layout=True)


def load_job_to_plan(path: Path | str, overrides: Sequence[str] = ()) -> JobSpec:
    """The job of a file without its [layout], which must be one but need not suit the rest: another
    is looked for."""
    return job_of_file(Path(path), overrides, _NAMES, keeps_layout=False)


def _check_names(place: Place, schedule: ScheduleSpec) -> None:
    """Refuses names of schedules, passes, compute orders and collectives that nothing has."""
    here, faults = place.at("schedule"), Faults()
    base = schedule.name if schedule.name in STRATEGIES else ScheduleSpec.name
    skeleton = schedule.skeleton
    if skeleton is not None and skeleton.endswith(ENDING):
        skeleton = None  # a file
    for check in (
        lambda: strategy(schedule.name),
        lambda: strategy(base, schedule.without),
        lambda: combined(STRATEGIES[base], skeleton, None),
        lambda: combined(STRATEGIES[base], None, schedule.passes),
        lambda: require_collective(schedule.collective),
    ):
        with faults:
            _at_key(check, here)
    faults.raise_all()


def _at_key(check: Callable[[], object], here: Place) -> None:
    """Makes a check; the key that its error names gets its line."""
    try:
        check()
    except SpecError as error:
        key = error.place.split()[-1]
        raise SpecError(error.what, place=str(here.at(key)), fix=error.fix) from None


_NAMES = (Check(("schedule",), _check_names),)
