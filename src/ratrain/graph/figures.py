"""A plan in figures, as JSON and a run's report have it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from ratrain.graph.plan import Plan
from ratrain.timeline.timeline import Timeline


@dataclass(frozen=True)
class OpTimes:
    """All ops of one kind in an epoch."""

    kind: str
    ops: int
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """How far they were predicted off, as a part of what they took."""
        return abs(self.predicted_s - self.measured_s) / max(self.measured_s, 1e-9)


def op_times(predicted: Timeline, measured: Timeline) -> list[OpTimes]:
    """Of each kind of op, the longest first; of the processes that were measured."""
    counts = Counter(span.word.split()[0] for span in measured.spans)
    sums = [defaultdict[str, float](float) for _ in range(2)]
    processes = {span.rank for span in measured.spans}
    for timeline, total in zip((predicted, measured), sums, strict=True):
        for span in (span for span in timeline.spans if span.rank in processes):
            total[span.word.split()[0]] += span.length_s
    rows = (OpTimes(kind, ops, *(total[kind] for total in sums)) for kind, ops in counts.items())
    return sorted(rows, key=lambda row: -row.measured_s)


def plan_figures(plan: Plan) -> dict[str, Any]:
    """A plan as JSON has it."""
    laid, layout = plan.laid, plan.program.layout
    return {
        "graph": {
            "nodes": laid.nodes,
            "edges": laid.edges,
            "parts": laid.shape.parts,
            "partitioner": laid.partitioner,
            "expansion_ratio": laid.expansion,
            "largest_part_nodes": laid.shape.largest,
        },
        "plan": {
            "mode": layout.mode,
            "group": layout.group,
            "cells": layout.cells,
            "cell_bytes": layout.cell_bytes,
            "processes": plan.processes,
            "read_bytes": plan.read_bytes,
            "written_bytes": plan.written_bytes,
            "sent_bytes": plan.sent_bytes,
            "disk_bytes": plan.disk_bytes,
            "standing_bytes": laid.standing_bytes,
            "working_bytes": laid.working_bytes(layout.group),
            "peak_bytes": plan.peak_bytes,
            "budget_bytes": plan.budget_bytes,
            "in_memory_bytes": plan.in_memory_bytes,
            "epoch_s": plan.epoch_s,
            "ops": len(plan.columns.ops),
        },
        "tried": [
            {
                "mode": each.layout.mode,
                "group": each.layout.group,
                "cells": each.layout.cells,
                "read_bytes": None if each.why else each.read_bytes,
                "written_bytes": None if each.why else each.written_bytes,
                "problem": each.why or None,
            }
            for each in plan.candidates
        ],
    }
