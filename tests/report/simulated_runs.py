"""Runs' folders as their ranks would leave them, with the simulator's times as the measured ones.

Everything but the training itself is real: the job is prepared as `ratrain train` does it, and the
files have the very form that ranks write. So pages of hundreds of ranks and thousands of steps can
be looked at without them.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratrain.program.kind import Lane
from ratrain.runtime.attempts import begin_attempt
from ratrain.runtime.run.prepare import PreparedRun, RunRequest, prepare_run, write_run
from ratrain.runtime.run.reports.report import write_report
from ratrain.runtime.run_folder import RunFolder
from ratrain.simulate.costs import Costs, Work
from ratrain.simulate.simulate import Simulation, simulate, timeline_of
from ratrain.timeline.timeline import write_timeline

SLOWER = 1.08
"""What is measured takes this much longer than what is predicted."""
RECORDED = 4
PRODUCT_BYTES = 4_400_000
BEGAN_S = 1_700_000_000.0

JOB = """
[model]
name = "tiny-llama"
sequence_length = 128

[cluster]
name = "cluster.toml"
devices = {devices}

[batch]
sequences = {sequences}
micro_batch = {micro_batch}

[layout]
pipeline = {pipeline}
data = {data}

[schedule]
name = "ratrain"
dtype = "fp32"
memory_budget = "256MB"

[train]
steps = {steps}

[data]
files = ["text.jsonl"]
"""


CLUSTER = """
name = "hosts"
source = "a test"

[[device]]
name = "rank"
launch = "10us"
launch_source = "a test"
memory_efficiency = 0.8
memory_efficiency_source = "a test"

[[device.tiers]]
name = "RAM"
capacity = "2GB"
bandwidth = "10GB/s"
source = "a test"

[[device.rates]]
dtype = "fp32"
peak = "100GFLOP/s"
gemm = "50GFLOP/s"
source = "a test"

[[host]]
name = "machine"
device = "rank"
devices = 4
count = "any"

[links.host]
latency = "50us"
bandwidth = "1GB/s"
source = "a test"

