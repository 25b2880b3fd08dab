"""Runs that go on with another plan, drawn at random: `--resume --replan` between any two layouts,
schedules, numbers of ranks and ways to share states.

The resumed run's losses are those of the run that was left alone, up to the order of sums; bit for
bit where that order is the same.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from crew import Crew
from drawn_jobs import (
    REFUSED,
    Outcome,
    Wrong,
    draw,
    moved_to,
    narrowest_tolerance,
    plan_options,
    ratrain,
    refusal_of,
    require,
)
from drawn_unequal import MOST_RANKS, draw_unequal
from runs_made import Setting, write_job, write_text
from training import train

from ratrain.errors import RatrainError
from ratrain.runtime.run_folder import RunFolder

STEPS, KEPT = 4, 2
"""Of the run that is left alone; after how many the other one goes on with another plan."""


@dataclass(frozen=True)
class DrawnReplan:
    """A run, and how it goes on."""

    seed: int
    first: Setting
    second: Setting

    @property
    def same_sums(self) -> bool:
        """Whether both add all gradients, and what is sent of them, in one order."""
        shapes = [
            (each.data, each.tensor, each.sequence_parallel, each.micro_batch, each.joined)
            for each in (self.first, self.second)
        ]
        same = shapes[0] == shapes[1] and not self.first.unlike and not self.second.unlike
        norms = self.first.clip_norm is None or self.first.pipeline == self.second.pipeline
        exact = self.first.dtype == "fp32" and not self.first.boundary_wire
        return same and norms and exact and not self.first.gradient_wire

    def __str__(self) -> str:
        return f"{self.seed}: {self.first} THEN {self.second}"


def draw_replan(seed: int) -> DrawnReplan:
    """The pair of a seed: every third begins with stages or replicas that differ, every third ends
    with such, and every third keeps the order of sums where it can."""
    dice = random.Random(f"replan {seed}")
    if seed % 3:
        setting = draw_unequal(seed).setting
        plain = replace(setting, unlike=(), serving=(), serving_at=(), idle=0)
        pair = setting, moved_to(plain, dice)
        first, second = pair if seed % 3 == 1 else pair[::-1]
        return DrawnReplan(seed, _cut(first), _cut(second))
    first = next(
        setting
        for more in range(1000)
        if not (setting := draw(seed + 1000 * more).setting).planned
        and setting.world_size <= MOST_RANKS
    )
    depths = [n for n in (1, 2, 3) if n * first.data * first.tensor <= MOST_RANKS]
    second = replace(
        moved_to(first, dice),
        data=first.data,
        tensor=first.tensor,
        micro_batch=first.micro_batch,
        sequence_parallel=first.sequence_parallel,
        pipeline=dice.choice([n for n in depths if n <= _layers(first)]),
    )
    return DrawnReplan(seed, _cut(first), _cut(second))


def run_replan_in_crew(crew: Crew, drawn: DrawnReplan, folder: Path) -> Outcome:
    """The same on ranks that are there already, without the command line: seconds a pair. Begins
    know nothing of residuals and of scales that have changed."""
    model = (*dict(drawn.first.model, vocab_size=360).items(),)  # of `Setting.samples` and more
    first, second = (
        replace(each, error_feedback=None, timeout_s=120.0, model=model)
        for each in (drawn.first, drawn.second)
    )
    try:
        whole = train(crew, first, folder / "first", saves=True)
    except RatrainError as error:
        return Outcome(str(error), compared_to_plain=False)
    saved = folder / "first" / "run" / "checkpoints" / f"step-{KEPT:08d}"
    try:
        after = train(crew, second, folder / "second", checkpoint=saved)
    except RatrainError as error:
        return Outcome(str(error), compared_to_plain=False)
    expected, ours = whole.losses[KEPT:], after.losses
    if list(map(float.fromhex, ours)) != pytest.approx(
        list(map(float.fromhex, expected)), rel=tolerance_of(drawn)
    ):
        raise Wrong(f"other losses after another plan:\n{ours}\n{expected}")
    if drawn.same_sums and ours != expected:
        raise Wrong(f"other bits, though sums have one order:\n{ours}\n{expected}")
    return Outcome("", compared_to_plain=ours == expected)


def tolerance_of(drawn: DrawnReplan) -> float:
    """Relative, of each step's loss, by the narrowest dtype of both plans."""
    of_both = [
        (each.dtype, *dict(each.dtypes).values(), each.gradient_wire, each.boundary_wire)
        for each in (drawn.first, drawn.second)
    ]
    return narrowest_tolerance(*of_both[0], *of_both[1])


def _cut(setting: Setting) -> Setting:
    return replace(setting, steps=STEPS, every=KEPT, keep=20)


def _layers(setting: Setting) -> int:
    return int(str(dict(setting.model)["num_hidden_layers"]))


def run_replan(drawn: DrawnReplan, folder: Path) -> Outcome:
    """Runs a pair in an empty folder; `Wrong` says what was not as it should be."""
    write_text(folder / "text.txt", seed=drawn.seed)
    jobs = [
        write_job(folder / name, replace(setting, files=("../text.txt",)))
        for name, setting in (("first", drawn.first), ("second", drawn.second))
    ]
    plans = [
        plan_options(folder / name, setting)
        for name, setting in (("first", drawn.first), ("second", drawn.second))
    ]
    whole, run = RunFolder(folder / "whole"), RunFolder(folder / "run")
    begun = ("train", jobs[0], "--run", whole.path, "--no-calibrate", *plans[0])
    ran = ratrain(folder, *begun)
    if ran.status in REFUSED:
        return Outcome(refusal_of(ran, whole), compared_to_plain=False)
    require(ran.status == 0, ran)
    shutil.copytree(whole.path, run.path, ignore=shutil.ignore_patterns("owner", "step-*4"))
    ran = ratrain(
        folder,
        *("train", jobs[1], "--run", run.path, "--resume", "--replan", "--no-calibrate"),
        *plans[1],
    )
    if ran.status in REFUSED:
        require("Traceback" not in ran.err and ran.err.count("error: ") == 1, ran)
        require(not run.episodes.exists(), ran)
        return Outcome(ran.err, compared_to_plain=False)
    require(ran.status == 0, ran)
    rows = run.read_metrics()
    expected = {row["step"]: row for row in whole.read_metrics()}
    episodes = [row.get("episode", 0) for row in rows]
    if episodes != [0] * KEPT + [1] * (STEPS - KEPT):
        raise Wrong(f"steps are of episodes {episodes}")
    ours = {row["step"]: row["loss"] for row in rows}
    theirs = {step: row["loss"] for step, row in expected.items()}
    if ours != pytest.approx(theirs, rel=tolerance_of(drawn)):
        raise Wrong(f"other losses after another plan:\n{ours}\n{theirs}")
    same = all(row["loss_bits"] == expected[row["step"]]["loss_bits"] for row in rows)
    if drawn.same_sums and not same:
        raise Wrong(f"other bits, though sums have one order:\n{ours}\n{theirs}")
    return Outcome("", compared_to_plain=same)
