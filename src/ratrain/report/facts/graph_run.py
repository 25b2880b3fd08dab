"""The page of a graph's training, read from what `ratrain graph train` leaves in its folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ratrain.describe.units import format_bytes, format_time
from ratrain.readers.files import exists
from ratrain.readers.json import read_json_table
from ratrain.readers.json_lines import read_json_lines
from ratrain.report.contents import Contents, Progress, Tile, TimelinePanel, Verdict
from ratrain.report.facts.steps import panel, ranks_of
from ratrain.report.thin import STEPS, shown_steps
from ratrain.timeline.timeline import Timeline, read_timeline

REPORT, METRICS = "report.json", "metrics.jsonl"
_LANES = {"disk read": "fetch", "disk write": "store", "receive": "recv"}
"""As the programs of language models call lanes that do the same."""
TRIED = 8
"""Layouts of the plan that the page names."""


def is_graph_run(folder: Path) -> bool:
    """Whether a folder is of a graph's training."""
    path = folder / REPORT
    return exists(path) and {"graph", "plan", "tried"} <= set(read_json_table(path)[0])


def contents_of_graph_run(folder: Path) -> Contents:
    """The `Contents` of a graph's training."""
    report = read_json_table(folder / REPORT)[0]
    rows = [row for row, _ in read_json_lines(folder / METRICS)]
    graph = report["graph"]
    return Contents(
        kind="run",
        title=f"Graph of {graph['nodes']:,} nodes and {graph['edges']:,} edges",
        source=str(folder),
        verdict=_verdict(report, rows),
        tiles=tuple(_tiles(report)),
        plan=None,
        panels=tuple(_panels(folder)),
        times=None,
        memory=(),
        progress=_progress(report, rows),
        advice=None,
        candidates=None,
        checkpoints=None,
        versions=(),
        left_out=tuple(_left_out(report, rows)),
        trace_command="",
    )


def _verdict(report: dict[str, Any], rows: list[dict[str, Any]]) -> Verdict:
    measured, plan = report["measured"], report["plan"]
    if not rows or measured["epoch_s"] is None:
        return Verdict("plain", "Nothing was left to train at the last launch.")
    said = f"Trained {len(rows):,} epochs; loss {rows[0]['loss']:.4g} to {rows[-1]['loss']:.4g}. "
    said += f"An epoch takes {format_time(measured['epoch_s'])}, of which the processor waits "
    said += f"{format_time(measured['waited_s'])}."
    over = measured["peak_bytes"] > plan["budget_bytes"]
    if over:
        said += f" A process had {format_bytes(measured['peak_bytes'])}, more than the budget."
    return Verdict("plain" if over else "good", said)


def _tiles(report: dict[str, Any]) -> Iterator[Tile]:
    plan, measured, graph = report["plan"], report["measured"], report["graph"]
    budget, in_memory = (format_bytes(plan[f"{key}_bytes"]) for key in ("budget", "in_memory"))
    yield Tile(
        "Memory, planned",
        format_bytes(plan["peak_bytes"]),
        f"of {budget}; in memory {in_memory} or more",
    )
    yield Tile("Memory, measured", format_bytes(measured["peak_bytes"]), "of a process, at most")
    if measured["epoch_s"] is not None:
        slowest = f"median; the slowest {format_time(measured['slowest_epoch_s'])}"
        yield Tile("Epoch", format_time(measured["epoch_s"]), slowest)
        for name, what in (("read", "Read"), ("written", "Written"), ("sent", "Sent")):
            size, planned = measured[f"{name}_bytes"], plan[f"{name}_bytes"]
            if planned:
                as_planned = "as planned" if size == planned else f"planned {planned:,} bytes"
                yield Tile(f"{what} an epoch", format_bytes(size), as_planned)
    sums = f"{plan['group']} sums open" if plan["group"] > 1 else "one sum open"
    yield Tile("Mode", plan["mode"], sums)
    expansion = f"each needs {graph['expansion_ratio']:.2f} times its rows, in the mean"
    yield Tile("Partitions", f"{graph['parts']} by {graph['partitioner']}", expansion)


def _panels(folder: Path) -> Iterator[TimelinePanel]:
    for title, name in (("predicted", "predicted.json"), ("measured", "timeline.json")):
        if exists(folder / name):
            epoch = _as_step(read_timeline(folder / name))
            processes = ranks_of(epoch)
            of = "the process" if processes == 1 else f"{processes} processes"
            yield panel(title, f"an epoch of {of}", epoch, ())


def _as_step(epoch: Timeline) -> Timeline:
    spans = (
        replace(
            span,
            lane=_LANES.get(span.lane, span.lane),
            word=f"sum {span.word}" if span.word.startswith(("add", "open")) else span.word,
        )
        for span in epoch.spans
    )
    return replace(epoch, spans=tuple(spans))


def _progress(report: dict[str, Any], rows: list[dict[str, Any]]) -> Progress | None:
    if not rows:
        return None
    nodes = report["graph"]["nodes"]
    shown = [rows[place] for place in shown_steps([row["loss"] for row in rows], {})]
    return Progress(
        step=tuple(row["epoch"] for row in shown),
        loss=tuple(row["loss"] for row in shown),
        validation=(None,) * len(shown),
        step_time_s=tuple(row["time_s"] for row in shown),
        tokens_per_s=tuple(nodes / row["time_s"] for row in shown),
        allocated_bytes=(None,) * len(shown),
        starts=(),
        predicted_step_s=report["plan"]["epoch_s"],
        tokens=nodes,
        steps=len(rows),
        words=("epoch", "nodes"),
    )


def _left_out(report: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[str]:
    tried = report["tried"]
    for each in tried[:TRIED]:
        sums, mode = each["group"], each["mode"]
        moved = (
            "does not fit"
            if each["problem"]
            else f"reads {format_bytes(each['read_bytes'])}, writes "
            f"{format_bytes(each['written_bytes'])}"
        )
        yield f"Another layout: {mode}, {sums} sums open: {moved}."
    if len(tried) > TRIED:
        yield f"{len(tried) - TRIED} more layouts were tried: report.json has them."
    if len(rows) > STEPS:
        yield f"Of {len(rows):,} epochs, curves show about {STEPS:,}; metrics.jsonl has all."
