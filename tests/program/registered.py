"""What a test declares, and its removal."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ratrain.cost.algorithms import ALGORITHMS
from ratrain.describe.optimizers import OPTIMIZERS
from ratrain.describe.own import OWN_MODELS
from ratrain.describe.runs_on import RUNS_ON
from ratrain.describe.saved import SAVED
from ratrain.plan.price.durations import OWN_COSTS
from ratrain.plan.price.trial import proof
from ratrain.plan.search.moves import MOVES
from ratrain.plugins import Registry
from ratrain.program.families import FAMILIES
from ratrain.program.kind import Kind, Lane
from ratrain.program.skeletons import SKELETONS
from ratrain.program.strategies import FURTHER_PASSES

TABLES: tuple[dict[str, Any] | Registry[Any], ...] = (
    SKELETONS,
    FURTHER_PASSES,
    FAMILIES,
    OWN_COSTS,
    ALGORITHMS,
    MOVES,
    OPTIMIZERS,
    OWN_MODELS,
    RUNS_ON,
    SAVED,
)


@contextmanager
def declared_inside(folder: Path | None = None) -> Generator[None]:
    """Whatever is declared inside is gone afterwards, and so are the modules of the folder, which
    can be imported inside."""
    before = [dict(table) for table in TABLES]
    declared, lanes = len(Kind), len(Lane)
    sys.path[:0] = [str(folder)] if folder else []
    try:
        yield
    finally:
        for kind in reversed(list(Kind)[declared:]):
            kind.forget()
        for lane in reversed(list(Lane)[lanes:]):
            lane.forget()
        for table, names in zip(TABLES, before, strict=True):
            for name in set(table) - set(names):
                del table[name]
        if folder:
            sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):
            if folder and (getattr(module, "__file__", None) or "").startswith(f"{folder}/"):
                del sys.modules[name]
        proof.cache_clear()  # by what names stood for
