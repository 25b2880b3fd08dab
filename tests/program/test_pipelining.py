"""Schedules of PyTorch's pipelining, proved as they are written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from made import Case, cases
from pipelining_files import AS_LATE_AS_NEEDED, SWAPPED, cells, text_of
from torch_schedules import LOOPED, TORCH, V_SHAPED, lowered

from ratrain.errors import ProgramError
from ratrain.program.pipelining.check import Check, check
from ratrain.program.pipelining.csv import write_csv
from ratrain.program.pipelining.findings import Wrong
from ratrain.program.pipelining.queues import Queueing
from ratrain.program.pipelining.reading import read_schedule
from ratrain.program.pipelining.repair import repaired
from ratrain.program.pipelining.words import lines_of

torch_made = pytest.mark.skipif(not TORCH, reason="needs torch")
ALL = tuple(Queueing)


def checked(text: str) -> Check:
    return check(read_schedule(text))


def sound(found: Check) -> list[Queueing]:
    return [rule for rule in Queueing if found.sound_under(rule)]


def wrongs(text: str, *rules: Queueing) -> list[Wrong]:
    return [finding.wrong for finding in checked(text).findings_under(rules or ALL)]


def step_times(text: str) -> list[float | None]:
    return [queued.step_time for queued in checked(text).queued]


# ---- PyTorch's own ----------------------------------------------------------------------


@torch_made
@pytest.mark.matrix
@pytest.mark.parametrize(
    "ranks", [2, 3, 4, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in range(5, 9))]
)
@pytest.mark.parametrize("name", ["GPipe", *LOOPED, *V_SHAPED])
def test_what_pytorch_lowers_is_sound_however_messages_queue(name: str, ranks: int) -> None:
    found = checked(lowered(name, ranks, 2 * ranks))
    assert found.findings_under(ALL) == ()
    assert found.schedule.stages == ranks * (1 if name == "GPipe" else 2)


@torch_made
def test_pytorchs_own_listing_of_1f1b_lacks_the_first_micro_batch_of_its_last_stage() -> None:
    """PyTorch 2.13's `Schedule1F1B._get_pipeline_order`, which it cannot lower itself."""
    text = lowered("1F1B", 2, 4, comms=False)
    assert [f.message for f in checked(text).findings if f.wrong is Wrong.MISSING_FORWARD] == [
        "row 1 has no 0F4",
        "row 2 has no 1F0",
    ]


@torch_made
@pytest.mark.slow
def test_one_queue_a_rank_costs_what_it_costs_in_the_schedules_of_pytorch() -> None:
    """As of PyTorch's thread 188833: receives are placed far ahead of sends that are ready."""
    expected = {
        ("Interleaved1F1B", 4): [71.85, 57.7, 57.7, 57.7],
        ("Interleaved1F1B", 8): [177.35, 118.5, 118.5, 118.5],
        ("LoopedBFS", 4): [81.2, 58.8, 58.8, 58.8],
        ("InterleavedZeroBubble", 4): [60.6, 52.0, 52.0, 52.0],
        ("ZBVZeroBubble", 4): [55.9, 51.65, 51.65, 51.65],
        ("DualPipeV", 4): [71.05, 55.05, 54.85, 54.85],
    }
    made = {(name, p): step_times(lowered(name, p, 2 * p)) for name, p in expected}
    assert made == expected


@torch_made
def test_receive_buffers_are_those_that_pytorch_counts() -> None:
    """The tables of PyTorch's pull request 196465."""
    found = checked(lowered("ZBVZeroBubble", 4, 8)).buffers
    assert found is not None
    assert found.by_stage == (5, 14, 16, 8)
    assert found.by_rank == (3, 11, 12, 7)
    four_stages = checked(lowered("Interleaved1F1B", 4, 8, chunks=4)).buffers
    assert four_stages is not None
    assert four_stages.by_stage == (22, 30, 28, 32)
    assert four_stages.by_rank == (14, 20, 17, 16)


