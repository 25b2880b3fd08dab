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
from planning import Planned, WrittenPlan, best_of_all, lying, planned
from rows import Row, Shape
from split import BlockCosts, best_split, equal_split

from ratrain.lab import Lab

OURS = "ratrain"
EQUAL = f"{OURS}, equal layers"
TRIED = (1, 2)
"""Micro-batches that a pipeline is tried with besides the one chosen by its blocks' times."""


@dataclass(frozen=True)
class Entrant:
    """Who runs in a row."""

    name: str
    words: str  # how the model lies on the devices
    field: Field
    method: str
    planned_s: float | None = None
    plan: Path | None = None
    layout: Planned | None = None  # where it is one, whose layers are asked about

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
        """Peers first: in the planner's order of devices, with the micro-batch and the layers
        that an expert would choose by what the blocks take. Those times have no messages, so an
        expert also tries a pipeline with smaller micro-batches."""
        job = self._field(self.row.case, OURS).folder / "job.toml"
        alike = planned(job, self.row.pipeline)
        for shape in self.row.peers:
            chosen = self._peer(shape, alike)
            yield chosen
            for size in TRIED if shape.method == "pp" else ():
                if size < chosen.field.case.micro_batch:
                    yield self._peer(shape, alike, size)
        if self.row.pipeline:  # the question is how layers are divided, not over what
            yield self._by_layout(OURS, alike)
        else:
            yield self._by_plan(OURS, self.row.case, best_of_all(job))
        if self.row.equal:
            layers = equal_split(sum(alike.plan.alike.layers), len(alike.plan.alike.layers))
            yield self._by_layout(EQUAL, alike.with_layers(layers))
        if self.row.fewer:
            case = self.row.case.but(
                pipeline=self.row.fewer, shares=self.row.shares[: self.row.fewer]
            )
            name = f"{OURS}, {self.row.fewer} devices"
            job = self._field(case, name).folder / "job.toml"
            yield self._by_plan(name, case, best_of_all(job))

    def _by_layout(self, name: str, planned: Planned) -> Entrant:
        return replace(self._by_plan(name, self.row.case, planned.written), layout=planned)

    def _by_plan(self, name: str, case: Case, written: WrittenPlan) -> Entrant:
        field = self._field(case, name)
        plan = field.folder / "plan.json"
        plan.write_text(written.text)
        return Entrant(name, written.words, field, OURS, written.step_s, plan)

    def _peer(self, shape: Shape, planned: Planned, size: int | None = None) -> Entrant:
        """On all devices, in the planner's order of them; or on the first ones. Of devices that are
        hosts of their own, slow ones first and fast ones first are tried too."""
        placed = (*planned.plan.placement.devices, *planned.plan.idle)
        order = [device.index for device in placed]
        if shape.ranks < len(order):
            order = list(range(shape.ranks))
        orders = [order]
        if self.row.hosts is None:
            slow_first = sorted(order, key=lambda device: self.row.shares[device])
            orders += [slow_first, slow_first[::-1]]
        order, case, stages = min(
            (self._cut(shape, tried, size) for tried in orders),
            key=lambda cut: self._step_s(*cut[1:]),
        )
        name = shape.method if shape.ranks == len(placed) else f"{shape.method}, {shape.ranks}"
        name += "" if size is None else f", micro-batch {size}"
        words = f"{lying(case.layers, stages)}, micro-batches of {case.micro_batch}"
        there = replace(self._field(case, name), lab=_in_order(self.lab, order))
        return Entrant(name, words, there, shape.method)

    def _cut(
        self, shape: Shape, order: Sequence[int], size: int | None
    ) -> tuple[Sequence[int], Case, list[tuple[float, ...]]]:
        """A peer on devices in this order, cut as well as the blocks' times say; and the shares of
        each stage's devices."""
        shares = tuple(self.row.shares[device] for device in order)
        case = self.row.case.but(
            pipeline=shape.pipeline, data=shape.data, shares=shares, hosts=None
        )
        stages = [shares[stage * case.data :][: case.data] for stage in range(case.pipeline)]
        case = min(
            self._by_hand(case, [*map(min, stages)], size),
            key=lambda cut: self._step_s(cut, stages),
        )
        return order, case, stages

    def _by_hand(self, case: Case, shares: list[float], only: int | None) -> Iterator[Case]:
        """The best cut for each micro-batch that divides the batch and fills the pipeline, or for
        only one."""
        each = case.sequences // case.data
        for size in range(1, each + 1) if only is None else (only,):
            if each % size == 0 and each // size >= case.pipeline:
                layers = best_split(
                    self.blocks.costs(size), MODELS[case.model].layers, shares, each // size
                )
                yield case.but(micro_batch=size, layers=layers)

    def _step_s(self, case: Case, stages: Sequence[Sequence[float]]) -> float:
        costs = self.blocks.costs(case.micro_batch)
        return costs.step_s(case.layers, [*map(min, stages)], case.micro_batches)

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
        row,
        blocks.costs(),
        tuple(_figures(entrant, entrant_runs) for entrant, entrant_runs in pairs),
    )


def _figures(entrant: Entrant, runs: list[Outcome]) -> Figures:
    outcome, layout = together(runs), entrant.layout
    if entrant.planned_s is None:
        return Figures(entrant.words, outcome)
    figures = Figures(entrant.words, outcome, True, entrant.planned_s)
    if layout is None:
        return figures
    return replace(
        figures,
        layers=layout.plan.alike.layers,
        shares=layout.shares,
        micro_batches=layout.plan.alike.micro_batches,
    )


def _said(outcome: Outcome) -> str:
    return f"{outcome.method} " + (outcome.failure or f"{outcome.step_s:.2f} s")
