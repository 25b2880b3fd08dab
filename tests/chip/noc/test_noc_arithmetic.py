"""The values that the routers compute."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noc_golden import reduction, row

from ratrain.chip.noc.arithmetic import combine
from ratrain.chip.noc.mesh import run
from ratrain.chip.noc.numbers import decode, encode
from ratrain.chip.noc.opcodes import FP_OPCODES, INT_OPCODES, Format, Opcode
from ratrain.chip.noc.spec import MeshSpec, Plane, RouterSpec
from ratrain.chip.noc.workload import Workload
from ratrain.errors import ChipError, SpecError

SMALL = [Format.FP16, Format.BF16, Format.FP8, Format.FP8_ALT]


@pytest.mark.parametrize("form", SMALL)
def test_every_code_of_a_small_format_survives_decoding(form: Format) -> None:
    codes = np.arange(1 << (8 * form.width_bytes))
    data = codes.astype(np.uint16 if form.width_bytes == 2 else np.uint8).view(np.uint8)
    values = decode(data, form)
    again = encode(values, form)
    numbers = ~np.isnan(values.astype(np.float64))
    width = form.width_bytes
    assert np.array_equal(again.reshape(-1, width)[numbers], data.reshape(-1, width)[numbers])


@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_fp16_rounds_as_numpy_does(values: list[float]) -> None:
    array = np.array(values, np.float64)
    array = array[~np.isnan(array)]
    from ratrain.chip.noc.numbers import _encode_small

    mine = _encode_small(array, 5, 10, 2)
    with np.errstate(over="ignore"):
        assert np.array_equal(mine, array.astype(np.float16).view(np.uint8))


def test_bf16_is_fp32_cut_to_the_nearest() -> None:
    assert decode(
        encode(np.array([1 + 2**-8, 1 + 3 * 2**-8]), Format.BF16), Format.BF16
    ).tolist() == [
        1.0,
        1.015625,
    ]


def core_combine(op: Opcode, form: Format, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """By the compiled core: a work task on one node."""
    w = Workload(MeshSpec(1, 1), memory_bytes=2 * a.size)
    w.write((0, 0), 0, a)
    w.write((0, 0), a.size, b)
    w.work((0, 0), 1, op=op, form=form, read_at=a.size, write_at=0, size_bytes=a.size)
    run(w)
    return w.read((0, 0), 0, a.size)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(Format)), st.integers(0, 5), st.binary(min_size=64, max_size=64))
def test_core_and_numpy_agree_on_any_bits(form: Format, number: int, raw: bytes) -> None:
    table = list((FP_OPCODES if form.is_float else INT_OPCODES).values())
    op = table[number % len(table)]
    a, b = np.frombuffer(raw[:32], np.uint8), np.frombuffer(raw[32:], np.uint8)
    assert np.array_equal(core_combine(op, form, a, b), combine(op, form, a, b))


@pytest.mark.parametrize("form", SMALL)
def test_core_and_numpy_agree_on_random_pairs_of_small_floats(form: Format) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 256, 4096).astype(np.uint8) for _ in range(2))
    for op in FP_OPCODES.values():
        assert np.array_equal(core_combine(op, form, a, b), combine(op, form, a, b))


def test_min_and_max_prefer_numbers_and_order_the_zeros() -> None:
    a = encode(np.array([np.nan, 0.0, -0.0, 3.0]), Format.FP64)
    b = encode(np.array([1.0, -0.0, 0.0, np.nan]), Format.FP64)
    low = decode(core_combine(Opcode.FP_MIN, Format.FP64, a, b), Format.FP64).astype(float)
    high = decode(core_combine(Opcode.FP_MAX, Format.FP64, a, b), Format.FP64).astype(float)
    assert low.tolist() == [1.0, 0.0, 0.0, 3.0] and np.signbit(low[1:3]).all()
    assert high.tolist() == [1.0, 0.0, 0.0, 3.0] and not np.signbit(high[1:3]).any()


def test_a_signalling_nan_loses_against_a_number_too() -> None:
    signalling = np.array([0x01, 0x7C], np.uint8)
    unit = encode(np.array([1.0]), Format.FP16)
    for op in (Opcode.FP_MIN, Opcode.FP_MAX):
        for a, b in ((signalling, unit), (unit, signalling)):
            assert np.array_equal(combine(op, Format.FP16, a, b), unit)
            assert np.array_equal(core_combine(op, Format.FP16, a, b), unit)


@pytest.mark.parametrize("form", [Format.FP64, Format.FP32, Format.FP16, Format.BF16])
def test_a_row_is_added_from_the_far_end_bit_for_bit(form: Format) -> None:
    """Floating-point sums depend on their order: this is the RTL's."""
    w = Workload(MeshSpec(4, 1, planes=(Plane("wide", 64),)), memory_bytes=128)
    rng = np.random.default_rng(3)
    lanes = 64 // form.width_bytes
    values = [rng.standard_normal(lanes) * 10.0 ** rng.integers(-3, 4, lanes) for _ in range(4)]
    group = None
    for x in range(4):
        w.write((x, 0), 0, encode(values[x], form))
        task = w.packet(
            (x, 0),
            (0, 0),
            1,
            op=Opcode.FP_ADD,
            form=form,
            sources=(3, 0),
            group=group,
            read_at=0,
            write_at=64,
        )
        group = task if group is None else group
    run(w)
    total = encode(values[3], form)
    for x in (2, 1, 0):
        total = combine(Opcode.FP_ADD, form, total, encode(values[x], form))
    assert np.array_equal(w.read((0, 0), 64, 64), total)
    backwards = encode(values[0], form)
    for x in (1, 2, 3):
        backwards = combine(Opcode.FP_ADD, form, backwards, encode(values[x], form))
    assert not np.array_equal(total, backwards)


