"""What checkpoints hold of each unit, open: each entry is declared once, and saver, loader,
survivors of a lost rank and the check of a whole checkpoint go by the declaration.

An optimizer's states are entries by their names, as weights are: who declares an optimizer says no
more of them. A file of your own may declare others (docs/how-to/extending.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ratrain.plugins import Registry


class Regrouped(StrEnum):
    """What ranks that have an entry each by itself begin with, where other numbers of them saved
    it."""

    MEAN = "all begin with their mean"
    SUM = "the first begins with their sum, the others with zero"
    ZERO = "all begin with zero"


@dataclass(frozen=True)
class Saved:
    """An entry: one fp32 number for each element of a unit. It is of a rank's part of the unit, and
    is each replica's or site's own where their weights are.

    `name`: in checkpoints. `family`: of the states in which a program counts it; it is held, and
    saved, of the units that have such states, in the memory of their tier; "": its optimizer holds
    it. `begins`: what it begins with where a checkpoint has none, the name of an entry or "" for
    zero; None: without it a checkpoint is not whole. `alike`: all replicas and sites have the same.
    `whole`: each holder has its own of the whole unit. `hold`: "module:name" of what makes it of
    fp32 values (`optimizers.Held`). `asked`: of a program's setup, where its family has several."""

    name: str
    family: str = ""
    begins: str | None = None
    alike: bool = False
    whole: bool = False
    regrouped: Regrouped = Regrouped.MEAN
    hold: str = "ratrain.describe.optimizers:Plain"
    asked: Callable[[Any], bool] = lambda _: True

    def is_own(self, *, apart: bool) -> bool:
        """Whether it is a rank's, or its replica's or site's, own. `apart`: its weights are."""
        return self.whole or (apart and not self.alike)


SAVED: Registry[Saved] = Registry("checkpoint entry")


def declare_saved(saved: Saved) -> None:
    """Makes it known by its name."""
    SAVED.declare(saved.name, saved)


def saved_as(name: str) -> Saved:
    """The entry of a name; one that nobody declares is an optimizer's state."""
    return SAVED[name] if name in SAVED else Saved(name)


WEIGHTS, RESIDUAL = "weights", "residual"
OUTER_WEIGHTS, OUTER_MOMENTUM, OUTER_RESIDUAL = "outer_weights", "outer_momentum", "outer_residual"
_RESIDUAL = "ratrain.runtime.step.exchange.feedback:Residual"

declare_saved(Saved(WEIGHTS))
declare_saved(Saved(OUTER_WEIGHTS, "outer", begins=WEIGHTS, alike=True))
declare_saved(Saved(OUTER_MOMENTUM, "outer", begins="", alike=True))
declare_saved(
    Saved(
        OUTER_RESIDUAL,
        "outer",
        begins="",
        regrouped=Regrouped.ZERO,
        hold=_RESIDUAL,
        asked=lambda setup: bool(setup.average_wire),
    )
)
declare_saved(
    Saved(RESIDUAL, "residual", begins="", whole=True, regrouped=Regrouped.SUM, hold=_RESIDUAL)
)
