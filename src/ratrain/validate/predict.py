"""What the product predicts for a measured run: its program, on the clock, with its costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ratrain.describe.job import (
    Batch,
    ClusterChoice,
    JobSpec,
    LayoutSpec,
    ModelChoice,
    ScheduleSpec,
)
from ratrain.describe.job_checks import check_job
from ratrain.describe.presets import cluster_preset, load_cluster
from ratrain.plan import case_of
from ratrain.simulate.simulate import simulate
from ratrain.validate.planned_runs import PlannedRun, planned_s
from ratrain.validate.rows import Run

ROUNDS = 3
"""A step grows by the same time with each round of micro-batches once the pipeline is full: long
steps are simulated with 3 and 4 rounds and extrapolated (`_extrapolated_s`)."""


def predicted_s(run: Run | PlannedRun) -> float:
    """Seconds of one step of the run."""
    if isinstance(run, PlannedRun):
        return planned_s(run)
    micro_batches = run.micro_batches
    per_round = run.pipeline * run.virtual if run.virtual > 1 else run.pipeline
    short, longer = ROUNDS * per_round, (ROUNDS + 1) * per_round
    if micro_batches <= longer:
        return simulated_s(run, micro_batches)
    return _extrapolated_s(run, micro_batches, short, longer)


def simulated_s(run: Run, micro_batches: int) -> float:
    """Seconds of a step of the run with this many micro-batches."""
    case = case_of(job_of(replace(run, sequences=micro_batches * run.data * run.micro_batch)))
    return simulate(case.program, case.costs, steps=2).step_time_s


def job_of(run: Run) -> JobSpec:
    """The job of a run. The budget is the device's memory; whether it fits is not asked here."""
    interleaved = run.virtual > 1
    name = "megatron-interleaved" if interleaved else "megatron"
    if run.recompute != "full":
        name = "interleaved" if interleaved else "1f1b"
    cluster_name = run.cluster
    cluster = (
        load_cluster(Path(cluster_name))
        if cluster_name.endswith(".toml")
        else cluster_preset(cluster_name)
    )
    layout = LayoutSpec(
        run.pipeline,
        run.data,
        run.tensor,
        run.virtual,
        layers=run.layers or "equal",
        sequence_parallel=run.sequence_parallel,
    )
    job = JobSpec(
        ModelChoice(run.model, run.sequence),
        ClusterChoice(cluster, layout.devices),
        Batch(run.sequences, run.micro_batch),
        layout,
        ScheduleSpec(
            name,
            sharding=run.sharding,
            gradient_accumulation="local",
            # Megatron-LM's own: fp16 without a flag that asks for fp32, in bf16 always fp32.
            gradient_dtype="fp16" if run.dtype == "fp16" else "fp32",
            recovery="selective" if run.recompute == "selective" else "auto",
            dtype=run.dtype,
            backend="described",
        ),
    )
    check_job(job)
    return job


def _extrapolated_s(run: Run, micro_batches: int, short: int, longer: int) -> float:
    """t(n) = t(short) + (n - short) (t(longer) - t(short)) / (longer - short)."""
    first_s, second_s = simulated_s(run, short), simulated_s(run, longer)
    return first_s + (micro_batches - short) * (second_s - first_s) / (longer - short)
