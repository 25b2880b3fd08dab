"""Our own methods in the same lab: the job of a case, run as `ratrain train` runs it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from cases import BETAS, EPSILON, LEARNING_RATE, NARROW, WEIGHT_DECAY, Case
from outcomes import Outcome
from watch import Watch

from ratrain.corpus.sample_text import write_sample_text
from ratrain.errors import RatrainError
from ratrain.lab import Lab
from ratrain.lab.crew import run_crew
from ratrain.runtime.ownership import claim_run
from ratrain.runtime.run.launch import launch
from ratrain.runtime.run.prepare import PreparedRun, RunRequest, prepare_run, write_run
from ratrain.runtime.run_folder import RunFolder

OURS = ("ratrain", "breadth-first", "backward-checkpoint", "tuned", "baseline-1f1b")
SHARDED = ("pe-zero", "zero3-heavy")
"""Ours whose weights are sharded too: run where they are asked for."""
WIRES = ("schedule.gradient_wire=bf16", "schedule.boundary_wire=bf16")
EMULATED_RANK = Path(__file__).parent / "emulated_rank.py"


def write_job(case: Case, folder: Path) -> Path:
    """job.toml of a written case, and the text it trains on."""
    text = folder.parent / "text.jsonl"
    if not text.exists():
        write_sample_text(text)
    path = folder / "job.toml"
    path.write_text(
        JOB.format(
            length=case.sequence_length,
            ranks=case.ranks,
            sequences=case.sequences,
            micro_batch=case.micro_batch,
            pipeline=case.pipeline,
            data=case.data,
            layers=list(case.layers_of_stages),
            recovery=_recovery(case),
            steps=case.warm_up + case.steps + 1,
            rate=LEARNING_RATE,
            decay=WEIGHT_DECAY,
            beta1=BETAS[0],
            beta2=BETAS[1],
            epsilon=EPSILON,
            seed=case.seed,
            text=text.resolve(),
        )
    )
    return path


def _recovery(case: Case) -> str:
    if case.fits_itself:
        return "auto"
    return "exempt-last" if case.recovery else "keep-all"


def run_ours(case: Case, folder: Path, lab: Lab, method: str, plan: Path | None = None) -> Outcome:
    """One run, laid out by the case, or by a plan file. The last step saves, and is left out."""
    run = RunFolder(folder / method)
    shutil.rmtree(run.path, ignore_errors=True)
    try:
        prepared = _prepared(case, folder, method, plan)
        write_run(prepared, run)
        watch = Watch(lab, run.metrics, case.warm_up, case.warm_up + case.steps)
        if case.emulation:
            _launch_emulated(folder, run, lab, watch)
        else:
            with claim_run(run.path, "benchmarks/runtime") as claim:
                spec = prepared.spec
                launch(run, spec, claim=claim, lab=lab, restarts=0, tick=watch.look)
    except RatrainError as error:
        return Outcome(method, failure=f"{error.what} ({error.place})")
    return _outcome(case, method, run, watch)


def _prepared(case: Case, folder: Path, method: str, plan: Path | None) -> PreparedRun:
    request = RunRequest(
        folder / "job.toml",
        schedule=method.removesuffix(NARROW) if plan is None else None,  # else the plan says it
        plan_path=plan,
        threads=1,
        overrides=(*case.settings, *(WIRES if method.endswith(NARROW) else ())),
    )
    prepared = prepare_run(request)
    if case.emulation:
        return replace(prepared, spec=replace(prepared.spec, allocator=False))
    return prepared


def _launch_emulated(folder: Path, run: RunFolder, lab: Lab, watch: Watch) -> None:
    """Ranks whose units sleep; started by the lab's crew, which calls back for each line."""
    command = [sys.executable, str(EMULATED_RANK), str(folder / "case.json"), str(run.path)]
    with watch.looking():
        endings = run_crew(lab, command, lambda *_: None)
    for ending in endings:
        if ending.status and not ending.stopped:
            failure = run.rank_file(ending.rank, "failure")
            what = json.loads(failure.read_text())["what"] if failure.exists() else "ended"
            raise RatrainError(f"rank {ending.rank}: {what}", place=str(run.path))


def _outcome(case: Case, method: str, run: RunFolder, watch: Watch) -> Outcome:
    rows = run.read_metrics()[:-1]
    times = [row["time_s"] for row in rows]
    first = case.warm_up - 1
    return Outcome(
        method,
        tuple(after - before for before, after in pairwise(times[first:])),
        tuple(row["loss"] for row in rows),
        watch.sent_bytes,
        watch.cpu_s,
        max(0, watch.peak_bytes - imports_bytes()),
        watch.others_part,
        memory=_memory(run, rows),
        predicted_s=_prediction(run).get("step_time_s", 0.0),
        least_s=_prediction(run).get("least_s") or 0.0,
    )


@cache
def imports_bytes() -> int:
    """Resident bytes of a process that has imported what a rank imports, and done nothing."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def _memory(run: RunFolder, rows: list[dict[str, Any]]) -> tuple[int, int]:
    """(bytes that the verifier bounds, bytes that the ranks allocated), of the fullest rank."""
    allocated = [int(r["allocated_peak_bytes"] or 0) for row in rows for r in row["ranks"]]
    return max(_prediction(run).get("bound_bytes", [0])), max(allocated)


def _prediction(run: RunFolder) -> dict[str, Any]:
    """What the run's calibration predicted; nothing where there was none."""
    path = run.path / "prediction.json"
    return json.loads(path.read_text()) if path.exists() else {}


IMPORTS = """
import ratrain.runtime.rank.rank_run
from ratrain.runtime.step.process import resident_bytes
print(resident_bytes())
"""

JOB = """\
[model]
name = "config.json"
sequence_length = {length}

[cluster]
name = "cluster.toml"
devices = {ranks}

[batch]
sequences = {sequences}
micro_batch = {micro_batch}

[layout]
pipeline = {pipeline}
data = {data}
layers = {layers}

[schedule]
dtype = "fp32"
recovery = "{recovery}"

[train]
steps = {steps}
learning_rate = {rate}
rate_schedule = "constant"
weight_decay = {decay}
beta1 = {beta1}
beta2 = {beta2}
epsilon = {epsilon}
seed = {seed}

[data]
files = ["{text}"]
"""
