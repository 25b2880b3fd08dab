"""What a page shows, as plain values. `facts/` fills it in; `page.py` and `figures/` draw it.

Nothing here knows programs, plans or runs, so that those may change without the page. Times are in
seconds and sizes in bytes; `None` stands for what is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ratrain.timeline.boxes import Box

Tone = Literal["good", "bad", "plain"]


@dataclass(frozen=True)
class Verdict:
    """The page's first line."""

    tone: Tone
    text: str
    findings: tuple[str, ...] = ()
    """What the verifier found, rule and words: for the terminal, as `simulate` says it."""


@dataclass(frozen=True)
class Tile:
    """One figure to see at once, with what it is to be compared with."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Card:
    """What one rank of a pipeline holds. `memory` is its proved bound by group of states."""

    rank: int
    stages: str  # "stage 0", or "stages 0, 4"
    layers: str  # "embedding, 2 layers"
    layer_count: int
    recovery: str
    device: str
    devices: str  # "devices 0-1": of all replicas that this one stands for
    memory: Mapping[str, int]
    bound_bytes: int
    budget_bytes: int | None


@dataclass(frozen=True)
class Chain:
    """A pipeline: replicas that are alike. `links[i]` leads from card i to the next one.
    `in_order`: each card hands on to the next; not so where ranks share a stage."""

    replicas: int
    cards: tuple[Card, ...]
    links: tuple[str, ...]
    in_order: bool
    share: str = ""  # which replicas, and their part of a step, where replicas differ


@dataclass(frozen=True)
class IdleDevices:
    """Devices of one kind on which the plan puts nothing."""

    device: str
    devices: str  # "devices 4-7"
    count: int


@dataclass(frozen=True)
class PlanPicture:
    """The layout on its devices."""

    facts: tuple[tuple[str, str], ...]
    chains: tuple[Chain, ...]
    group_links: tuple[tuple[str, str], ...]  # (what travels, over which link)
    idle: tuple[IdleDevices, ...] = ()


@dataclass(frozen=True)
class Hop:
    """A stretch of the critical path: consecutive ops of one kind on one rank."""

    rank: int
    lane: str
    kind: str
    first: str
    last: str
    ops: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class TimelineRow:
    """A rank's lanes: what it computes, its messages, its state work."""

    rank: int
    compute: tuple[Box, ...]
    messages: tuple[Box, ...]
    state: tuple[Box, ...]


@dataclass(frozen=True)
class OpTotal:
    """All ops of one kind in a panel."""

    kind: str
    name: str
    ops: int
    time_s: float


@dataclass(frozen=True)
class TimelinePanel:
    """One step, predicted or measured, from the moment its first compute op begins."""

    title: str
    note: str
    rows: tuple[TimelineRow, ...]
    critical: tuple[Hop, ...]
    totals: tuple[OpTotal, ...]
    length_s: float
    ops: int
    merged_below_s: float | None  # ops shorter than this stand in columns


@dataclass(frozen=True)
class KindTime:
    """Where a step's time goes: one kind, a mean over ranks."""

    kind: str
    name: str
    predicted_s: float | None
    measured_s: float | None


@dataclass(frozen=True)
class RankTime:
    """The same of one rank, by kind."""

    rank: int
    predicted_s: Mapping[str, float]
    measured_s: Mapping[str, float]


