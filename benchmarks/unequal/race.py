"""One row run: plans made, methods in turns, outcomes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

from blocks import Blocks, measured_blocks
from cases import MODELS, Case, cluster_of
from field import Field
from ours import write_job
from outcomes import Outcome, together
from planning import Planned, lying, planned
from rows import Row, Shape
from split import BlockCosts, best_split, equal_split

from ratrain.lab import Lab

OURS = "ratrain"
EQUAL = f"{OURS}, equal layers"


@dataclass(frozen=True)
class Entrant:
    """Who runs in a row."""

    name: str
    words: str  # how the model lies on the devices
    field: Field
    method: str
    planned: Planned | None = None
    plan: Path | None = None

    def run(self) -> Outcome:
        return replace(self.field.run(self.method, self.plan), method=self.name)


@dataclass(frozen=True)
class Figures:
    """What one entrant did; its outcome's steps are the medians of its repetitions."""

    words: str
    outcome: Outcome
    ours: bool = False
    planned_s: float = 0.0  # a step, as the planner expects it
    layers: tuple[int, ...] = ()  # of the stages
    shares: tuple[float, ...] = ()  # of the stages' devices
    micro_batches: int = 0  # of a replica


@dataclass(frozen=True)
class Found:
    """A row and its figures, in the order in which they ran."""

    row: Row
    costs: BlockCosts
    figures: tuple[Figures, ...]

    def of(self, name: str) -> Figures | None:
        """Those of an entrant that ended."""
        ended = (f for f in self.figures if f.outcome.ended)
        return next((f for f in ended if f.outcome.method == name), None)

    @property
    def best_peer(self) -> Figures | None:
        ended = [f for f in self.figures if not f.ours and f.outcome.ended]
        return min(ended, key=lambda figures: figures.outcome.step_s, default=None)

    @property
    def loss_difference(self) -> float:
        """Between any two that ended, in any step that both have."""
        losses = [f.outcome.losses for f in self.figures if f.outcome.ended]
        return max((max(step) - min(step) for step in zip(*losses, strict=False)), default=0.0)


@dataclass(frozen=True)
class Ground:
    """Where a row is run: its lab, what its devices' blocks cost, and a folder."""

    row: Row
    lab: Lab
    blocks: Blocks
    folder: Path

    def entrants(self) -> Iterator[Entrant]:
        """Peers first; they take the planner's order of devices, and its micro-batch where their
        batch divides by it."""
        best = self._planned(OURS, self.row.case)
        assert best.planned is not None
        for shape in self.row.peers:
            yield self._peer(shape, best.planned)
        yield best
        if self.row.equal:
            layers = equal_split(
                sum(best.planned.candidate.layers), len(best.planned.candidate.layers)
            )
            yield self._by_plan(EQUAL, self.row.case, best.planned.with_layers(layers))
        if self.row.fewer:
            case = self.row.case.but(
                pipeline=self.row.fewer, shares=self.row.shares[: self.row.fewer]
            )
            yield self._planned(f"{OURS}, {self.row.fewer} devices", case)

    def _planned(self, name: str, case: Case) -> Entrant:
        job = self._field(case, name).folder / "job.toml"
        return self._by_plan(name, case, planned(job, self.row.pipeline))

    def _by_plan(self, name: str, case: Case, planned: Planned) -> Entrant:
        field = self._field(case, name)
        plan = planned.write(field.folder / "plan.json")
        return Entrant(name, planned.words, field, OURS, planned, plan)

    def _peer(self, shape: Shape, planned: Planned) -> Entrant:
        placed = (*planned.candidate.placement.devices, *planned.candidate.idle)
        order = [device.index for device in placed]
        shares = tuple(self.row.shares[device] for device in order)
        case = self.row.case.but(pipeline=shape.pipeline, data=shape.data, shares=shares)
        size = planned.candidate.job.batch.micro_batch
        if case.sequences // case.data % size == 0:
            case = case.but(micro_batch=size)
        stages = [shares[stage * case.data :][: case.data] for stage in range(case.pipeline)]
        layers = best_split(
            self.blocks.costs, MODELS[case.model].layers, [*map(min, stages)], case.micro_batches
        )
        field = self._field(case.but(layers=layers), shape.method)
        words = f"{lying(layers, stages)}, micro-batches of {case.micro_batch}"
        there = replace(field, lab=_in_order(self.lab, order))
        return Entrant(shape.method, words, there, shape.method)

    def _field(self, case: Case, name: str) -> Field:
        """The case written down, with what the devices' blocks cost."""
        folder = self.folder / name.replace(" ", "-").replace(",", "")
        case.write(folder, {share: self.blocks.toml(share) for share in case.shares})
        write_job(case, folder)
        return Field(case, folder, self.lab)


def _in_order(lab: Lab, order: Sequence[int]) -> Lab:
    """The same lab, whose rank i is at the place of device order[i]."""
    seen = copy(lab)
    seen.places = tuple(replace(lab.places[device], rank=rank) for rank, device in enumerate(order))
    return seen


def run_row(row: Row, repetitions: int, say: Callable[[str], None]) -> Found:
    """The entrants one after the other, again and again; one that failed is not run again."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        folder = Path(place)
        row.case.write(folder)
        with Lab(cluster_of(folder), row.case.ranks) as lab:
            blocks = measured_blocks(folder / "config.json", row.case.sequence_length, lab)
            entrants = list(Ground(row, lab, blocks, folder).entrants())
            runs: list[list[Outcome]] = [[] for _ in entrants]
            for number in range(repetitions):
                for entrant, entrant_runs in zip(entrants, runs, strict=True):
                    if all(run.ended for run in entrant_runs):
                        began_s = time.monotonic()
                        entrant_runs.append(entrant.run())
                        took = (
                            f"{_said(entrant_runs[-1])} ({time.monotonic() - began_s:.0f} s in all)"
                        )
                        say(f"{row.name}, {number + 1} of {repetitions}: {took}")
    pairs = zip(entrants, runs, strict=True)
    return Found(
        row, blocks.costs, tuple(_figures(entrant, entrant_runs) for entrant, entrant_runs in pairs)
    )


def _figures(entrant: Entrant, runs: list[Outcome]) -> Figures:
    outcome, planned = together(runs), entrant.planned
    if planned is None:
        return Figures(entrant.words, outcome)
    return Figures(
        entrant.words,
        outcome,
        True,
        planned.step_s,
        planned.candidate.layers,
        planned.shares,
        planned.candidate.micro_batches,
    )


def _said(outcome: Outcome) -> str:
    return f"{outcome.method} " + (outcome.failure or f"{outcome.step_s:.2f} s")
