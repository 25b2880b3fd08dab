"""The page of a run, read from its folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ratrain.checkpoint.best import read_best
from ratrain.describe.units import format_bytes, format_time
from ratrain.report.contents import (
    Contents,
    ExpertLayer,
    ExpertLoads,
    ExpertRank,
    Progress,
    Sample,
    SavedCheckpoint,
    Tile,
    Verdict,
)
from ratrain.report.facts.measured import Measured, memory_of, panels_of, times_of
from ratrain.report.facts.run_plan import advice_of_run, plan_of_run
from ratrain.report.facts.stages import ProvedMemory, picture
from ratrain.report.facts.words import case_facts, left_out_of
from ratrain.report.thin import STEPS, shown_steps
from ratrain.runtime.attempts import Attempt, attempts
from ratrain.runtime.rank.rows import Row
from ratrain.runtime.run.facts import read_facts
from ratrain.runtime.run.reports.experts import expert_words
from ratrain.runtime.run.reports.goodput import PARTS
from ratrain.runtime.run.reports.report import report_of
from ratrain.runtime.run_folder import RunFolder

_SAMPLED = 10
"""Steps of which a page shows samples: between so many and twice as many, where there are more."""
SearchProgress = Callable[[int, int], None]


def contents_of_run(path: Path, progress: SearchProgress | None = None) -> Contents:
    """The `Contents` of a run's folder."""
    folder = RunFolder(path)
    spec, facts = folder.read_spec(), read_facts(folder)
    measured = Measured(folder, spec, folder.read_program())
    report = report_of(folder, measured.recorded)
    rows, starts = folder.read_metrics(), attempts(folder)
    setup = measured.program.setup
    plan = plan_of_run(facts["facts"], spec, measured.program, path, progress)
    proved = ProvedMemory(
        facts["bound_bytes"][: setup.ranks],
        facts["bound_items"][: setup.ranks],
        [setup.budget_of(rank) for rank in range(setup.ranks)],
    )
    panels = tuple(panels_of(measured))
    timeline = measured.difference.measured if measured.difference else measured.predicted
    times = times_of(measured, report)
    case = facts["facts"]
    return Contents(
        kind="run",
        title=f"{case['model']} on {case['devices']} x {case['cluster']}",
        source=str(path),
        verdict=verdict_of(report, rows),
        tiles=tuple(_tiles(report, rows)),
        plan=picture(setup, plan.standing, proved, case_facts(case)),
        panels=panels,
        times=times,
        memory=(memory_of(measured, report, facts["tier"]),),
        progress=_progress(rows, starts, report),
        advice=advice_of_run(plan, times, report),
        candidates=plan.candidates,
        checkpoints=tuple(_checkpoints(folder, report, rows)),
        versions=tuple(_versions(starts)),
        left_out=(
            *(left_out_of(panels, timeline, setup) if timeline is not None else ()),
            *_unrecorded(measured),
            *plan.left_out,
            *_steps_left_out(rows),
        ),
        trace_command=f"ratrain timeline {path} --trace trace.json",
        samples=tuple(_samples(rows)),
        experts=_experts(report["experts"]),
    )


def verdict_of(report: dict[str, Any], rows: Sequence[Row]) -> Verdict:
    """Whether the run came to its end, as fast as predicted and inside its memory."""
    steps, step = report["steps"], report["step_time_s"]
    if not rows:
        return Verdict("bad", "No step was finished: see logs/ in the run's folder.")
    broken = next((row["step"] + 1 for row in rows if not math.isfinite(row["loss"])), None)
    if broken is not None:
        return Verdict("bad", f"The loss is not a number from step {broken} on.")
    finished = steps["done"] == steps["end"]
    sentences = f"Trained {steps['done']:,} of {steps['end']:,} steps"
    sentences += "" if finished else ", so it was stopped or failed (--resume continues)"
    sentences += f"; loss {report['loss']['first']:.4g} to {report['loss']['last']:.4g}."
    if step["measured"] is not None:
        sentences += f" A step takes {format_time(step['measured'])}{_against(step['ratio'])}."
    over_budget = [row for row in report["memory"] if _over(row)]
    if over_budget:
        worst = max(over_budget, key=lambda row: row["allocated_peak_bytes"])
        allocated = format_bytes(worst["allocated_peak_bytes"])
        sentences += f" Process {worst['rank']} has allocated {allocated}, more than its budget."
    return Verdict("good" if finished and not over_budget else "plain", sentences)


def _over(row: dict[str, Any]) -> bool:
    allocated_bytes, budget = row["allocated_peak_bytes"], row["budget_bytes"]
    return allocated_bytes is not None and budget is not None and allocated_bytes > budget


def _against(ratio: float | None) -> str:
    if ratio is None:
        return ""
    percent = 100 * (ratio - 1)
    if abs(percent) < 1:
        return ", as predicted"
    return f", {abs(percent):.0f} % {'more' if percent > 0 else 'less'} than predicted"


