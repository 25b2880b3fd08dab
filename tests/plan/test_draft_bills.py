"""The bill of a draft's stage is that of the same stage in a layout, to the byte."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from random_jobs import job

from ratrain.describe.job import Batch, JobSpec, LayoutSpec
from ratrain.plan.draft.pools import Post, pools_of
from ratrain.plan.draft.stages import Stages
from ratrain.plan.layout.enumerate import StateMode, group_of_layout
from ratrain.plan.layout.jobs import strategy_of
from ratrain.plan.layout.placement import place
from ratrain.plan.layout.plan import MODES
from ratrain.plan.price.bill import bill_of
from ratrain.program.replicas import Recovery
from ratrain.program.units import RECOVERY_CODE

STATES = [StateMode(0, False), StateMode(1, False), StateMode(2, True), StateMode(3, True)]
MICRO_BATCHES = 8
OPTIONS: dict[str, dict[str, object]] = {
    "plain": {},
    "residuals": {"error_feedback": True},
    "stored scores": {"attention": "stored"},
    "optimizer away": {"optimizer_tier": "host"},
    "early recovery of four": {"recovery_buffer": 4},
}


def spec_of(layout: LayoutSpec, micro_batch: int, option: str) -> JobSpec:
    sequences = layout.data * MICRO_BATCHES * micro_batch
    base = job("gpt-3.6b", "a100-80g-dgx", layout.devices, sequences, 512)
    schedule = replace(base.schedule, backend="torch", gradient_dtype="fp32", collective=None)
    schedule = replace(schedule, **OPTIONS[option])  # type: ignore[arg-type]
    batch = Batch(sequences, micro_batch)
    return replace(base, batch=batch, layout=layout, schedule=schedule)


def of_draft(spec: JobSpec, mode: Recovery, state: StateMode) -> list[int]:
    """Bytes of each stage as drafts bill them."""
    assert spec.layout is not None
    stages = Stages(spec, pools_of(spec.cluster.members()), strategy_of(spec), MODES)
    post, data, last = Post(0, spec.layout.tensor), spec.layout.data, spec.layout.pipeline - 1
    bills = stages.bills(post, spec.batch.micro_batch, data, state, 0)[MODES.index(mode)]
    layers = spec.model.spec.layers // (last + 1)
    return [int(bills[layers, (s == 0) + 2 * (s == last), last - s + 1]) for s in range(last + 1)]


def of_layout(spec: JobSpec, mode: Recovery, state: StateMode) -> list[int]:
    """The same as the planner bills a layout."""
    assert spec.layout is not None
    chosen = replace(strategy_of(spec), sharding=state.sharding)
    group = group_of_layout(spec, chosen, place(spec, spec.layout), state.sharded_gradients)
    codes = np.full((1, spec.layout.stages), RECOVERY_CODE[mode])
    return bill_of(group, codes).total[0].tolist()


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(
    ("layout", "state"),
    [((2, 1, 2), STATES[0]), *product([(1, 2, 1), (2, 4, 1)], STATES)],
    ids=str,
)
def test_a_draft_s_stage_is_billed_as_a_layout_s(
    layout: tuple[int, int, int], state: StateMode, option: str
) -> None:
    """In every recovery mode; with small micro-batches, where states take the most, and large."""
    for mode, size in product(Recovery, (1, 16)):
        if mode is Recovery.SPILL:  # needs a tier that no draft has
            continue
        spec = spec_of(LayoutSpec(*layout), size, option)
        assert of_draft(spec, mode, state) == of_layout(spec, mode, state), (mode, size)