@pytest.mark.parametrize(("bits", "expected"), [((1, 1, 1, 1), 1), ((1, 1, 0, 1), 0)])
def test_lsb_and_is_one_only_if_all_are(bits: tuple[int, ...], expected: int) -> None:
    w = Workload(MeshSpec(4, 1, planes=(Plane("req", 8),)), memory_bytes=16)
    for x in range(4):
        w.write((x, 0), 0, np.array([bits[x]] + [0] * 7, np.uint8))
    group = None
    for x in range(4):
        task = w.packet(
            (x, 0),
            (0, 0),
            1,
            op=Opcode.LSB_AND,
            sources=(3, 0),
            group=group,
            read_at=0,
            write_at=8,
        )
        group = task if group is None else group
    run(w)
    assert w.read((0, 0), 8, 1)[0] == expected


def test_an_error_response_wins_over_the_others() -> None:
    w = Workload(MeshSpec(4, 1, planes=(Plane("rsp", 8),)), memory_bytes=16)
    w.write((2, 0), 0, np.array([2] + [0] * 7, np.uint8))
    group = None
    for x in range(4):
        task = w.packet(
            (x, 0),
            (1, 0),
            1,
            op=Opcode.COLLECT_B,
            sources=(3, 0),
            group=group,
            read_at=0,
            write_at=8,
        )
        group = task if group is None else group
    run(w)
    assert w.read((1, 0), 8, 1)[0] == 2


def test_a_third_operand_is_an_error_that_names_router_cycle_and_opcode() -> None:
    w = Workload(MeshSpec(4, 4, planes=(Plane("wide", 64),)))
    reduction(w, row(w, 2), (3, 0), (1, 2), 4)
    with pytest.raises(ChipError) as caught:
        run(w)
    message = str(caught.value)
    assert "router (1, 2)" in message and "INT_ADD" in message and "E W L" in message
    r = run(w, check=False)
    assert r.fault is not None and f"cycle {r.fault.cycle}" in message
    assert (r.status, r.fault.place, r.fault.inputs) == ("lost operand", (1, 2), ("E", "W", "L"))


@pytest.mark.parametrize("unit", ["kinput", "ideal"])
def test_the_other_units_add_all_three(unit: str) -> None:
    router = RouterSpec(reduction=unit)  # type: ignore[arg-type]
    w = Workload(MeshSpec(4, 1, planes=(Plane("a", 8),), router=router), memory_bytes=16)
    for x in range(4):
        w.write((x, 0), 0, np.array([100 * (x + 1)], np.int64).view(np.uint8))
    reduction(w, row(w, 0), (3, 0), (1, 0), 1, with_values=True)
    run(w)
    assert w.read((1, 0), 8, 8).view(np.int64)[0] == 1000


def test_without_dca_arithmetic_is_refused_and_barriers_are_not() -> None:
    mesh = MeshSpec(4, 1, router=RouterSpec(dca=False))
    with pytest.raises(SpecError, match="no Direct Compute Access"):
        reduction(Workload(mesh), [(0, 0), (1, 0)], (1, 0), (0, 0), 1)
    w = Workload(mesh)
    reduction(w, [(0, 0), (1, 0)], (1, 0), (0, 0), 1, op=Opcode.LSB_AND)
    assert run(w).last_cycle == 4
