"""Block times read off a layer profile: where it covers a block, and what is said elsewhere."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratrain.cost.blocks import blocks
from ratrain.cost.compute import block_times, case_of_block, update
from ratrain.cost.gpu_layer import Execution
from ratrain.cost.measured import Unmeasured, how_read, measured
from ratrain.describe.device import DeviceKind
from ratrain.describe.layer_profile import LayerProfile, MeasuredTime, shape_of
from ratrain.describe.presets import cluster_preset, model_preset
from ratrain.describe.profiles import profile_names
from ratrain.errors import SpecError

LLAMA = model_preset("llama-2-7b")
LAYER = blocks(LLAMA)[1]
PLAIN = cluster_preset("mixed-sites").device[0]
SECONDS = st.floats(1e-6, 10)


def entry(times: dict[int, tuple[float, float]], **changes: object) -> LayerProfile:
    """A measured layer of LLaMA-2-7B, by micro-batch: (forward, backward)."""
    plain = LayerProfile(
        shape_of(LLAMA, "layer"),
        2048,
        tuple(MeasuredTime(size, *pair) for size, pair in times.items()),
        "test",
    )
    return replace(plain, **changes)


def with_entry(*entries: LayerProfile) -> DeviceKind:
    return replace(PLAIN, layer_profile=entries)


def forward_s(device: DeviceKind, micro_batch: int, **changes: object) -> float:
    asked: dict[str, object] = {"sequence": 2048, "dtype": "fp16", **changes}
    return block_times(LAYER, device, micro_batch=micro_batch, **asked).forward_s  # pyright: ignore


def test_a_measured_micro_batch_takes_the_measured_time() -> None:
    times = block_times(
        LAYER, with_entry(entry({2: (0.5, 1.25)})), micro_batch=2, sequence=2048, dtype="fp16"
    )
    assert (times.forward_s, times.backward_s) == (0.5, 1.25)
    assert 0 < times.weight_gradient_s < times.input_gradient_s


def test_of_one_measured_micro_batch_the_fixed_part_does_not_grow() -> None:
    device = with_entry(entry({2: (0.5, 1.25)}, fixed_s=0.1))
    times = block_times(LAYER, device, micro_batch=6, sequence=2048, dtype="fp16")
    assert times.forward_s == pytest.approx(0.1 + 3 * 0.4)
    assert times.backward_s == pytest.approx(0.1 + 3 * 1.15)


@pytest.mark.parametrize(
    ("sizes", "fixed_s", "says"),
    [
        ({1: (0.5, 1.0), 2: (0.9, 1.8)}, 0.1, "several micro-batches say by themselves"),
        ({1: (0.5, 1.0)}, 0.6, "longer than a whole pass"),
    ],
)
def test_a_fixed_part_that_cannot_be_is_refused(
    sizes: dict[int, tuple[float, float]], fixed_s: float, says: str
) -> None:
    with pytest.raises(SpecError, match=says):
        entry(sizes, fixed_s=fixed_s)


@pytest.mark.parametrize(("block", "ratio"), [(0, 1.5), (1, 2.0), (-1, 2.0)])
def test_a_backward_that_was_not_measured_follows_from_the_forward_and_is_said(
    block: int, ratio: float
) -> None:
    part = blocks(LLAMA)[block]
    profile = LayerProfile(
        shape_of(LLAMA, part.kind), 2048, (MeasuredTime(1, 0.5),), "test", part.kind
    )
    device = with_entry(profile)
    times = block_times(part, device, micro_batch=1, sequence=2048, dtype="fp16")
    assert times.backward_s == pytest.approx(ratio * 0.5)
    known = measured(device, case_of_block(part, 2048, 1, "fp16"), 1, LLAMA.name)
    assert known is not None
    assert f"backward not measured: {ratio:g} times forward" in known.how


@pytest.mark.parametrize(
    ("size", "expected", "says"),
    [
        (2, 2.0, "measured"),
        (3, 3.0, "interpolated between the measured micro-batches 2 and 4"),
        (6, 7.0, "interpolated between the measured micro-batches 4 and 8"),
        (16, 22.0, "linearly extrapolated from micro-batches 4 and 8"),
        (1, 1.0, "linearly extrapolated from micro-batches 2 and 4"),
    ],
)
def test_between_and_beyond_measured_micro_batches_times_lie_on_lines(
    size: int, expected: float, says: str
) -> None:
    device = with_entry(entry({4: (4.0, 8.0), 2: (2.0, 4.0), 8: (10.0, 20.0)}))
    assert forward_s(device, size) == pytest.approx(expected)
    assert says in how_read([2, 4, 8], size)


def test_a_single_measurement_is_drawn_out_in_proportion_and_says_so() -> None:
    assert forward_s(with_entry(entry({2: (1.0, 2.0)})), 6) == pytest.approx(3.0)
    assert "scaled from micro-batch 2" in how_read([2], 6)


@given(st.dictionaries(st.integers(1, 64), st.tuples(SECONDS, SECONDS), min_size=1, max_size=6))
def test_a_larger_micro_batch_never_takes_less_and_none_takes_no_time(
    times: dict[int, tuple[float, float]],
) -> None:
    device = with_entry(entry(times))
    times_s = [forward_s(device, size) for size in range(1, 130)]
    assert times_s[0] > 0
    assert all(b >= a * (1 - 1e-12) for a, b in pairwise(times_s))


@pytest.mark.parametrize(
    "changes",
    [{"sequence": 1024}, {"tensor": 2}, {"execution": Execution(sequence_parallel=True)}],
)
@pytest.mark.parametrize("rates", [True, False])
def test_a_layer_that_was_measured_in_other_conditions_is_an_error_that_names_the_command(
    changes: dict[str, object], rates: bool
) -> None:
    device = with_entry(entry({1: (0.5, 1.0)}))
    device = device if rates else replace(device, rates=())
    assert forward_s(device, 1) == 0.5
    with pytest.raises(Unmeasured) as caught:
        forward_s(device, 4, **changes)
    asked = {"sequence": 2048, "tensor": 1, **changes}
    command = (
        f"ratrain profile --layers llama-2-7b --sequence {asked['sequence']} --micro-batch 4 "
        f"--tensor {asked['tensor']} --dtype fp16"
    )
    assert command in caught.value.fix
    assert "2048 tokens, tensor 1, fp16" in str(caught.value)


def test_a_layer_of_a_shape_that_was_never_measured_is_priced_by_the_rates_or_is_an_error() -> None:
    other = blocks(model_preset("llama-2-13b"))[1]
    asked = {"micro_batch": 1, "sequence": 2048, "dtype": "fp16"}
    device = with_entry(entry({1: (0.5, 1.0)}))
    expected = block_times(other, PLAIN, **asked)  # pyright: ignore[reportArgumentType]
    assert block_times(other, device, **asked) == expected  # pyright: ignore[reportArgumentType]
    with pytest.raises(Unmeasured, match="no rates"):
        block_times(other, replace(device, rates=()), **asked)  # pyright: ignore[reportArgumentType]


def test_selective_recovery_adds_what_the_kernel_model_says_to_the_measured_backward() -> None:
    plain = cluster_preset("a100-80g-dgx").device[0]
    device = replace(plain, layer_profile=(entry({1: (0.5, 1.0)}),))

    def backward_s(kind: DeviceKind, *, again: bool) -> float:
        execution = Execution(recompute_attention=again)
        return block_times(
            LAYER, kind, micro_batch=1, sequence=2048, dtype="fp16", execution=execution
        ).backward_s

    added_s = backward_s(device, again=True) - backward_s(device, again=False)
    assert added_s > 0
    assert added_s == pytest.approx(backward_s(plain, again=True) - backward_s(plain, again=False))


def test_times_that_include_the_group_s_sums_leave_none_to_be_added() -> None:
    inside = with_entry(entry({1: (0.5, 1.0)}, tensor=2, sums="included"))
    apart = with_entry(entry({1: (0.5, 1.0)}, tensor=2))
    asked = {"micro_batch": 1, "sequence": 2048, "dtype": "fp16", "tensor": 2}
    assert block_times(LAYER, inside, **asked).sums_inside  # pyright: ignore[reportArgumentType]
    assert not block_times(LAYER, apart, **asked).sums_inside  # pyright: ignore[reportArgumentType]


def test_a_measured_update_is_shared_by_its_owners() -> None:
    device = with_entry(entry({1: (0.5, 1.0)}, update_s=0.3))
    times = block_times(LAYER, device, micro_batch=1, sequence=2048, dtype="fp16")
    rate = device.memory.bandwidth_bytes_per_s
    assert update(times, 1e9, 3, device).alone_s(rate) == pytest.approx(0.1)


@pytest.mark.parametrize("name", profile_names())
def test_every_preset_profile_is_a_device_with_sourced_layers_as_fast_as_a_gpu(name: str) -> None:
    (device,) = cluster_preset(name).device
    assert device.name == name
    layers = [layer for layer in device.layer_profile if layer.block == "layer"]
    assert layers
    for layer in layers:
        shape = layer.shape.whole
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        weights = shape.hidden * (2 * q + 2 * kv + (3 if shape.gated_mlp else 2) * shape.ffn)
        for time in layer.times:
            tokens = time.micro_batch * layer.sequence
            reached = 2 * tokens * weights / layer.tensor / time.forward_s
            assert 1e12 < reached < device.rate(layer.dtype).peak_flops
            assert time.backward_s is not None
            assert 0.6 < time.backward_s / time.forward_s < 3.6
        assert layer.source.strip()