[links.room]
latency = "100us"
bandwidth = "1Gbit/s"
source = "a test"
"""


@dataclass(frozen=True)
class Size:
    """How large a run is."""

    pipeline: int = 2
    data: int = 1
    micro_batches: int = 4
    steps: int = 40

    def job(self) -> str:
        return JOB.format(
            devices=self.pipeline * self.data,
            sequences=4 * self.micro_batches * self.data,
            micro_batch=4,
            pipeline=self.pipeline,
            data=self.data,
            steps=self.steps,
        )


def simulated_run(folder: Path, size: Size, *, done: int | None = None) -> RunFolder:
    """The folder of a run that has done so many of its steps (all, by default)."""
    folder.mkdir(parents=True)
    job = folder / "job.toml"
    job.write_text(size.job())
    (folder / "cluster.toml").write_text(CLUSTER)
    prepared = prepare_run(RunRequest(job, record_steps=RECORDED))
    run = RunFolder(folder / "run")
    write_run(prepared, run)
    begin_attempt(run, 0, lab=False, restarts=0)
    _date_back(run)
    predicted = simulate(prepared.program, prepared.case.costs)
    measured = simulate(prepared.program, slower(prepared.case.costs), steps=RECORDED + 1)
    _write_prediction(run, predicted)
    count = size.steps if done is None else done
    if count == size.steps:
        _write_records(run, prepared, measured, count)
    _write_metrics(run, prepared, measured, count)
    write_report(run)
    return run


def slower(costs: Costs) -> Costs:
    """Every op takes `SLOWER` times as long."""
    work = {
        kind: Work(w.fixed_s * SLOWER, w.volume_bytes, w.interrupt_s, w.link, w.peer_link)
        for kind, w in costs.work.items()
    }
    return Costs(work, costs.link_rate_bytes_per_s / SLOWER)


def _date_back(run: RunFolder) -> None:
    """The run was begun before its first step."""
    path = run.path / "attempts.jsonl"
    path.write_text(json.dumps({**json.loads(path.read_text()), "began_s": BEGAN_S}) + "\n")


def _write_prediction(run: RunFolder, predicted: Simulation) -> None:
    write_timeline(timeline_of(predicted), run.predicted)
    ranks = [
        {
            "rank": times.rank,
            "compute_s": times.compute_s,
            "recovery_s": times.recovery_s,
            "driving_s": times.driving_s,
            "waiting_s": {kind.value: s for kind, s in times.waiting_s.items()},
        }
        for times in predicted.ranks
    ]
    body = {"step_time_s": predicted.step_time_s, "ranks": ranks}
    (run.path / "prediction.json").write_text(json.dumps(body))


def _write_records(run: RunFolder, prepared: PreparedRun, measured: Simulation, end: int) -> None:
    """What every rank recorded of the last steps; alike ranks recorded the same."""
    table, ran = prepared.program.table, measured.run
    n = len(table)
    rows: dict[int, list[list[Any]]] = {rank: [] for rank in range(table.setup.ranks)}
    for step in range(1, RECORDED + 1):
        for op in range(n):
            start_s, end_s = (float(c[step * n + op]) for c in (ran.start_s, ran.end_s))
            lane = Lane(int(table.lane[op])).word
            number = end - RECORDED + step - 1
            rows[int(table.rank[op])].append(
                [number, lane, table.word(op), start_s, start_s, end_s]
            )
    for seat in prepared.spec.seats.all():
        bound = prepared.verdict.bounds[seat.program_rank]
        memory = {
            "rank": seat.world_rank,
            "size_bytes": bound.total_bytes,
            "items": bound.by_family,
            "ledger_waits": 0,
            "allocated_peak_bytes": round(0.9 * bound.total_bytes),
            "product_peak_bytes": PRODUCT_BYTES,
            "resident_bytes": 300_000_000,
        }
        body = {
            "rank": seat.world_rank,
            "program_rank": seat.program_rank,
            "clock_s": BEGAN_S,
            "rows": rows[seat.program_rank],
            "memory": memory,
        }
        run.rank_file(seat.world_rank, "records").write_text(json.dumps(body))


def _write_metrics(run: RunFolder, prepared: PreparedRun, measured: Simulation, count: int) -> None:
    """A line for each step: a loss that falls, with one spike."""
    tokens, length_s = prepared.case.job.tokens, measured.step_time_s
    with run.metrics.open("w") as file:
        for step in range(count):
            step_s = length_s * (1 + 0.05 * math.sin(step))
            loss = 6 * math.exp(-step / (count or 1)) + (3.0 if step == count // 3 else 0.0)
            ranks = [
                _rank_row(prepared, measured, s.program_rank) for s in prepared.spec.seats.all()
            ]
            body = {
                "step": step,
                "loss": loss,
                "loss_bits": loss.hex(),
                "learning_rate": 1e-3,
                "tokens": tokens,
                "step_time_s": step_s,
                "tokens_per_s": tokens / step_s,
                "time_s": BEGAN_S + (step + 1) * length_s,
                "budget_bytes": prepared.program.setup.budget_bytes,
                "ranks": ranks,
            }
            file.write(json.dumps(body) + "\n")


def _rank_row(prepared: PreparedRun, measured: Simulation, rank: int) -> dict[str, Any]:
    times, bound = measured.ranks[rank], prepared.verdict.bounds[rank].total_bytes
    return {
        "step_time_s": measured.step_time_s,
        "compute_s": times.compute_s,
        "recovery_s": times.recovery_s,
        "stages_s": times.bubble_s,
        "reduce_s": 0.0,
        "gather_s": 0.0,
        "update_s": 0.0,
        "ledger_peak_bytes": float(bound),
        "allocated_peak_bytes": 0.9 * bound,
        "resident_bytes": 3e8,
    }
