"""A wrong kernel is found, whatever is wrong with it, and named with its unit and micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import GROUPED, LLAMA
from wrong_kernels import Planted, Wrong, checked, step

from ratrain.check.kept import KeptCall
from ratrain.check.replay import replay
from ratrain.check.rows import Row, Where

ATEN = torch.ops.aten
MM = ATEN.mm.default
FORWARD = ATEN._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default
Further = dict[str, Any]


def a_wrong_scale(op: Any, args: Sequence[Any], _: Further, __: Where) -> Any:
    return MM(*args) * 1.05 if op is MM else NotImplemented


def a_missing_mask(op: Any, args: Sequence[Any], further: Further, _: Where) -> Any:
    return op(*args[:4], False, **further) if op is FORWARD else NotImplemented


def a_transposed_operand(op: Any, args: Sequence[Any], _: Further, __: Where) -> Any:
    square = op is MM and args[1].shape[0] == args[1].shape[1]
    return MM(args[0], args[1].t()) if square else NotImplemented


def a_wrong_gradient_only(op: Any, args: Sequence[Any], further: Further, _: Where) -> Any:
    if op is not BACKWARD:
        return NotImplemented
    dq, dk, dv = op(*args, **further)
    return dq, dv, dk


def a_sum_in_half(op: Any, args: Sequence[Any], _: Further, __: Where) -> Any:
    """Adds one half of the terms."""
    half = args[0].shape[1] // 2 if op is MM else 0
    return MM(args[0][:, :half], args[1][:half]) if half else NotImplemented


def a_stale_element(op: Any, args: Sequence[Any], _: Further, __: Where) -> Any:
    """Leaves the last row as it found it."""
    if op is not MM:
        return NotImplemented
    made = MM(*args)
    made[-1] = 0
    return made


def a_nan(op: Any, args: Sequence[Any], _: Further, __: Where) -> Any:
    made = MM(*args) if op is MM else NotImplemented
    if op is MM:
        made[0, 0] = torch.nan
    return made


def wrong_rows(rows: Any) -> list[Row]:
    return [row for row in rows if row.wrong]


DEFECTS: dict[Wrong, tuple[str, str]] = {
    a_wrong_scale: ("aten.mm.default", "FB"),
    a_missing_mask: (str(FORWARD), "F"),
    a_transposed_operand: ("aten.mm.default", "FB"),
    a_wrong_gradient_only: (str(BACKWARD), "B"),
    a_sum_in_half: ("aten.mm.default", "FB"),
    a_stale_element: ("aten.mm.default", "FB"),
    a_nan: ("aten.mm.default", "FB"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_a_wrong_kernel_is_found_and_no_other(
    defect: Wrong, dtype: torch.dtype, tmp_path: Path
) -> None:
    device, _ = checked(defect, tmp_path)
    step(device, LLAMA, dtype, micro_batches=1)
    name, ops = DEFECTS[defect]
    found = wrong_rows(device.record.rows)
    assert {row.name for row in found} == {name}
    assert {row.op for row in found} <= set(ops)


@pytest.mark.parametrize("unit", ["0", "1"])
@pytest.mark.parametrize("micro_batch", [0, 2])
def test_a_kernel_that_is_wrong_in_one_unit_of_one_micro_batch_is_named_with_both(
    unit: str, micro_batch: int
) -> None:
    def wrong(op: Any, args: Sequence[Any], further: Further, here: Where) -> Any:
        if (here.op, here.unit, here.micro_batch) != ("B", unit, micro_batch):
            return NotImplemented
        return a_wrong_scale(op, args, further, here)

    device, _ = checked(wrong)
    step(device, GROUPED, torch.bfloat16)
    (row,) = wrong_rows(device.record.rows)
    assert row.name == "aten.mm.default"
    assert {(w.where.op, w.where.unit, w.where.micro_batch) for w in row.first} == {
        ("B", unit, micro_batch)
    }
    assert row.wrong < row.calls


def test_a_kernel_that_writes_over_its_argument_is_found() -> None:
    def wrong(op: Any, args: Sequence[Any], _: Further, __: Where) -> Any:
        if op is not MM:
            return NotImplemented
        made = MM(*args)
        args[0].mul_(2)
        return made

    device, _ = checked(wrong)
    step(device, LLAMA, micro_batches=1)
    assert {row.name for row in device.record.rows if row.wrote} == {"aten.mm.default"}


def test_the_worst_call_is_kept_and_gives_the_same_bits_again(tmp_path: Path) -> None:
    device, planted = checked(a_missing_mask, tmp_path)
    step(device, LLAMA, torch.bfloat16)
    (row,) = wrong_rows(device.record.rows)
    kept = KeptCall(tmp_path / row.kept)
    assert kept.where["unit"] == row.at.unit and kept.where["op"] == "F"
    again = replay(kept, planted)
    assert again.same and again.now.wrong and again.now.times == row.times
    right = replay(kept, Planted(lambda *_: NotImplemented))
    assert right.before.wrong and not right.now.wrong and not right.same
