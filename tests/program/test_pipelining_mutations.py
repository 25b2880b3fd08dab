"""A schedule with a message dropped, doubled, moved or crossed is judged as queues would run it."""

from __future__ import annotations

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

SCHEDULES = [
    ("GPipe", 3, 3),
    ("Interleaved1F1B", 2, 2),
    ("Interleaved1F1B", 3, 3),
    ("LoopedBFS", 2, 3),
    ("InterleavedZeroBubble", 3, 3),
    ("ZBVZeroBubble", 2, 3),
    ("ZBVZeroBubble", 3, 4),
    ("DualPipeV", 2, 4),
]


def is_message(word: str) -> bool:
    return "SEND" in word or "RECV" in word


def mutated(rows: Rows, random: Random) -> tuple[str, Rows]:
    """What was done, and the rows with one message dropped, doubled, moved within its row or to
    another one, or two messages of a row in each other's places."""
    rows = [list(row) for row in rows]
    places = [
        (r, c) for r, row in enumerate(rows) for c, word in enumerate(row) if is_message(word)
    ]
    rank, cell = random.choice(places)
    word = rows[rank][cell]
    way = random.choice(("drop", "double", "move", "near", "cross", "near cross", "away"))
    if way == "drop":
        del rows[rank][cell]
    elif way == "double":
        rows[rank].insert(random.randrange(len(rows[rank]) + 1), word)
    elif way in ("move", "near"):
        del rows[rank][cell]
        near = (max(0, cell - 4), min(len(rows[rank]), cell + 4))
        low, high = near if way == "near" else (0, len(rows[rank]))
        rows[rank].insert(random.randint(low, high), word)
    elif way in ("cross", "near cross"):
        others = [c for r, c in places if r == rank and c != cell]
        if way == "near cross":
            others = sorted(others, key=lambda c: abs(c - cell))[:3]
        other = random.choice(others)
        rows[rank][cell], rows[rank][other] = rows[rank][other], word
    else:
        del rows[rank][cell]
        other_row = rows[random.choice([r for r in range(len(rows)) if r != rank])]
        other_row.insert(random.randrange(len(other_row) + 1), word)
    return f"{way} {word} of row {rank}, cell {cell}", rows


def judged(rows: Rows) -> dict[str, bool]:
    found = check(read_schedule(text_of(rows)))
    return {rule.value: found.sound_under(rule) for rule in Queueing}


def run(rows: Rows, random: Random) -> dict[str, bool]:
    return {rule.value: Machine(rows, rule.value).runs(random) for rule in Queueing}


@pytest.mark.parametrize("seed", range(8))
def test_two_hundred_mutations_are_judged_as_the_queues_run_them(seed: int) -> None:
    random = Random(seed)
    for _ in range(25):
        which = random.choice(SCHEDULES)
        way, rows = mutated(cells(lowered(*which)), random)
        assert judged(rows) == run(rows, random), f"{which}: {way}"