@torch_made
@pytest.mark.parametrize("name", [*LOOPED, *V_SHAPED])
def test_a_repaired_schedule_loses_nothing_to_one_queue(name: str) -> None:
    text = lowered(name, 4, 8)
    found = checked(repaired(read_schedule(text)).text)
    assert found.findings_under(ALL) == ()
    one, *_, free = found.queued
    assert one.step_time is not None and free.step_time is not None
    assert one.step_time < 1.01 * free.step_time
    assert one.step_time < (checked(text).queued[0].step_time or 0)


# ---- the deadlocks of PyTorch's thread 172668 -------------------------------------------


@pytest.mark.parametrize("text", [AS_LATE_AS_NEEDED, SWAPPED])
def test_sends_that_meet_sends_stop_where_both_directions_share_a_queue(text: str) -> None:
    found = checked(text)
    assert sound(found) == [Queueing.DIRECTED, Queueing.FREE]
    assert [f.wrong for f in found.findings_under(ALL)] == [Wrong.DEADLOCK, Wrong.DEADLOCK]
    again = repaired(found.schedule)
    assert sound(checked(again.text)) == list(ALL)
    assert again.added == again.left_out == ()


def test_a_stop_is_told_wait_by_wait() -> None:
    (finding,) = checked(AS_LATE_AS_NEEDED).findings_under((Queueing.PAIR,))
    assert finding.message == (
        "1RECV_F1 (row 2, cell 6) is one of 52 actions that never run: "
        "1RECV_F1 (row 2, cell 6) stands, in rank 1's queue with rank 0, behind "
        "1SEND_F0 (row 2, cell 5); "
        "1SEND_F0 (row 2, cell 5) is one message with 2RECV_F0 (row 1, cell 7); "
        "2RECV_F0 (row 1, cell 7) stands, in rank 0's queue with rank 1, behind "
        "0SEND_F1 (row 1, cell 6); "
        "0SEND_F1 (row 1, cell 6) is one message with 1RECV_F1 (row 2, cell 6)"
    )


def test_batches_of_messages_pass_where_the_same_ones_alone_would_stop() -> None:
    """Both send, then both receive: as of PyTorch's pull request 175572."""
    alone = """\
0F0,0SEND_F0,2RECV_F0,2F0
1RECV_F0,1F0,1SEND_F0
"""
    assert sound(checked(alone)) == list(ALL)
    text = """\
0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2RECV_F1,2F1
1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1
"""
    assert sound(checked(text)) == [Queueing.DIRECTED, Queueing.FREE]
    batched = text.replace("0SEND_F1,2RECV_F0", "(0SEND_F1;2RECV_F0)BATCH_P2P")
    batched = batched.replace("1SEND_F0,1RECV_F1", "(1SEND_F0;1RECV_F1)BATCH_P2P")
    assert sound(checked(batched)) == list(ALL)


# ---- what can be wrong, by name ---------------------------------------------------------

