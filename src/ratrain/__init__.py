"""RATrain: a training step is a program over states, planned, proved, simulated and run.

In a notebook or a script (docs/how-to/python.md):

    import ratrain

    job = ratrain.load_job("examples/small.toml")
    ratrain.plan(job)          # the fastest layouts that fit
    ratrain.build(job)         # the program of one step
    ratrain.verify(job)        # its proof: it cannot deadlock, and fits in memory
    ratrain.simulate(job)      # its predicted step
    ratrain.schedules(job)     # every compute order on it; .search() looks for a faster one
    run = ratrain.train(job)   # real processes, as `ratrain train` starts them
    ratrain.report(run)        # a page to look at

Nothing but this file is imported until one of them is used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratrain.api.following import Followed, follow
    from ratrain.api.jobs import Job, load_job
    from ratrain.api.on_ray import ray_trainer
    from ratrain.api.pages import Page, report
    from ratrain.api.plans import Plan, Plans, plan
    from ratrain.api.predictions import Prediction, simulate
    from ratrain.api.programs import BuiltProgram, Proof, build, verify
    from ratrain.api.runs import Run, load_run
    from ratrain.api.schedule_checks import ScheduleCheck, check_schedule
    from ratrain.api.schedules import OrderSearch, Schedules, schedules
    from ratrain.api.training import StepProgress, train
    from ratrain.errors import RatrainError

__all__ = [
    "BuiltProgram",
    "Followed",
    "Job",
    "OrderSearch",
    "Page",
    "Plan",
    "Plans",
    "Prediction",
    "Proof",
    "RatrainError",
    "Run",
    "ScheduleCheck",
    "Schedules",
    "StepProgress",
    "__version__",
    "build",
    "check_schedule",
    "follow",
    "load_job",
    "load_run",
    "plan",
    "ray_trainer",
    "report",
    "schedules",
    "simulate",
    "train",
    "verify",
]
__version__ = "0.1.0"

_HOME = {
    "Followed": "api.following",
    "follow": "api.following",
    "Job": "api.jobs",
    "load_job": "api.jobs",
    "ray_trainer": "api.on_ray",
    "Page": "api.pages",
    "report": "api.pages",
    "Plan": "api.plans",
    "Plans": "api.plans",
    "plan": "api.plans",
    "Prediction": "api.predictions",
    "simulate": "api.predictions",
    "BuiltProgram": "api.programs",
    "Proof": "api.programs",
    "build": "api.programs",
    "verify": "api.programs",
    "Run": "api.runs",
    "StepProgress": "api.training",
    "load_run": "api.runs",
    "ScheduleCheck": "api.schedule_checks",
    "check_schedule": "api.schedule_checks",
    "OrderSearch": "api.schedules",
    "Schedules": "api.schedules",
    "schedules": "api.schedules",
    "train": "api.training",
    "RatrainError": "errors",
}
"""Where each public name lives."""


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = _public(name)
    # `plan`, `report` and `simulate` are rooms by now, which can be called: see _Package.
    return globals().setdefault(name, value)


def _public(name: str) -> Any:
    """The object behind a public name; a SpecError where it needs a package that is not there."""
    try:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    except ImportError as error:
        from ratrain.extras import missing_extra

        missing = missing_extra(error, f"ratrain.{name}")
        if missing is None:
            raise
        raise missing from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Room(ModuleType):
    """A room that has the name of a public function, and is called as that function."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return _function(self)(*arguments, **options)

    @property
    def __signature__(self) -> Any:
        from inspect import signature

        return signature(_function(self))


def _function(room: ModuleType) -> Any:
    name = room.__name__.rpartition(".")[2]
    return _public(name)


class _Package(ModuleType):
    """This package. Importing a module of the room `plan` puts the room where the function `plan`
    is looked for; so rooms of such names can be called."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOME and isinstance(value, ModuleType):
            value.__class__ = _Room
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
