"""The RATrain paper's evaluation through the simulator: one mt3000 preset, no knob per row.

Where the paper is silent, `ASSUMED` says what is assumed; docs/notes/reproduction.md says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from re import match
from typing import Literal

from ratrain.describe.backends import BUCKET_BYTES
from ratrain.describe.job import (
    Batch,
    ClusterChoice,
    JobSpec,
    LayoutSpec,
    ModelChoice,
    ScheduleSpec,
)
from ratrain.describe.presets import cluster_preset, model_preset
from ratrain.plan import case_of
from ratrain.plan.case import case_as_asked
from ratrain.plan.layout import parameter_balanced_layers
from ratrain.program.replicas import Recovery
from ratrain.program.strategies import FORWARD_RECOVERY, STRATEGIES
from ratrain.reproduce.published import ABLATION, MAIN, PLANNER, SCALE_OUT, SMALLEST, ScaleRow
from ratrain.simulate.simulate import Simulation

SEQUENCE = 2048
BUDGET_BYTES = 20_000_000_000
MAIN_SEQUENCES = 4096
SEQUENCES_PER_CLUSTER = 8
PIPELINE = {"llama-2-7b": 2, "baichuan2-13b": 8, "qwen2.5-32b": 16}
CLUSTERS_PER_CHIP = 4
RATRAIN = ScheduleSpec("ratrain", skeleton="1f1b")
"""The paper's schedule has the order 1F1B; a job that names none may get another one."""

ASSUMED = (
    "main comparison: 256 clusters, 4096 sequences of 2048 tokens (tokens/s x step time is 2^23 "
    "in every row), equal layers per stage, the pipeline depth of the smallest scale",
    "the row that digests call LLaMA-2-13B has Baichuan2-13B's dimensions: its times fit those",
    "backward-time recovery recomputes whole stages, head included; RATrain recomputes no head",
    "main comparison and ablation: baselines recover every stage, RATrain and zero3-heavy every "
    "stage but the last, also where activations would fit",
    "other recovery, and where gradients are accumulated: the fastest choice proved to fit in "
    "20 GB",
    "tensor-parallel-heavy: the 4 clusters of a chip as one tensor group, a quarter of the "
    "pipeline's depth, backward-time recovery",
    "zero3-heavy: RATrain with views gathered for every use",
    "smallest scale: gradients sharded, 2 recovered layers at once on every stage; equal layers "
    "where that fits, else the split with the fewest parameters on the fullest stage",
    "scale-out: pipeline depth 2, 16,384 tokens per cluster",
    "a message takes 36 us of its sender's compute: fitted to the scale-out row, used everywhere",
    "the exposed tail is the mean over ranks of the time from a rank's last backward to the "
    "end of the state work that its next forward waits for",
    "planner rows: batches of 2048, 1024 and 1536 sequences, the nearest of the powers of two "
    "and the numbers half way between them; 256 clusters",
)


@dataclass(frozen=True)
class Row:
    """One published value beside ours. `ours` None: it does not fit; `note` says what binds."""

    table: str
    label: str
    unit: str
    published: float | None
    ours: float | None
    note: str = ""

    @property
    def fit(self) -> str:
        """What was chosen by looking at this row; "" for a prediction."""
        for table, pattern, why in FITS:
            if table == self.table and self.published is not None and match(pattern, self.label):
                return why
        return ""

    @property
    def difference(self) -> float | None:
        """(ours - published) / published."""
        if self.published is None or self.ours is None:
            return None
        return self.ours / self.published - 1


_ASSUMPTIONS = "256 clusters, equal layers and recovery of whole stages were kept because of it"
FITS: tuple[tuple[str, str, str], ...] = (
    ("main", r"\S+ (ratrain|backward-checkpoint)( / ratrain)?$", _ASSUMPTIONS),
    ("ablation", r"step without forward-recovery$", _ASSUMPTIONS),
    ("sensitivity", r".* as assumed$", _ASSUMPTIONS),
    (
        "memory",
        r".* on (8|16|64|96)$",
        "2-byte gradients, split and buffer were kept because of it",
    ),
    ("scale-out", r".*efficiency$", "36 us of compute a message were fitted to it"),
    ("planner", r".*", "its batch is the one of a few that comes nearest"),
)
"""(table, pattern of labels, what was chosen by looking at such a row)."""

