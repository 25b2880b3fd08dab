"""A schedule whose work, gathers, reductions or messages are changed in several places at once is
judged as an independent account of a step judges it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from pipelining_files import cells, text_of
from queue_machine import Machine
from torch_schedules import TORCH, lowered

from ratrain.program.pipelining.check import check
from ratrain.program.pipelining.queues import Queueing
from ratrain.program.pipelining.reading import read_schedule

pytestmark = pytest.mark.skipif(not TORCH, reason="needs torch")
Rows = list[list[str]]
Step = tuple[str, int, int]

SCHEDULES = [
    ("GPipe", 3, 3),
    ("Interleaved1F1B", 2, 4),
    ("LoopedBFS", 2, 3),
    ("InterleavedZeroBubble", 3, 3),
    ("ZBVZeroBubble", 3, 4),
    ("DualPipeV", 2, 4),
]
_WORD = re.compile(r"(\d+)([A-Z_]+?)(\d*)\Z")


# ---- an account of a step, row by row --------------------------------------------------------


def steps_of(row: list[str]) -> list[Step]:
    """A row's actions: (what, stage, micro-batch)."""
    words = [word for cell in row for word in cell.strip("()").split(")")[0].split(";")]
    found = [match for word in words if (match := _WORD.match(word))]
    return [(match[2], int(match[1]), int(match[3] or -1)) for match in found]


def work_is_done_once(rows: Rows) -> bool:
    """Each stage makes each output, input gradient and weight gradient once, in that order."""
    makes = {"F": "f", "B": "iw", "I": "i", "W": "w"}
    made: Counter[Step] = Counter()
    for row in rows:
        for act, stage, micro_batch in steps_of(row):
            for what in makes.get(act, ""):
                before = {"f": "", "i": "f", "w": "fi"}[what]
                if not all(made[each, stage, micro_batch] for each in before):
                    return False
                made[what, stage, micro_batch] += 1
    cells_made = {(stage, micro_batch) for _, stage, micro_batch in made}
    stages, micro_batches = (1 + max(each) for each in zip(*cells_made, strict=True))
    ways = {what for what, _, _ in made}
    return all(
        made[what, stage, micro_batch] == 1
        for what in ways
        for stage in range(stages)
        for micro_batch in range(micro_batches)
    )


def weights_are_kept(rows: Rows) -> bool:
    """Weights are there where something computes, and gradients are reduced when all are made."""
    every = [steps_of(row) for row in rows]
    acts = {act for row in every for act, _, _ in row}
    for row in every:
        for stage in {stage for act, stage, _ in row if act in "FBIW"}:
            mine = [act for act, of, _ in row if of == stage]
            if acts & {"UNSHARD", "RESHARD"} and not gathers_are_kept(mine):
                return False
            if acts & {"REDUCE_GRAD", "WAIT_REDUCE_GRAD"} and not reduction_is_kept(
                mine, awaited="WAIT_REDUCE_GRAD" in acts
            ):
                return False
    return True


def gathers_are_kept(acts: list[str]) -> bool:
    there, used = False, True
    for act in acts:
        if act == "UNSHARD":
            if there:
                return False
            there, used = True, False
        elif act == "RESHARD":
            if not there or not used:
                return False
            there = False
        elif act in "FBIW":
            if not there:
                return False
            used = True
    return not there


def reduction_is_kept(acts: list[str], *, awaited: bool) -> bool:
    makers = [turn for turn, act in enumerate(acts) if act in "BW"]
    reduced = [turn for turn, act in enumerate(acts) if act == "REDUCE_GRAD"]
    waits = [turn for turn, act in enumerate(acts) if act == "WAIT_REDUCE_GRAD"]
    if makers and (len(reduced) != 1 or reduced[0] < makers[-1]):
        return False
    if not awaited:
        return True
    return len(waits) == len(reduced) and all(r < w for r, w in zip(reduced, waits, strict=True))


# ---- what is changed -------------------------------------------------------------------------


def pick(rows: Rows, random: Random, which: Callable[[str], bool]) -> tuple[int, int] | None:
    places = [(r, c) for r, row in enumerate(rows) for c, word in enumerate(row) if which(word)]
    return random.choice(places) if places else None


def simple(word: str) -> bool:
    return bool(_WORD.match(word))


def is_message(word: str) -> bool:
    return simple(word) and ("SEND" in word or "RECV" in word)


def is_state_work(word: str) -> bool:
    return "SHARD" in word or "REDUCE" in word


def other_end(word: str) -> str:
    """What the peer writes of a message."""
    ((act, stage, micro_batch),) = steps_of([word])
    other = stage + (1 if act in ("SEND_F", "RECV_B") else -1)
    swapped = act.replace("SEND", "?").replace("RECV", "SEND").replace("?", "RECV")
    return f"{other}{swapped}{micro_batch}"


