"""A check as figures, for `--json` and Python."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ratrain.program.pipelining.check import Check, Queued
from ratrain.program.pipelining.findings import Finding
from ratrain.program.pipelining.queues import Queueing


def figures_of(checked: Check, rules: Collection[Queueing]) -> dict[str, Any]:
    """What a check found, under these rules and all."""
    schedule, buffers = checked.schedule, checked.buffers
    found = checked.findings_under(rules)
    return {
        "sound": not found,
        "messages": "read",
        "ops": len(schedule.actions),
        "findings": [_finding(finding) for finding in found],
        "bounds": [],
        "schedule": {
            "ranks": len(schedule.rows),
            "stages": schedule.stages,
            "micro_batches": schedule.micro_batches,
            "rules": [_rule(checked, queued) for queued in checked.queued],
            "receive_buffers": None
            if buffers is None
            else {"by_stage": list(buffers.by_stage), "by_rank": list(buffers.by_rank)},
            "not_checked": list(checked.unchecked),
        },
    }


def _finding(finding: Finding) -> dict[str, Any]:
    action = finding.action
    return {
        "rule": finding.wrong.value,
        "rank": finding.rank,
        "op": action.word if action else None,
        "cell": action.cell + 1 if action else None,
        "state": None,
        "message": finding.message,
    }


def _rule(checked: Check, queued: Queued) -> dict[str, Any]:
    timed = None if checked.findings else queued.step_time
    return {
        "rule": queued.rule.value,
        "sound": checked.sound_under(queued.rule),
        "step_time": timed,
        "stops": list(queued.stop.lines()) if queued.stop else [],
    }
