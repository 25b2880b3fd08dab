"""PyTorch's CSV schedules, there and back."""

from __future__ import annotations

import csv
import importlib
import importlib.util
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from made import LAYER, Case, cases, replica, small

from ratrain.errors import ProgramError
from ratrain.program.actions import Kind, Lane
from ratrain.program.pipelining.csv import program_of_csv, read_csv, write_csv
from ratrain.program.setup import Setup
from ratrain.program.strategies import Choices, apply_strategy, strategy
from ratrain.program.verify import verify

ONE_F_ONE_B = """\
0F0,0F1,,0B0,,0B1
,1F0,1B0,1F1,1B1
"""
TORCH = importlib.util.find_spec("torch") is not None


def test_one_f_one_b_is_aligned_moment_by_moment() -> None:
    program = apply_strategy(strategy("1f1b"), Setup((replica((2, 3), 2),)), Choices())
    assert write_csv(program) == "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n"


def test_a_compute_only_schedule_becomes_a_sound_program() -> None:
    program = program_of_csv(ONE_F_ONE_B, LAYER)
    assert [a.kind for a in program.lane(1, Lane.COMPUTE)][:4] == [Kind.F, Kind.B, Kind.F, Kind.B]
    assert program.setup.replicas[0].micro_batches == 2
    assert not verify(program).findings


def test_messages_and_state_work_are_left_to_the_setup_and_the_passes() -> None:
    text = """\
0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0RESHARD,0REDUCE_GRAD
1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RESHARD,1REDUCE_GRAD
"""
    assert read_csv(text) == {
        0: [(Kind.F, 0, 0), (Kind.B, 0, 0)],
        1: [(Kind.F, 1, 0), (Kind.B, 1, 0)],
    }


def test_a_v_shaped_schedule_with_split_backward_becomes_a_sound_program() -> None:
    """Two stages a rank, the middle two on one: no message passes between those."""
    text = "0F0,,,3F0,3I0,,3W0,0I0,0W0\n,1F0,2F0,,,2I0,1I0,1W0,2W0\n".replace(",,3W0", ",3W0")
    program = program_of_csv(text, LAYER)
    assert [stage.only.rank for stage in program.setup.replicas[0].stages] == [0, 1, 1, 0]
    assert len(program.lane(1, Lane.SEND_F)) == 1
    assert program.setup.split_backward
    assert not verify(program).findings


@settings(max_examples=40, deadline=None)
@given(cases())
def test_the_compute_order_survives_both_formats(case: Case) -> None:
    program = case.program
    for index, pipeline in enumerate(case.setup.replicas):
        only = write_csv(program, replica=index)
        orders = read_csv(only)
        assert orders == read_csv(write_csv(program, comms=True, replica=index))
        again = program_of_csv(only, LAYER)
        assert write_csv(again) == only
        assert not verify(again).findings
        assert again.setup.replicas[0].micro_batches == pipeline.micro_batches


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("0F0,0X0", "row 1, cell 2", "'0X0'"),
        ("0F0\n1F", "row 2, cell 1", "'1F'"),
        ("0F0,(0F1;0B0)TOGETHER", "row 1, cell 2", "OVERLAP_F_B"),
        ("0F0,F", "row 1, cell 2", "'F'"),
        ("0F0\n0F1", "s.csv", "stage 0 is on rank 0 and on rank 1"),
        ("0F0\n2F0", "s.csv", "no rank computes stage 1"),
        ("", "s.csv", "no rank computes"),
    ],
)
def test_what_we_do_not_have_is_named_with_its_cell(text: str, where: str, what: str) -> None:
    with pytest.raises(ProgramError) as caught:
        program_of_csv(text, LAYER, "s.csv")
    assert where in str(caught.value)
    assert what in str(caught.value)


PROGRAMS = {
    "gpipe": small("gpipe", (1, 2, 1)),
    "1f1b": small("1f1b", (1, 2, 1)),
    "interleaved": small("interleaved", (1, 1, 1, 1)),
    "zb-h1": small("zb-h1", (1, 2, 1)),
    "ratrain": small("ratrain", (1, 2, 1)),
    "zero3-heavy": small("zero3-heavy", (1, 2, 1)),
}


@pytest.mark.skipif(not TORCH, reason="needs torch")
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("comms", [False, True])
def test_pytorch_loads_what_we_write_and_can_run_it(name: str, comms: bool, tmp_path: Path) -> None:
    schedules: Any = importlib.import_module("torch.distributed.pipelining.schedules")

    program = PROGRAMS[name]
    stages = program.setup.replicas[0].stages
    path = tmp_path / "schedule.csv"
    path.write_text(write_csv(program, comms=comms))
    for row in csv.reader(StringIO(path.read_text())):
        for cell in row:
            action: Any = schedules._Action.from_str(cell)
            assert (str(action) if action else "") == cell

    runtime: Any = object.__new__(schedules._PipelineScheduleRuntime)
    runtime.pipeline_order, runtime._stages = {}, []
    runtime._num_stages, runtime._n_microbatches = len(stages), 4
    runtime.pp_group_size = program.setup.replicas[0].ranks
    runtime._defer_pp_recv = False
    runtime._load_csv(str(path), format="compute_comms" if comms else "compute_only")
    state_work = ("UNSHARD", "RESHARD", "REDUCE_GRAD")
    order = {
        rank: [a for a in actions if a.computation_type.name not in state_work]
        for rank, actions in runtime.pipeline_order_with_comms.items()
    }
    # PyTorch's own dry run: raises where a message is missing or the order deadlocks.
    ran = schedules._simulate_comms_compute(order, lambda s: stages[s].only.rank, len(stages))
    done = [action for actions in ran.values() for action in actions if action is not None]
    assert len(done) == sum(map(len, order.values()))
