"""Where messages take longer than compute, a pipeline's step is theirs, one after another."""

from __future__ import annotations

import pytest
from drawn_clusters import MB, job, kind, llama

from ratrain.describe.cluster import ClusterSpec, HostKind, Link
from ratrain.describe.strict import FrozenMap
from ratrain.plan.search.layouts import search_layouts


@pytest.mark.parametrize("sequences", [8, 16])
def test_a_pipeline_is_estimated_by_the_messages_that_it_waits_for(sequences: int) -> None:
    """Two devices, neither of which has room for the whole model."""
    device = kind("behind-a-slow-link", 4000)
    hosts = (HostKind("host", device.name, 1, 2),)
    links = FrozenMap({"room": Link(1e-4, 2 * MB)})
    spec = ClusterSpec("slow", (device,), hosts, links)
    asked = job(spec, llama(4), sequences, replicas="identical", memory_budget_bytes=50 * MB)
    tried = search_layouts(asked).tried
    assert tried and all(plan.plan.layout.pipeline == 2 for plan in tried)
    message_s = 4 * 128 * 256 / (2 * MB)
    for plan in tried:
        count, size = plan.plan.alike.micro_batches, plan.plan.alike.micro_batch
        assert plan.step_s > count * size * message_s
        assert plan.estimate_s == pytest.approx(plan.step_s, rel=0.1)
