"""What the product proves for a measured run's memory, with what its framework keeps besides.

A row becomes a job; its program is built and proved (`verify`) with the bytes of the row's
framework in its units, and billed by the planner's closed formulas with the same bytes. Beside
both is the bound of the program as we would run it, without any framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ratrain.plan import Case, case_of
from ratrain.plan.layout import Group, StateMode, kinds_of_block
from ratrain.plan.price import bill_of
from ratrain.program.replicas import Unit
from ratrain.program.setup import Accumulation, Setup
from ratrain.program.strategies import apply_strategy
from ratrain.program.units import RECOVERY_CODE
from ratrain.program.verify import verify
from ratrain.validate.frameworks import Framework, held_by, held_units
from ratrain.validate.predict import job_of
from ratrain.validate.rows import Run


@dataclass(frozen=True)
class MeasuredPeak:
    """A published figure. `runs`: what it may be of, where its source leaves something open.

    `rank` and `families`: whose bytes, and which of them; left out: the fullest rank, and all.
    """

    label: str
    runs: tuple[Run, ...]
    framework: Framework
    dropout: bool
    measured_bytes: float
    rank: int | None = None
    families: tuple[str, ...] = ()
    held_out: bool = False


@dataclass(frozen=True)
class PredictedPeak:
    """Bytes: the proof and the bill with the framework, and the proof of our own program."""

    proof_bytes: float
    bill_bytes: float
    own_bytes: float


STATES = ("view", "optimizer")
ACTIVATIONS = ("input", "saved")


def predicted_peak(peak: MeasuredPeak, run: Run) -> PredictedPeak:
    """The prediction for a peak, if it was of this run."""
    case = case_of(job_of(run))
    framework = peak.framework
    framework_setup = held_by(framework, case.setup, case.job, dropout=peak.dropout)
    fixed_bytes = 0 if peak.families else framework.fixed_bytes
    return PredictedPeak(
        _proof_bytes(case, framework_setup, peak) + fixed_bytes,
        _bill_bytes(case, peak) + fixed_bytes,
        _proof_bytes(case, case.setup, peak),
    )


def _proof_bytes(case: Case, setup: Setup, peak: MeasuredPeak) -> float:
    bounds = verify(apply_strategy(case.strategy, setup, case.choices)).bounds
    chosen = [bounds[peak.rank]] if peak.rank is not None else bounds
    return max(_sum(bound.by_family, peak.families) for bound in chosen)


def _sum(sizes: Mapping[str, int], families: tuple[str, ...]) -> int:
    return sum(size for name, size in sizes.items() if not families or name in families)


@dataclass(frozen=True)
class _HeldGroup(Group):
    """A planner's group whose units hold a framework's bytes."""

    framework: Framework
    dropout: bool

    @cached_property
    def units(self) -> tuple[Unit, Unit, Unit]:
        blocks = kinds_of_block(self.job)
        embedding, layer, head = held_units(
            self.framework, super().units, blocks, self.job, dropout=self.dropout
        )
        return embedding, layer, head


def _bill_bytes(case: Case, peak: MeasuredPeak) -> float:
    """The planner's bill of the case, as a group of one row."""
    setup, layout = case.program.setup, case.plan.layout
    stages = setup.replicas[0].stages
    recovery = np.array([[RECOVERY_CODE[stage.only.recovery] for stage in stages]])
    layers = [sum(unit.recoverable for unit in stage.only.units) for stage in stages]
    sharded = setup.accumulation is Accumulation.SHARDED
    group = _HeldGroup(
        job=case.job,
        layout=layout,
        placement=case.plan.placement,
        strategy=case.strategy,
        reversed_kinds=False,
        layers=np.array([layers], dtype=np.int64),
        modes=(StateMode(case.strategy.sharding, sharded),),
        mode=np.zeros(1, dtype=np.int64),
        buffer=np.array([setup.recovery_buffer], dtype=np.int64),
        times={},
        framework=peak.framework,
        dropout=peak.dropout,
    )
    items = bill_of(group, recovery).items
    by_rank = [
        _sum({name: int(size[0, rank]) for name, size in items.items()}, peak.families)
        for rank in range(layout.pipeline)
    ]
    return max(by_rank) if peak.rank is None else by_rank[peak.rank]
