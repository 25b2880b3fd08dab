"""Keys that change nothing beside a job's other keys are said by name, and the others are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ratrain.cli.main import ratrain

SMALL = str(Path(__file__).parents[2] / "examples" / "small.toml")
REPLICAS = "layout.pipeline=2", "layout.data=2"
IDLE = [
    ("schedule.averages=local-sgd", REPLICAS),
    ("schedule.average_wire=fp32", REPLICAS),
    ("schedule.average_exposed=0.1", (*REPLICAS, "schedule.average_every=2")),
    ("schedule.collective=ring", ()),
    ("schedule.gradient_wire=bf16", ()),
    ("schedule.gradient_bucket=1MB", ()),
    ("train.outer_momentum=0.5", ()),
    ("train.decay_part=0.5", ()),
    ("train.final_rate=0.5", ("train.rate_schedule=constant",)),
    ("train.loss_scale=128", ()),
    ("train.overflow=unit", ()),
]
USED = [
    ("schedule.averages=local-sgd", (*REPLICAS, "schedule.average_every=2")),
    ("schedule.average_every=2", REPLICAS),
    ("schedule.collective=ring", REPLICAS),
    ("schedule.gradient_wire=bf16", REPLICAS),
    ("train.decay_part=0.5", ("train.rate_schedule=wsd",)),
    ("train.final_rate=0.5", ()),
]


def simulated(*values: str) -> dict[str, Any]:
    words = [word for value in values for word in ("--set", value)]
    ran = CliRunner().invoke(ratrain, ["simulate", SMALL, "--json", *words], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return {**json.loads(ran.stdout), "wall_time_s": 0, "job": None}


@pytest.mark.parametrize(("value", "beside"), IDLE, ids=[value for value, _ in IDLE])
def test_a_key_without_effect_is_named_and_predicts_the_very_same(
    value: str, beside: tuple[str, ...]
) -> None:
    name = value.partition("=")[0].replace("schedule.", "[schedule] ").replace("train.", "[train] ")
    without, beside_it = simulated(*beside), simulated(*beside, value)
    (said,) = beside_it.pop("unused")
    assert said.startswith(f"{name} changes nothing here: ")
    assert without.pop("unused") == []
    assert beside_it == without


@pytest.mark.parametrize(("value", "beside"), USED, ids=[value for value, _ in USED])
def test_a_key_with_an_effect_is_not_named(value: str, beside: tuple[str, ...]) -> None:
    assert simulated(*beside, value)["unused"] == []


@pytest.mark.parametrize("verb", ["simulate", pytest.param("plan", marks=pytest.mark.slow)])
def test_people_read_it_in_a_note(verb: str) -> None:
    words = (verb, SMALL, "--set", "schedule.averages=local-sgd")
    said = CliRunner().invoke(ratrain, words, catch_exceptions=False).stdout
    assert "note: [schedule] averages changes nothing here" in said
