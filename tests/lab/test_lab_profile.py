"""A profile taken under a quota (root): what a share of a processor gives, not a whole one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from clusters import cluster, device, host, link

from ratrain.lab import Lab, place_to_env
from ratrain.lab.inside import inside
from ratrain.lab.needs import missing

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(missing()), reason=f"no lab on this machine: {'; '.join(missing())}"),
]

BURN = """
import time
from ratrain.profile.quota import throttled
before, end_s = throttled(), time.monotonic() + 0.5
while time.monotonic() < end_s: pass
print(throttled() - before)
"""
LAYER = """
from ratrain.describe.presets import model_preset
from ratrain.profile.layers import LayersAsked, layer_profiles
timed = layer_profiles(LayersAsked(model_preset("tiny-llama"), 32, (1,)))
(layer,) = [entry.times[0] for entry in timed.entries if entry.block == "layer"]
print(layer.forward_s + layer.backward_s)
"""


def printed(lab: Lab, rank: int, code: str) -> float:
    done = subprocess.run(
        inside(sys.executable, "-c", code),
        env={**os.environ, **place_to_env(lab.places[rank]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_work_beyond_a_share_is_seen_to_wait() -> None:
    with Lab(cluster(device(cpus=0.2), host(), link()), 1) as lab:
        assert printed(lab, 0, BURN) >= 5  # of 25 periods in half a second


@pytest.mark.slow
def test_layers_take_longer_on_a_quarter_of_a_processor() -> None:
    """Four times as long; without regard to the quota they seemed to take the same."""
    kinds = (device("whole", 1.0), device("quarter", 0.25))
    roomy = [text.replace('overhead = "50MB"', 'overhead = "900MB"') for text in kinds]
    hosts = (host("whole", count=1), host("quarter", count=1))
    with Lab(cluster(*roomy, *hosts, link()), 2) as lab:
        assert printed(lab, 1, LAYER) > 2 * printed(lab, 0, LAYER)
