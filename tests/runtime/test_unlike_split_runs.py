"""Plans of unlike replicas in ZB-H1, as the planner writes them, and in an order found by search,
on real processes: the numbers are those of the same plan in 1F1B, bit for bit, and those of one
process to rounding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crew import Crew
from launched import assert_same_end, cut_short, loss_bits, made, start
from runs_made import Setting, Unlike
from test_unlike_replicas import assert_as_alone, assert_held
from training import Result, train

from ratrain.plan.case.case import Case
from ratrain.plan.file.form import load_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.orders.board import Board
from ratrain.plan.orders.seeds import order_of, policies
from ratrain.runtime.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ALONE = Setting("1f1b", learning_rate=1e-3)
DEPTHS = (Unlike((2, 1, 1), 3, micro_batch=2), Unlike((4,), 2))
SHARES = (Unlike((1, 3), 5), Unlike((3, 1), 3))
DEGREES = (Unlike((3, 1), 5, tensor=(1, 2)), Unlike((4,), 3))
MEMBERS = (("0, 2-3, 7", "1, 4-6"), ("1-3, 6-7", "0, 4-5"))


def in_zb_h1(replicas: tuple[Unlike, ...], **changes: Any) -> Setting:
    """A plan whose schedule is ratrain, in the order that the planner chose."""
    return replace(ALONE, name="ratrain", skeleton="zb-h1", unlike=replicas, **changes)


def assert_bits_of_1f1b(setting: Setting, crew: Crew, folder: Path) -> Result:
    """The run in ZB-H1, which has the bits of 1F1B and holds no more than was proved."""
    split = train(crew, setting, folder / "split")
    assert RunFolder(folder / "split" / "run").read_program().setup.split_backward
    usual = train(crew, replace(setting, skeleton="1f1b"), folder / "usual")
    assert not split.differences(usual)
    assert_held(split)
    return split


@pytest.mark.matrix
@pytest.mark.parametrize(
    "setting",
    [
        in_zb_h1(DEPTHS, masked=True),
        in_zb_h1(SHARES, sharding=1, clip_norm=0.5),
        in_zb_h1(DEGREES),
        in_zb_h1((Unlike((2, 2), 8, joined=(1, 2)),)),
        in_zb_h1((Unlike((1, 3), 8),), serving=MEMBERS),
        in_zb_h1(SHARES, model=(("tie_word_embeddings", True),)),
        in_zb_h1(DEPTHS, network="staged"),
    ],
    ids=str,
)
def test_it_has_the_bits_of_1f1b_and_the_numbers_of_one_process(
    setting: Setting, crew: Crew, tmp_path: Path
) -> None:
    split = assert_bits_of_1f1b(setting, crew, tmp_path)
    alone = replace(setting, name="1f1b", skeleton=None, unlike=(), serving=(), sharding=None)
    assert_as_alone(split, train(crew, replace(alone, network="sockets"), tmp_path / "alone"))


@pytest.mark.matrix
@pytest.mark.parametrize(
    "changes",
    [
        {"gradient_wire": "bf16", "boundary_wire": "bf16"},
        {"gradient_wire": "bf16", "error_feedback": True, "clip_norm": 0.5},
        {"dtype": "bf16"},
        {"dtype": "fp16", "clip_norm": 0.5},
    ],
    ids=str,
)
def test_in_fewer_bits_it_has_those_of_1f1b_too(
    changes: dict[str, Any], crew: Crew, tmp_path: Path
) -> None:
    split = assert_bits_of_1f1b(in_zb_h1(DEPTHS, **changes), crew, tmp_path)
    whole = train(crew, ALONE, tmp_path / "alone")
    assert split.loss_values == pytest.approx(whole.loss_values, rel=5e-3)


def test_a_checkpoint_goes_on_from_1f1b_and_back_bit_by_bit(tmp_path: Path) -> None:
    setting = in_zb_h1(DEPTHS, steps=6, every=2, keep=9, clip_norm=0.5)
    usual = made(tmp_path / "whole", replace(setting, skeleton="1f1b"))
    start(usual)
    split = cut_short(usual, tmp_path / "split", setting, 2)
    start(split)
    back = cut_short(split, tmp_path / "back", replace(setting, skeleton="1f1b"), 4)
    start(back)
    for folder in (split, back):
        assert loss_bits(folder) == loss_bits(usual)
        assert_same_end(folder, usual)


def test_an_order_of_each_replica_found_by_search_has_the_bits_of_1f1b(
    crew: Crew, tmp_path: Path
) -> None:
    setting = replace(ALONE, name="ratrain", unlike=(Unlike((1, 1, 2), 6), Unlike((4,), 2)))
    usual = train(crew, setting, tmp_path / "usual")
    orders, file = searched(tmp_path / "usual"), tmp_path / "mine.csv"
    file.write_text(orders)
    mine = train(crew, replace(setting, skeleton=str(file)), tmp_path / "mine")
    assert RunFolder(tmp_path / "mine" / "run").read_program().setup.split_backward
    assert not mine.differences(usual)
    assert_held(mine)


def searched(folder: Path) -> str:
    """The file of an order with backward split, on the plan of a folder."""
    path = folder / "plan.json"
    board = Board(Case(plan_of_file(load_plan(path), str(path))), split=True)
    deep, flat = ([*policies(pipeline)] for pipeline in board.pipelines)
    orders = (*order_of(board.pipelines[0], deep[4]), *order_of(board.pipelines[1], flat[1]))
    return board.csv(orders)
