"""Figures that README.md and docs/ state, against what this commit's own commands print.

A claim is a sentence with the figures left open: filled in from a command's JSON it must stand in
its page, word for word. Who changes what a command says finds the new sentence in the failure.
"""

from __future__ import annotations

import json
import re
import shlex
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ratrain.cli.main import ratrain
from ratrain.describe.units import format_bytes, format_time

ROOT = Path(__file__).parents[2]
PANELS = "baseline-1f1b", "ratrain"
"""The schedules of the README's picture, from above."""


def printed(words: str) -> str:
    ran = CliRunner().invoke(ratrain, shlex.split(words), catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


@cache
def body(words: str) -> dict[str, Any]:
    return json.loads(printed(f"{words} --json"))


def assert_stands(page: str, sentence: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    assert " ".join(sentence.split()) in text, f"{page} does not say: {sentence}"


# ---- the README's picture ---------------------------------------------------------------


@cache
def panels() -> list[dict[str, Any]]:
    job = ROOT / "examples" / "picture.toml"
    return [body(f"simulate {shlex.quote(str(job))} --schedule {name}") for name in PANELS]


def test_the_caption_of_the_picture_is_what_simulate_says() -> None:
    above, below = panels()
    peaks = [format_bytes(panel["peak_bytes"]["RAM"]) for panel in (above, below)]
    times = [format_time(panel["step_time_s"]) for panel in (above, below)]
    gain = above["step_time_s"] / below["step_time_s"]
    assert_stands(
        "README.md",
        f"Same model, batch and memory budget (peaks of {peaks[0]} and {peaks[1]}): {times[0]} "
        f"above, {times[1]} below, {gain:.2f} x as fast (simulated).",
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_picture_was_drawn_of_the_steps_that_simulate_predicts(theme: str) -> None:
    said = [f"{n}: {format_time(p['step_time_s'])}" for n, p in zip(PANELS, panels(), strict=True)]
    drawn = described(ROOT / "docs" / f"picture-{theme}.png")
    assert drawn == "; ".join(said), "draw it again: scripts/picture.py"


def described(png: Path) -> str:
    """The text that scripts/picture.py writes into a picture."""
    data, at = png.read_bytes(), 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, chunk = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        if kind == b"tEXt":
            return chunk.partition(b"\0")[2].decode()
        at += 12 + length
    return ""


# ---- how far off the cost model is ------------------------------------------------------


def table(name: str) -> dict[str, Any]:
    return next(t for t in body("validate")["tables"] if t["table"] == name)


def mean(score: dict[str, Any]) -> str:
    return f"{100 * score['mean_error']:.1f} %"


def worst(score: dict[str, Any]) -> str:
    return f"{100 * score['worst_error']:+.1f} %"


def gpus() -> str:
    names = "megatron_sc21_table1", "korthikanti_iteration", "vtrain_multi_node"
    scores = [table(name)["score"] for name in (*names, "vtrain_single_node")]
    return (
        "four published tables, mean errors of "
        + ", ".join(map(mean, scores[:-1]))
        + f" and {mean(scores[-1])}; worst rows "
        + ", ".join(map(worst, scores[:-1]))
        + f" and {worst(scores[-1])}."
    )


def held_out() -> str:
    gh200, t4 = table("sailor_gh200")["score"], table("amp_t4")["parts"]
    return (
        f"{gh200['rows']} measured steps that were not used for fitting have a mean error of "
        f"{mean(gh200)} (worst {worst(gh200)}), and {t4['held out']['rows']} on T4 "
        f"{mean(t4['held out'])} (worst {worst(t4['held out'])}; of the fitted ones "
        f"{worst(t4['calibrated'])})."
    )


def peaks() -> str:
    scores = [t["score"] for t in body("validate")["tables"] if t["unit"] != "s"]
    means = sorted(100 * score["mean_error"] for score in scores)
    row = max(scores, key=lambda score: abs(score["worst_error"]))
    return (
        f"Published memory peaks: mean errors of {means[0]:.1f} to {means[-1]:.1f} % "
        f"on {len(scores)} tables, worst row {worst(row)}"
    )


def paper() -> str:
    rows = body("reproduce main")["rows"]
    times = [row["difference"] for row in rows if row["unit"] == "s" and row["difference"]]
    ratios = [row["difference"] for row in rows if row["unit"] == "x" and row["difference"]]
    rest = [
        row["difference"]
        for part in ("memory", "scale-out")
        for row in body(f"reproduce {part}")["rows"]
        if row["difference"] is not None
    ]
    return (
        f"On the RATrain paper's step times its mean error is {percent(times)} (worst "
        f"{far(times)}), on the ratios between them {percent(ratios)} (worst {far(ratios)}), on "
        f"memory and scale-out {percent(rest)} (worst {far(rest)});"
    )


def percent(errors: list[float]) -> str:
    return f"{100 * sum(map(abs, errors)) / len(errors):.1f} %"


def far(errors: list[float]) -> str:
    return f"{100 * max(errors, key=abs):+.1f} %"


@pytest.mark.slow
@pytest.mark.parametrize("claim", [gpus, held_out, peaks, paper], ids=lambda claim: claim.__name__)
def test_the_limits_state_the_mean_and_the_worst_error(claim: Callable[[], str]) -> None:
    assert_stands("docs/explanation/limits.md", claim())


@pytest.mark.slow
def test_the_page_on_accuracy_shows_what_validate_prints() -> None:
    shown = (ROOT / "docs/notes/accuracy.md").read_text().partition("    $ ratrain validate\n")[2]
    block = [line[4:] for line in re.split(r"\n(?! {4})", shown)[0].splitlines()]
    assert printed("validate").splitlines()[: len(block)] == block