def _tiles(report: dict[str, Any], rows: Sequence[Row]) -> Iterator[Tile]:
    step, loss = report["step_time_s"], report["loss"]
    if step["measured"] is not None:
        predicted = step["predicted"]
        note = "not predicted" if predicted is None else f"predicted {format_time(predicted)}"
        yield Tile("Step", format_time(step["measured"]), note)
        first, last = report["steps"]["counted"]
        yield Tile(
            "Throughput", f"{report['tokens_per_s']:,.0f} tokens/s", f"median, steps {first}-{last}"
        )
    goodput = report["goodput"]
    if goodput is not None:
        rest = max(PARTS, key=lambda key: goodput[key])
        note = f"most of the rest: {PARTS[rest]} {format_time(goodput[rest])}"
        yield Tile("Goodput", f"{100 * goodput['fraction']:.1f} % in steps", note)
    fullest = max(report["memory"], key=lambda row: row["bound_bytes"])
    budget = fullest["budget_bytes"]
    yield Tile(
        "Memory, proven",
        format_bytes(fullest["bound_bytes"]),
        f"of {format_bytes(budget)} per device" if budget else "no budget is set",
    )
    allocated_bytes = [row["allocated_peak_bytes"] for row in report["memory"]]
    if all(size is not None for size in allocated_bytes):
        yield Tile(
            "Memory, allocated", format_bytes(max(allocated_bytes)), "peak of the fullest rank"
        )
    if loss is not None:
        yield Tile("Loss", f"{loss['last']:.4f}", f"from {loss['first']:.4f} at step 1")
    if report["validation"] is not None:
        last, best = report["validation"]["last"], report["validation"]["best"]
        yield Tile(
            "Validation loss",
            f"{last['loss']:.4f}",
            f"best {best['loss']:.4f} after step {best['step']:,}",
        )
    if rows:
        tokens = sum(row["tokens"] for row in rows)
        yield Tile("Tokens trained on", f"{tokens:,}", f"{len(rows):,} steps")


def _progress(
    rows: Sequence[Row], starts: Sequence[Attempt], report: dict[str, Any]
) -> Progress | None:
    """The run step by step. Of very many steps each stretch's extremes are kept."""
    if not rows:
        return None
    validations = {
        place: row["validation_loss"] for place, row in enumerate(rows) if "validation_loss" in row
    }
    places = shown_steps([row["loss"] for row in rows], validations)
    thinned = [rows[place] for place in places]
    return Progress(
        step=tuple(row["step"] + 1 for row in thinned),
        loss=tuple(_finite(row["loss"]) for row in thinned),
        validation=tuple(_finite(row.get("validation_loss")) for row in thinned),
        step_time_s=tuple(row["step_time_s"] for row in thinned),
        tokens_per_s=tuple(row["tokens_per_s"] for row in thinned),
        allocated_bytes=tuple(_fullest(row) for row in thinned),
        starts=tuple(start.first_step + 1 for start in starts[1:]),
        predicted_step_s=report["step_time_s"]["predicted"],
        tokens=rows[0]["tokens"],
        steps=len(rows),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _fullest(row: Row) -> float | None:
    allocated_bytes = [
        size for rank in row["ranks"] if (size := rank["allocated_peak_bytes"]) is not None
    ]
    return max(allocated_bytes) if allocated_bytes else None


def _checkpoints(
    folder: RunFolder, report: dict[str, Any], rows: Sequence[Row]
) -> Iterator[SavedCheckpoint]:
    best = read_best(folder.path)
    losses = {row["step"] + 1: row.get("validation_loss") for row in rows}
    for saved in report["checkpoints"]:
        step = saved["step"]
        yield SavedCheckpoint(
            step,
            saved["path"],
            saved["complete"],
            saved["size_bytes"],
            _finite(losses.get(step)),
            best is not None and best.step == step,
        )


def _samples(rows: Sequence[Row]) -> Iterator[Sample]:
    """Those of some steps, the last of all among them."""
    sampled = [row for row in rows if "samples" in row]
    for row in sampled[-1 :: -max(1, len(sampled) // _SAMPLED)][::-1]:
        for sample in row["samples"]:
            yield Sample(row["step"] + 1, sample["prompt"], sample["text"])


def _experts(load: dict[str, Any] | None) -> ExpertLoads | None:
    def of(kind: type[Any], row: dict[str, Any]) -> Any:
        return kind(**{field.name: row[field.name] for field in fields(kind)})

    if load is None:
        return None
    return ExpertLoads(
        tuple(expert_words(load)),
        tuple(of(ExpertLayer, row) for row in load["layers"]),
        tuple(of(ExpertRank, row) for row in load["ranks"]),
    )


def _steps_left_out(rows: Sequence[Row]) -> Iterator[str]:
    if len(rows) > STEPS:
        yield (
            f"Of {len(rows):,} steps, curves show about {STEPS:,}: the lowest and the highest loss "
            "of each stretch. metrics.jsonl has all of them."
        )


def _unrecorded(measured: Measured) -> Iterator[str]:
    if measured.recorded is None:
        yield "No op was recorded (a run that is stopped records none): nothing measured is drawn."
    if measured.predicted is None:
        yield "The run was not calibrated, so nothing is predicted."


def _versions(starts: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    for number, start in enumerate(starts):
        if number and start.versions == starts[number - 1].versions:
            continue
        behind = f" (from step {start.first_step + 1})" if number else ""
        for name, version in start.versions.items():
            yield f"{name}{behind}", version
    if starts and starts[-1].lab:
        yield "lab", "slow links and limits of the cluster file, inside one machine"