Section = Callable[[], Iterator[Row]]


def job(
    model: str,
    clusters: int,
    layout: LayoutSpec,
    sequences: int,
    schedule: ScheduleSpec,
) -> JobSpec:
    """A job on the mt3000 preset. The paper's memory rows fit gradients of 2 bytes: with 4 the
    smallest scale of the 7B model would take 21.5 GB of its 20."""
    return JobSpec(
        ModelChoice(model_preset(model), SEQUENCE),
        ClusterChoice(cluster_preset("mt3000"), clusters),
        Batch(sequences, 1),
        layout,
        replace(
            schedule,
            memory_budget_bytes=BUDGET_BYTES,
            backend="described",
            gradient_dtype="fp16",
        ),
    )


def run(spec: JobSpec) -> Simulation:
    """The simulation of a job."""
    return case_of(spec).simulation


def main_job(model: str, strategy: str, without: tuple[str, ...] = ()) -> JobSpec:
    """A row of the main comparison, or of the ablation."""
    clusters, depth = 256, PIPELINE[model]
    layout = LayoutSpec(depth, clusters // depth)
    if strategy == "tensor-parallel-heavy":
        layout = replace(layout, pipeline=depth // CLUSTERS_PER_CHIP, tensor=CLUSTERS_PER_CHIP)
    return job(model, clusters, layout, MAIN_SEQUENCES, as_in_paper(strategy, without))


def as_in_paper(strategy: str, without: tuple[str, ...] = ()) -> ScheduleSpec:
    """A strategy as the paper describes it: baselines recover every stage and its head, also where
    activations would fit, and RATrain every stage but the last."""
    if FORWARD_RECOVERY in without:
        return ScheduleSpec("paper-backward-checkpoint")
    if f"paper-{strategy}" in STRATEGIES:
        return ScheduleSpec(f"paper-{strategy}", without)
    described = STRATEGIES[strategy]
    recovery = "exempt-last" if described.recovery is Recovery.FORWARD else "auto"
    return ScheduleSpec(strategy, without, described.skeleton, recovery=recovery)


def main_comparison() -> Iterator[Row]:
    """Step times of the strategies on both models, and how they stand to RATrain's."""
    base: dict[str, tuple[float, float]] = {}
    for row in MAIN:
        simulation = run(main_job(row.model, row.strategy))
        label = f"{row.model} {row.strategy}"
        if not simulation.feasible:
            message = simulation.verdict.findings[0].message
            note = message if row.out_of_memory else f"expected to fit, but {message}"
            yield Row("main", label, "s", row.step_s, None, note)
            continue
        ours = simulation.step_time_s
        note = "published: out of memory" if row.out_of_memory else ""
        yield Row("main", label, "s", row.step_s, ours, note)
        if row.strategy == "ratrain" and row.step_s is not None:
            base[row.model] = row.step_s, ours
        else:
            published, base_time = base[row.model]
            ratio = row.step_s / published if row.step_s else None
            yield Row("main", f"{label} / ratrain", "x", ratio, ours / base_time)


def ablation() -> Iterator[Row]:
    """What each pass is worth: step time and tail without it, relative to the full strategy."""
    model = "qwen2.5-32b"
    full = run(main_job(model, "ratrain"))
    for left_out, (step, tail) in ABLATION.items():
        less = run(main_job(model, "ratrain", (left_out,)))
        ratio = less.step_time_s / full.step_time_s
        yield Row("ablation", f"step without {left_out}", "x", step, ratio)
        ratio = less.mean_tail_s / full.mean_tail_s
        yield Row("ablation", f"tail without {left_out}", "x", tail, ratio)


def as_trained() -> Iterator[Row]:
    """The ablation's tails and the smallest scales as `ratrain train` would run them: updates in
    fp16 wait until no gradient overflowed unless `overflow = "unit"`, and scratch memory counts.
    Gradients leave whole, or in buckets of 25 MB while backward makes them."""
    for overflow in ("step", "unit"):
        full = _run_whole(trained(main_job("qwen2.5-32b", "ratrain"), overflow))
        for left_out, (_, tail) in ABLATION.items():
            less = _run_whole(trained(main_job("qwen2.5-32b", "ratrain", (left_out,)), overflow))
            ratio = less.mean_tail_s / full.mean_tail_s
            label = f"tail without {left_out}, overflow by {overflow}"
            yield Row("as-trained", label, "x", tail, ratio)
    for row in SMALLEST:
        for words, bucket_bytes in (("whole", None), ("in buckets", BUCKET_BYTES)):
            label = f"{row.model} on {row.clusters}, gradients {words}, proven peak"
            peak_gb = _least_peak_bytes(row, bucket_bytes) / 1e9
            excess_gb = peak_gb - BUDGET_BYTES / 1e9
            note = f"{excess_gb:.2f} GB over the budget of 20 GB" if excess_gb > 0 else ""
            yield Row("as-trained", label, "GB", row.peak_gb, peak_gb, note)


def _run_whole(spec: JobSpec) -> Simulation:
    """The simulation of a job whose gradients leave whole, whether it fits or not."""
    case = case_as_asked(spec)
    return case.simulation


def _least_peak_bytes(row: ScaleRow, bucket_bytes: int | None) -> int:
    """The proven peak of a smallest scale as trained, of the split that needs least."""
    peaks: list[int] = []
    for layout_job in _layouts(row, row.pipeline, row.clusters // row.pipeline):
        spec = trained(layout_job)
        schedule = replace(spec.schedule, gradient_bucket_bytes=bucket_bytes)
        bounds = case_as_asked(replace(spec, schedule=schedule)).proved.verdict.bounds
        peaks.append(max(bound.total_bytes for bound in bounds))
    return min(peaks)


def trained(spec: JobSpec, overflow: Literal["step", "unit"] = "step") -> JobSpec:
    """A job of the paper's on the backend of `ratrain train`. `overflow`: whether one gradient that
    overflows skips the updates of the step, as usual, or that of its own unit."""
    schedule = replace(spec.schedule, backend="torch")
    return replace(spec, schedule=schedule, train=replace(spec.train, overflow=overflow))


def smallest_scale() -> Iterator[Row]:
    """Peak memory at the smallest scale of each model, and what forbids a smaller one."""
    for row in SMALLEST:
        data = row.clusters // row.pipeline
        best = min(_layouts(row, row.pipeline, data), key=_fits_first)
        simulation = run(best)
        assert best.layout is not None
        split = "equal layers" if best.layout.layers == "equal" else "parameters balanced"
        ours = simulation.peak_bytes / 1e9 if simulation.feasible else None
        note = f"{split}; {simulation.bound_bytes / 1e9:.2f} GB proven peak"
        yield Row("memory", f"{row.model} on {row.clusters}", "GB", row.peak_gb, ours, note)
        yield _too_few(row)


def _layouts(row: ScaleRow, pipeline: int, data: int) -> list[JobSpec]:
    """The jobs of one depth: equal layers where they divide, and parameters balanced."""
    layers = model_preset(row.model).layers
    schedule = replace(RATRAIN, recovery="everywhere", gradient_accumulation="sharded")
    sequences = 2 * pipeline * data
    balanced = job(row.model, pipeline * data, LayoutSpec(pipeline, data), sequences, schedule)
    assert balanced.layout is not None
    split = parameter_balanced_layers(balanced, balanced.layout)
    jobs = [balanced] if layers % pipeline == 0 else []
    if split != (layers // pipeline,) * pipeline or not jobs:
        jobs.append(replace(balanced, layout=replace(balanced.layout, layers=split)))
    return jobs


def _fits_first(spec: JobSpec) -> bool:
    """Sorts jobs that fit before those that do not; equal layers come first in the list."""
    return not case_of(spec).proved.verdict.sound


def _too_few(row: ScaleRow) -> Row:
    """Every depth and split of the smaller scale, and the one that misses by least."""
    label = f"{row.model} on {row.too_few}"
    nearest: tuple[int, str] | None = None
    layers = model_preset(row.model).layers
    for pipeline in (p for p in range(1, row.too_few + 1) if row.too_few % p == 0 and p <= layers):
        for candidate in _layouts(row, pipeline, row.too_few // pipeline):
            verdict = case_of(candidate).proved.verdict
            worst = max(verdict.bounds, key=lambda bound: bound.total_bytes)
            if verdict.sound:
                return Row("memory", label, "GB", None, worst.total_bytes / 1e9, "fits after all")
            item, size = max(worst.by_family.items(), key=lambda pair: pair[1])
            excess_bytes = worst.total_bytes - BUDGET_BYTES
            note = (
                f"does not fit: at best (pipeline {pipeline}) {excess_bytes / 1e9:.2f} GB over on "
                f"stage {worst.rank}, of which {item} {size / 1e9:.2f} GB"
            )
            if nearest is None or excess_bytes < nearest[0]:
                nearest = excess_bytes, note
    assert nearest is not None
    return Row("memory", label, "GB", None, None, nearest[1])


def scale_out() -> Iterator[Row]:
    """LLaMA-2-7B from 256 to 1024 clusters, the work of a cluster kept."""
    base: tuple[float, float] | None = None
    for clusters, published in SCALE_OUT.items():
        simulation = run(_scale_out_job(clusters))
        tokens = clusters * SEQUENCES_PER_CLUSTER * SEQUENCE / simulation.step_time_s
        yield Row("scale-out", f"{clusters} clusters", "tokens/s", published, tokens)
        base = base or (published / clusters, tokens / clusters)
        yield Row(
            "scale-out",
            f"{clusters} clusters, efficiency",
            "%",
            100 * published / clusters / base[0],
            100 * tokens / clusters / base[1],
        )


def _scale_out_job(clusters: int, model: str = "llama-2-7b") -> JobSpec:
    layout = LayoutSpec(PIPELINE[model], clusters // PIPELINE[model])
    return job(model, clusters, layout, SEQUENCES_PER_CLUSTER * clusters, RATRAIN)


def planner_rows() -> Iterator[Row]:
    """The planner's table: measured step times; the batches are guesses."""
    for model, sequences in (("llama-2-7b", 2048), ("qwen2.5-32b", 1024), ("baichuan2-13b", 1536)):
        depth = PIPELINE[model]
        spec = job(model, 256, LayoutSpec(depth, 256 // depth), sequences, RATRAIN)
        ours = run(spec).step_time_s
        yield Row("planner", f"{model}, {sequences} sequences", "s", PLANNER[model], ours)


def sensitivity() -> Iterator[Row]:
    """What the headline ratio becomes when one assumption is changed."""
    model = "qwen2.5-32b"
    published = 2162.54 / 1592.51

    def ratio(change: Callable[[JobSpec], JobSpec]) -> float:
        slow = run(change(main_job(model, "backward-checkpoint")))
        return slow.step_time_s / run(change(main_job(model, "ratrain"))).step_time_s

    def without_heads(spec: JobSpec) -> JobSpec:
        return replace(spec, schedule=replace(spec.schedule, recover_heads=False))

    def balanced(spec: JobSpec) -> JobSpec:
        assert spec.layout is not None
        return replace(spec, layout=replace(spec.layout, layers="balanced"))

    def fewer(spec: JobSpec) -> JobSpec:
        return replace(spec, batch=Batch(MAIN_SEQUENCES // 8, 1))

    changes: dict[str, Callable[[JobSpec], JobSpec]] = {
        "as assumed": replace,
        "heads not recomputed": without_heads,
        "layers balanced with the head": balanced,
        "an eighth of the batch": fewer,
    }
    for label, change in changes.items():
        yield Row(
            "sensitivity", f"backward-checkpoint / ratrain, {label}", "x", published, ratio(change)
        )


SECTIONS: dict[str, Section] = {
    "main": main_comparison,
    "ablation": ablation,
    "memory": smallest_scale,
    "as-trained": as_trained,
    "scale-out": scale_out,
    "planner": planner_rows,
    "sensitivity": sensitivity,
}

ROWS = {
    "main": 19,
    "ablation": 6,
    "memory": 8,
    "as-trained": 14,
    "scale-out": 8,
    "planner": 3,
    "sensitivity": 4,
}
"""How many each section has, for progress."""
