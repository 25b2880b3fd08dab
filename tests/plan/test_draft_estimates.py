"""The closed form of drafts beside that of layouts, where both say the same: identical devices, one
to a host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from random_jobs import job
from test_price_properties import BASE, LINK

from ratrain.describe.cluster import ClusterSpec, HostKind, Link
from ratrain.describe.job import ClusterChoice, JobSpec
from ratrain.describe.strict import FrozenMap
from ratrain.plan.draft.pools import pools_of
from ratrain.plan.draft.space import of_plan
from ratrain.plan.draft.stages import Stages
from ratrain.plan.layout.enumerate import Group, groups_of
from ratrain.plan.layout.jobs import strategy_of
from ratrain.plan.layout.plan import MODES, plan_of_row
from ratrain.plan.price.estimate import estimate
from ratrain.plan.price.fitted import codes_of, fitted

SLOW = Link(3e-4, 2e8)
"""Messages over it take as long as stages."""


def spec_of(link: Link, recovery: str, devices: int) -> JobSpec:
    links = FrozenMap({"host": link, "room": link})
    cluster = ClusterSpec("c", (BASE,), (HostKind("h", BASE.name, 1, devices),), links)
    spec = job("gpt2-345m", "mt3000", 1, 24, 512, schedule="ratrain")
    schedule = replace(spec.schedule, recovery=recovery, skeleton="1f1b")
    return replace(spec, cluster=ClusterChoice(cluster, devices), schedule=schedule)


def ratios(group: Group, recovery: np.ndarray, stages: Stages) -> list[float]:
    """Of each row without exchanges in every micro-batch: a draft's time over a layout's, both
    without what follows the last backward."""
    known = estimate(group, recovery)
    found: list[float] = []
    usual = group.buffer == group.job.schedule.recovery_buffer
    for row in np.flatnonzero(usual & (group.sharding < 3) & ~group.sharded_gradients).tolist():
        plan = plan_of_row(group, row, recovery[row])
        draft = of_plan(stages, plan)
        if draft is not None and draft.parts[0].recovery == plan.alike.recovery:
            found.append(draft.alone_s / float(known.step_s[row] - known.tail_s[row]))
    return found


@pytest.mark.parametrize("recovery", ["keep-all", "everywhere"])
@pytest.mark.parametrize(("link", "least"), [(LINK, 1 - 1e-9), (SLOW, 0.85)], ids=["fast", "slow"])
def test_a_draft_of_identical_replicas_takes_what_its_layout_does(
    link: Link, least: float, recovery: str
) -> None:
    """Over slow links layouts look at loops over many stages, drafts at those over two."""
    found: list[float] = []
    for devices in (2, 4):
        spec = spec_of(link, recovery, devices)
        chosen = strategy_of(spec)
        modes = [MODES[code] for code in codes_of(spec, chosen)]
        stages = Stages(spec, pools_of(spec.cluster.members()), chosen, modes)
        for group in groups_of(spec):
            if group.layout.virtual == 1 and group.strategy.skeleton == "1f1b":
                found += ratios(group, fitted(group)[0], stages)
    assert len(found) > 80
    assert least < min(found) <= max(found) < 1 + 1e-9