SOUND = """\
0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD
1UNSHARD,1RECV_F0,1F0,1RECV_F1,1I0,1SEND_B0,1W0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD
"""
BROKEN = [
    ("drop", "0SEND_F1", Wrong.MISSING_SEND),
    ("drop", "1RECV_F1", Wrong.MISSING_RECEIVE),
    ("double", "0SEND_F0", Wrong.DOUBLE_MESSAGE),
    ("double", "1RECV_F0", Wrong.DOUBLE_MESSAGE),
    ("add", "0SEND_B0", Wrong.NO_SUCH_MESSAGE),
    ("add", "0SEND_F2", Wrong.NO_SUCH_MESSAGE),
    ("add", "1SEND_B0", Wrong.WRONG_RANK),
    ("first", "0SEND_F0", Wrong.SEND_BEFORE_COMPUTE),
    ("last", "1RECV_F0", Wrong.COMPUTE_BEFORE_RECEIVE),
    ("drop", "0F1", Wrong.MISSING_FORWARD),
    ("drop", "0B1", Wrong.MISSING_BACKWARD),
    ("drop", "1W0", Wrong.MISSING_BACKWARD),
    ("double", "0F0", Wrong.DOUBLE_COMPUTE),
    ("first", "1I0", Wrong.BACKWARD_BEFORE_FORWARD),
    ("first", "1W0", Wrong.WEIGHTS_BEFORE_INPUT),
    ("drop", "0UNSHARD", Wrong.NOT_UNSHARDED),
    ("double", "0UNSHARD", Wrong.UNSHARDED_TWICE),
    ("drop", "0RESHARD", Wrong.NOT_RESHARDED),
    ("double", "0RESHARD", Wrong.RESHARDED_TWICE),
    ("add", "1UNSHARD", Wrong.WRONG_RANK),
    ("drop", "0REDUCE_GRAD", Wrong.NOT_REDUCED),
    ("double", "0REDUCE_GRAD", Wrong.REDUCED_TWICE),
    ("first", "0REDUCE_GRAD", Wrong.REDUCED_TOO_EARLY),
    ("add", "0WAIT_REDUCE_GRAD", Wrong.NOT_AWAITED),
    ("begin", "0WAIT_REDUCE_GRAD", Wrong.AWAITED_IN_VAIN),
]


def broken(how: str, word: str) -> str:
    """The sound schedule with one action dropped, doubled, moved to an end of its row, or added at
    the end or the beginning of the first."""
    rows = cells(SOUND)
    row = next((row for row in rows if word in row), rows[0])
    if how == "drop":
        row.remove(word)
    elif how == "double":
        row.insert(row.index(word), word)
    elif how in ("first", "last"):
        row.remove(word)
        row.insert(0 if how == "first" else len(row), word)
    else:
        rows[0].insert(0 if how == "begin" else len(rows[0]), word)
    return text_of(rows)


@pytest.mark.parametrize(("how", "word", "wrong"), BROKEN)
def test_what_is_wrong_has_its_name_and_a_repair(how: str, word: str, wrong: Wrong) -> None:
    assert wrongs(SOUND) == []
    text = broken(how, word)
    assert wrong in wrongs(text, Queueing.FREE)
    if wrong in MENDED:
        assert wrongs(repaired(read_schedule(text)).text) == []
    else:
        with pytest.raises(ProgramError, match="mend"):
            repaired(read_schedule(text))


MENDED = set(Wrong) - {
    Wrong.MISSING_FORWARD,
    Wrong.MISSING_BACKWARD,
    Wrong.DOUBLE_COMPUTE,
    Wrong.BACKWARD_BEFORE_FORWARD,
    Wrong.WEIGHTS_BEFORE_INPUT,
}


def test_receives_in_another_order_than_sends_cross_in_every_queue() -> None:
    rows = cells(SOUND)
    one, two = rows[1].index("1RECV_F0"), rows[1].index("1RECV_F1")
    rows[1][one : two + 1] = ["1RECV_F1", "1RECV_F0", "1F0"]
    found = checked(text_of(rows))
    assert sound(found) == [Queueing.FREE]
    (crossed,) = (f for f in found.findings_under(ALL) if f.wrong is Wrong.CROSSED_ORDER)
    assert "1RECV_F1 (row 2, cell 2) is received before 1RECV_F0" in crossed.message


def test_stages_of_one_rank_hand_over_in_the_order_of_its_row() -> None:
    v_shaped = "0F0,0SEND_F0,3RECV_F0,3F0\n1RECV_F0,1F0,2F0,2SEND_F0\n"
    assert wrongs(v_shaped) == []
    assert wrongs(v_shaped.replace("1F0,2F0", "2F0,1F0")) == [Wrong.COMPUTE_BEFORE_INPUT]


