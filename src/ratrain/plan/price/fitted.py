"""What every stage keeps of its activations, where memory decides: by the bill."""

from __future__ import annotations

import numpy as np

from ratrain.describe.job import JobSpec
from ratrain.plan.layout.enumerate import Group
from ratrain.plan.layout.sizes import stores_scores
from ratrain.plan.layout.tiers import move_rate_bytes_per_s
from ratrain.plan.price.bill import BACKWARD, FORWARD, NONE, SELECTIVE, SPILL, bill_of
from ratrain.program.replicas import Recovery
from ratrain.program.strategies import Strategy
from ratrain.program.units import Bools, Ints


def fitted(group: Group) -> tuple[Ints, Ints]:
    """Recovery codes (rows x stages), and bytes that the fullest rank is over its budget."""
    pipeline, virtual = group.layout.pipeline, group.layout.virtual
    budget, shape = group.budgets, (len(group), group.layout.stages)
    codes = _with_spilling(group, codes_of(group.job, group.strategy))
    last_code = np.full(shape, codes[-1], dtype=np.int64)
    if group.job.schedule.recovery == "exempt-last":
        last_code[:, -1] = NONE
    if len(codes) == 1:
        return last_code, (bill_of(group, last_code).total - budget).max(axis=1)
    settled: Bools = np.zeros((len(group), pipeline), dtype=bool)
    missing = np.zeros((len(group), pipeline), dtype=np.int64)
    chosen = np.full((len(group), pipeline), codes[-1], dtype=np.int64)
    # One bill for all modes: arrays are short, so its time is that of its calls.
    every = group.only(np.tile(np.arange(len(group)), len(codes)))
    modes = np.repeat(np.array(codes), len(group))[:, None] * np.ones(shape[1], dtype=np.int64)
    totals = bill_of(every, modes).total.reshape(len(codes), len(group), pipeline)
    for code, total in zip(codes, totals, strict=True):
        over = total - budget
        now = ~settled & ((over <= 0) | (code == codes[-1]))
        chosen[now] = code
        missing[now] = over[now]
        settled |= now
    return np.tile(chosen, (1, virtual)), missing.max(axis=1)


def _with_spilling(group: Group, codes: tuple[int, ...]) -> tuple[int, ...]:
    """With what is spilled in place of recomputed where the tier is as fast: a micro-batch goes
    there and back while another is computed, forward or back."""
    tier, recomputes = group.job.activation_tier, [c for c in codes if c in (FORWARD, BACKWARD)]
    if not tier or len(codes) == 1 or not recomputes:
        return codes
    saved_bytes = group.units[1].saved_bytes
    spills = all(
        (rate := move_rate_bytes_per_s(group.placement.kind(name), tier)) is not None
        and saved_bytes / rate < times[1].forward_s
        for name, times in group.times.items()
    )
    return (*codes[: -len(recomputes)], SPILL, *recomputes) if spills else codes


def codes_of(job: JobSpec, strategy: Strategy) -> tuple[int, ...]:
    """The recovery modes that job and strategy allow, fastest first."""
    asked = job.schedule.recovery
    if asked in ("selective", "spill"):
        return (SELECTIVE if asked == "selective" else SPILL,)
    if strategy.recovery is Recovery.NONE or asked == "keep-all":
        return (NONE,)
    again = (BACKWARD,) if strategy.recovery is Recovery.BACKWARD else (FORWARD, BACKWARD)
    if asked != "auto" or strategy.recovers_all:
        return again[:1]
    return (NONE, *((SELECTIVE,) if stores_scores(job) else ()), *again)
