"""The rates of the mt3000 preset are those of the programs."""

from __future__ import annotations

import pytest

from ratrain.describe.presets import cluster_preset
from ratrain.kernels import KERNELS, MACHINES, figure_of


@pytest.mark.slow
@pytest.mark.parametrize(("name", "share"), [("attention", 1.0), ("attention-backward", 4 / 5)])
def test_attention_s_rate_in_the_preset_is_the_kernel_s(name: str, share: float) -> None:
    """Backward counts as four products there; it needs five."""
    kernel = KERNELS[name]
    figure = figure_of(kernel, MACHINES[kernel.machine], kernel.timed)
    device = cluster_preset("mt3000").devices(1)[0].kind
    rate = device.rate("fp16")
    known = rate.attention_flops if share == 1.0 else rate.attention_backward_flops
    assert known == pytest.approx(figure.flops_per_s * share, rel=0.001)
