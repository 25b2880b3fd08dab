"""Blocks priced kernel by kernel: what must hold whatever the constants are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratrain.cost.blocks import blocks
from ratrain.cost.collectives import message, ring_all_reduce, ring_half
from ratrain.cost.compute import BlockTimes, block_times
from ratrain.cost.gemm import TILES, Product, product_s
from ratrain.cost.gpu_layer import LAYER_KERNELS, PLAIN, Execution
from ratrain.describe.device import DeviceKind
from ratrain.describe.presets import cluster_preset, model_preset

A100 = cluster_preset("a100-80g-dgx")
GPU = A100.device[0]
assert GPU.kernels is not None
KERNELS = GPU.kernels
RATE, MEMORY = GPU.flops_rate("fp16"), GPU.elementwise_bytes_per_s
LAYER = blocks(model_preset("gpt-22b"))[1]
SIZES = st.integers(1, 20_000)


def layer_times(
    device: DeviceKind = GPU, tensor: int = 1, micro_batch: int = 1, how: Execution = PLAIN
) -> BlockTimes:
    return block_times(
        LAYER,
        device,
        micro_batch=micro_batch,
        sequence=2048,
        dtype="fp16",
        tensor=tensor,
        execution=how,
    )


@given(SIZES, SIZES, SIZES)
def test_no_product_is_faster_than_the_rate_or_the_memory(m: int, n: int, k: int) -> None:
    product = Product(m, n, k)
    time_s = product_s(product, KERNELS, RATE, MEMORY)
    assert time_s >= product.flops / RATE
    assert time_s >= product.bytes / MEMORY


@given(SIZES, SIZES, SIZES)
def test_a_longer_product_never_takes_less_time(m: int, n: int, k: int) -> None:
    less, more = (product_s(Product(m, n, d), KERNELS, RATE, MEMORY) for d in (k, k + 64))
    assert more >= less


def test_a_wave_begun_is_paid_whole() -> None:
    """Between one and two waves of the smallest tile, more tiles cost nothing more."""
    m, n, _ = TILES[-1]
    few, many, next_wave = (
        product_s(Product(m, n, 65_536, tiles), KERNELS, RATE, 1e18)
        for tiles in (1, KERNELS.processors, KERNELS.processors + 1)
    )
    assert few == many
    assert next_wave > 1.2 * many


def test_a_large_product_reaches_nearly_the_whole_rate() -> None:
    product = Product(27 * 1024, 16 * 1024, 16 * 1024)
    reached = product.flops / product_s(product, KERNELS, RATE, MEMORY)
    assert 0.97 * RATE < reached <= RATE


def test_small_micro_batches_wait_for_the_host() -> None:
    slow = replace(GPU, kernels=replace(KERNELS, host_s=1.0))
    times = layer_times(slow)
    assert times.forward_s == pytest.approx(22.0)
    assert times.backward_s == pytest.approx(38.0)


def test_the_sums_of_a_group_fill_what_the_device_would_idle_for_the_host() -> None:
    def times(sums_s: float, *, blocking: bool) -> BlockTimes:
        kernels = replace(KERNELS, host_s=1.0, blocking_sums=blocking)
        slow = replace(GPU, kernels=kernels)
        return block_times(
            LAYER, slow, micro_batch=1, sequence=2048, dtype="fp16", tensor=2, sums_s=sums_s
        )

    alone, apart, inside = (
        times(0, blocking=False),
        times(5, blocking=False),
        times(5, blocking=True),
    )
    assert apart.forward_s + 5 == pytest.approx(alone.forward_s) == inside.forward_s
    assert apart.backward_s + 5 == pytest.approx(alone.backward_s) == inside.backward_s


@given(st.floats(1e-6, 1e-3), st.sampled_from([1, 2, 4]), st.floats(1, 10))
def test_going_in_step_never_gains_and_costs_at_most_the_sum(
    host_s: float, tensor: int, power: float
) -> None:

    def forward_s(host_s: float, lockstep: float | None) -> float:
        kernels = replace(KERNELS, host_s=host_s, lockstep=lockstep)
        return layer_times(replace(GPU, kernels=kernels), tensor).forward_s

    loose, tight = forward_s(host_s, None), forward_s(host_s, power)
    assert tight >= loose * (1 - 1e-12)
    assert tight <= (forward_s(0.0, None) + LAYER_KERNELS[0] * host_s) * (1 + 1e-12)
    if tensor == 1:
        assert tight == loose


def test_tensor_parallelism_gains_less_than_its_degree_without_sequence_parallelism() -> None:
    whole, part = layer_times().forward_s, layer_times(tensor=8).forward_s
    sequence = layer_times(tensor=8, how=Execution(sequence_parallel=True)).forward_s
    assert whole / 8 < sequence < part < whole


def test_selective_recovery_costs_backward_alone() -> None:
    plain = layer_times(micro_batch=4, tensor=8)
    selective = layer_times(micro_batch=4, tensor=8, how=Execution(recompute_attention=True))
    assert selective.forward_s == plain.forward_s
    assert plain.backward_s < selective.backward_s < plain.backward_s + plain.forward_s


def test_attention_that_keeps_scores_on_chip_is_faster() -> None:
    flash = replace(GPU, kernels=replace(KERNELS, attention="flash"))
    assert layer_times(flash).backward_s < layer_times().backward_s


def test_a_device_without_a_kernel_model_has_one_rate() -> None:
    plain = replace(GPU, kernels=None, launch_s=0.0)
    assert layer_times(plain, tensor=2).forward_s == pytest.approx(layer_times(plain).forward_s / 2)


def test_a_collective_starts_once_and_a_group_of_one_not_at_all() -> None:
    link = A100.links["host"]
    once = ring_all_reduce(0, 8, link).latency_s
    assert once == pytest.approx(14 * link.latency_s + link.collective_s)
    assert ring_half(1e9, 1, link).alone_s(1.0) == 0


def test_a_blocking_message_holds_its_sender_for_all_of_its_time() -> None:
    link = A100.links["host"]
    sent = message(1e6, link, blocking=True)
    assert sent.driving_s == pytest.approx(link.latency_s + 1e6 / link.bandwidth_bytes_per_s)
    assert message(1e6, link).driving_s == 0