@dataclass(frozen=True)
class Times:
    """Where the step's time went."""

    step_predicted_s: float | None
    step_measured_s: float | None
    kinds: tuple[KindTime, ...]
    ranks: tuple[RankTime, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class MemoryCurve:
    """A rank's bytes by group of states over one step; from each time on until the next."""

    rank: int
    source: str  # "predicted" or "measured"
    time_s: tuple[float, ...]
    groups: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class MemoryRow:
    """A rank's memory: the proved bound, and what was measured."""

    rank: int
    label: str
    budget_bytes: int | None
    bound_bytes: int
    families: Mapping[str, int]  # of the bound, by family of states
    peak_predicted_bytes: int | None
    ledger_bytes: int | None
    allocated_bytes: int | None
    resident_bytes: int | None


@dataclass(frozen=True)
class Memory:
    """Memory of every rank in one tier."""

    tier: str
    rows: tuple[MemoryRow, ...]
    curves: tuple[MemoryCurve, ...]


@dataclass(frozen=True)
class Progress:
    """A run step by step; columns of equal length. Steps count from 1."""

    step: tuple[int, ...]
    loss: tuple[float | None, ...]
    validation: tuple[float | None, ...]  # the loss on held-out text after the step, if measured
    step_time_s: tuple[float, ...]
    tokens_per_s: tuple[float, ...]
    allocated_bytes: tuple[float | None, ...]  # of the fullest rank
    starts: tuple[int, ...]  # the first step of each time that the run was started again
    predicted_step_s: float | None
    tokens: int  # of one step
    steps: int  # before any were left out
    words: tuple[str, str] = ("step", "tokens")  # what is counted, and what each goes over

    @property
    def is_validated(self) -> bool:
        return any(loss is not None for loss in self.validation)


PointKind = Literal["chosen", "simulated", "fits", "misfit"]


@dataclass(frozen=True)
class Point:
    """A configuration: its step time and its memory. `stands_for`: others near it, not drawn."""

    kind: PointKind
    step_s: float
    memory_bytes: int
    name: str
    details: tuple[str, ...]
    stands_for: int = 1


@dataclass(frozen=True)
class Candidates:
    """Configurations of the job, the chosen one first."""

    budget_bytes: int
    points: tuple[Point, ...]
    checked: int
    fitting: int
    simulated: int
    notes: tuple[str, ...]

    @property
    def budget_is_near(self) -> bool:
        """Whether the picture reaches up to the budget. One far above all points would leave
        nothing of them to be seen."""
        return self.budget_bytes < 2.5 * max(point.memory_bytes for point in self.points)


@dataclass(frozen=True)
class Advice:
    """What was measured to bind, what binds as predicted, and what would help. `basis` says where
    the predicted times come from; `kinds` is about each kind of device, where they differ."""

    measured: tuple[str, ...]
    binding: str
    ways: tuple[str, ...]
    basis: str
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class SavedCheckpoint:
    """`best`: the one that best.json names, with the lowest validation loss."""

    step: int
    path: str
    whole: bool
    size_bytes: int | None
    validation_loss: float | None
    best: bool


@dataclass(frozen=True)
class Sample:
    """How the model went on with a prompt, after so many steps."""

    step: int
    prompt: str
    text: str


@dataclass(frozen=True)
class ExpertLayer:
    """How a layer's tokens were spread over its experts: of the busiest one over the mean, of the
    tensor group's rank with the most over an even share."""

    layer: int
    busiest: int
    busiest_ratio: float
    unused: int
    longest_ratio: float


@dataclass(frozen=True)
class ExpertRank:
    """The tokens of a rank's experts, and over an even share."""

    rank: int
    tokens: int
    ratio: float


@dataclass(frozen=True)
class ExpertLoads:
    """Of a run whose layers have experts."""

    words: tuple[str, ...]
    layers: tuple[ExpertLayer, ...]
    ranks: tuple[ExpertRank, ...]


@dataclass(frozen=True)
class Contents:
    """A whole page. `trace_command` writes every op as a trace for Perfetto."""

    kind: Literal["run", "plan", "job"]
    title: str
    source: str
    verdict: Verdict
    tiles: tuple[Tile, ...]
    plan: PlanPicture | None
    panels: tuple[TimelinePanel, ...]
    times: Times | None
    memory: tuple[Memory, ...]  # of the device first, then of the tiers below it
    progress: Progress | None
    advice: Advice | None
    candidates: Candidates | None
    checkpoints: tuple[SavedCheckpoint, ...] | None
    versions: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...]
    trace_command: str
    samples: tuple[Sample, ...] = ()
    experts: ExpertLoads | None = None