def test_a_joint_forward_and_backward_gathers_and_reduces_by_itself() -> None:
    assert wrongs("0FULL_FORWARD_BACKWARD0\n") == []
    assert wrongs("0UNSHARD,0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD\n") == []


def test_compute_orders_that_wait_for_each_other_are_not_repaired() -> None:
    text = "0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0RECV_B1,0B1\n"
    text += "1RECV_F1,1F1,1RECV_F0,1F0,1B0,1SEND_B0,1B1,1SEND_B1\n"
    assert Wrong.DEADLOCK in wrongs(text, Queueing.FREE)
    with pytest.raises(ProgramError, match="no messages make this order of compute run"):
        repaired(read_schedule(text))


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("0F0,0SEND_F0,0PASS_F0", "row 1, cell 3", "PASS_F"),
        ("0F0,(0F1;0SEND_F0)OVERLAP_F_B", "row 1, cell 2", "holds compute"),
        ("0F0,(0SEND_F0;0B0)BATCH_P2P", "row 1, cell 2", "holds messages"),
        ("0F0,(0SEND_F0;1RECV_B0)TOGETHER", "row 1, cell 2", "BATCH_P2P"),
        ("0F0,()OVERLAP_F_B", "row 1, cell 2", "''"),
        ("0F0,0UNSHARD1", "row 1, cell 2", "names a micro-batch"),
        ("0F0,0SEND_F", "row 1, cell 2", "does not name a micro-batch"),
    ],
)
def test_an_action_that_is_not_known_is_an_error_with_its_place(
    text: str, where: str, what: str
) -> None:
    with pytest.raises(ProgramError) as caught:
        read_schedule(text, "s.csv")
    assert where in str(caught.value)
    assert what in str(caught.value)


def test_what_is_not_checked_is_said_and_lines_fit_a_terminal() -> None:
    for text in (AS_LATE_AS_NEEDED, broken("drop", "0SEND_F1"), SOUND):
        lines = list(lines_of(checked(text), ALL, {"F": 1.0}))
        assert max(map(len, lines)) <= 80
        assert any(line.startswith("not checked: memory") for line in lines)
    bare = SOUND.replace("UNSHARD", "F9").replace("RESHARD", "F9")
    assert "no UNSHARD" not in " ".join(lines_of(checked(SOUND), ALL, {}))
    rows = [[w for w in row if "9" not in w and "REDUCE" not in w] for row in cells(bare)]
    said = " ".join(lines_of(checked(text_of(rows)), ALL, {}))
    assert "no UNSHARD" in said and "no REDUCE_GRAD" in said


@settings(max_examples=25, deadline=None)
@given(cases())
def test_what_we_write_with_messages_is_sound_however_they_queue(case: Case) -> None:
    assert wrongs(write_csv(case.program, comms=True)) == []


# ---- PyTorch's runtime itself -----------------------------------------------------------


@torch_made
@pytest.mark.slow
def test_pytorch_computes_other_gradients_where_orders_cross_and_the_same_once_repaired(
    tmp_path: Path,
) -> None:
    """ZBV with `defer_pp_recv=True`, whose receives PyTorch 2.13 puts in another order."""
    plain, late = (lowered("ZBVZeroBubble", 2, 4, late=late) for late in (False, True))
    assert Wrong.CROSSED_ORDER in wrongs(late, Queueing.DIRECTED)
    texts = {"plain": plain, "mended": repaired(read_schedule(late)).text, "late": late}
    files = [str(tmp_path / f"{name}.csv") for name in texts]
    for file, text in zip(files, texts.values(), strict=True):
        Path(file).write_text(text)
    script = str(Path(__file__).parent / "pytorch_rank.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), "2", str(tmp_path / "store"), *files],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        out, _ = rank.communicate(timeout=300)
        of_plain, of_mended, of_late = json.loads(out)
        assert of_mended == of_plain
        assert of_late != of_plain