def change(rows: Rows, random: Random) -> str:
    """Changes rows in one way; what was done."""
    way = random.choice(
        (
            "drop",
            "double",
            "move",
            "move near",
            "swap",
            "reduce early",
            "drop a wait",
            "rename",
            "turn",
            "cross two micro-batches",
            "cross them at both ends",
            "drop both ends",
            "double a receive",
        )
    )
    which = {
        "reduce early": lambda w: w.endswith("REDUCE_GRAD") and "WAIT" not in w,
        "drop a wait": lambda w: "WAIT_REDUCE" in w,
        "double a receive": lambda w: is_message(w) and "RECV" in w,
    }.get(way, is_message if way in _OF_MESSAGES else simple)
    found = pick(rows, random, which)
    if found is None:
        return ""
    rank, cell = found
    row, word = rows[rank], rows[rank][cell]
    if way in ("drop", "drop a wait", "drop both ends"):
        del row[cell]
    elif way in ("double", "double a receive"):
        row.insert(random.randrange(len(row) + 1), word)
    elif way == "move":
        del row[cell]
        row.insert(random.randrange(len(row) + 1), word)
    elif way in ("move near", "reduce early"):
        del row[cell]
        low, high = (0, cell) if way == "reduce early" else (cell - 3, cell + 3)
        row.insert(random.randint(max(low, 0), min(high, len(row))), word)
    elif way == "swap":
        other = random.randrange(len(row))
        row[cell], row[other] = row[other], word
    elif way == "rename":
        row[cell] = re.sub(r"\d+\Z", str(random.randrange(4)), word)
    elif way == "turn":
        row[cell] = word.replace("_F", "_?").replace("_B", "_F").replace("_?", "_B")
    else:
        alike = [c for c, w in enumerate(row) if c != cell and same_but_for_micro_batch(w, word)]
        if not alike:
            return ""
        other = random.choice(alike)
        ends = [other_end(row[c]) for c in (cell, other)]
        row[cell], row[other] = row[other], word
        if way == "cross them at both ends":
            swap_words(rows, *ends)
    if way == "drop both ends":
        end = other_end(word)
        for each in rows:
            if end in each:
                each.remove(end)
    return f"{way} {word} of row {rank}, cell {cell}"


_OF_MESSAGES = (
    "move near",
    "rename",
    "turn",
    "cross two micro-batches",
    "cross them at both ends",
    "drop both ends",
)


def same_but_for_micro_batch(a: str, b: str) -> bool:
    return re.sub(r"\d+\Z", "", a) == re.sub(r"\d+\Z", "", b)


def swap_words(rows: Rows, a: str, b: str) -> None:
    for row in rows:
        row[:] = [{a: b, b: a}.get(word, word) for word in row]


def awaited(rows: Rows) -> Rows:
    """The same with a WAIT_REDUCE_GRAD at the end of each reduction's row."""
    ends = [[w.replace("REDUCE", "WAIT_REDUCE") for w in row if "REDUCE" in w] for row in rows]
    return [[*row, *more] for row, more in zip(rows, ends, strict=True)]


def judged(rows: Rows) -> dict[str, bool]:
    found = check(read_schedule(text_of(rows)))
    return {rule.value: found.sound_under(rule) for rule in Queueing}


def accounted(rows: Rows, random: Random) -> dict[str, bool]:
    sound = work_is_done_once(rows) and weights_are_kept(rows)
    return {rule.value: sound and Machine(rows, rule.value).runs(random) for rule in Queueing}


@pytest.mark.parametrize("which", SCHEDULES, ids=str)
def test_schedules_as_pytorch_makes_them_are_sound_by_the_account_of_a_step(
    which: tuple[str, int, int],
) -> None:
    rows = cells(lowered(*which))
    for each in (rows, awaited(rows)):
        assert judged(each) == accounted(each, Random(0))
        assert accounted(each, Random(0))["free"]


@pytest.mark.parametrize("seed", range(10))
def test_schedules_changed_in_several_places_are_judged_as_a_step_is_accounted(seed: int) -> None:
    random = Random(seed)
    for _ in range(30):
        which = random.choice(SCHEDULES)
        rows = cells(lowered(*which))
        rows = awaited(rows) if random.random() < 0.5 else [list(row) for row in rows]
        ways = [change(rows, random) for _ in range(random.choice((1, 1, 1, 2, 3)))]
        if any(ways):
            assert judged(rows) == accounted(rows, random), f"{which}: {'; '.join(ways)}"
