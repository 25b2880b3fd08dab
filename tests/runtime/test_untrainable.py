"""What cannot be trained is said before anybody tries: by `models`, `plan` and `simulate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratrain.cli.main import ratrain
from ratrain.describe.presets import model_preset
from ratrain.errors import SpecError
from ratrain.models.shapes import check_trainable

SMALL = Path(__file__).parents[2] / "examples" / "small.toml"

VALUES = 'model.name="gpt2-345m"', 'cluster.name="a100-80g-dgx"', 'schedule.dtype="fp16"'
GPT = [word for value in VALUES for word in ("--set", value)]


def printed(*words: str) -> str:
    ran = CliRunner().invoke(ratrain, words, catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


@pytest.fixture(scope="module")
def refusal() -> str:
    with pytest.raises(SpecError) as refused:
        check_trainable(model_preset("gpt2-345m"))
    return refused.value.what


@pytest.mark.parametrize(
    "words",
    [
        ("models", "gpt2-345m"),
        ("simulate", str(SMALL), *GPT),
        ("plan", str(SMALL), *GPT),
    ],
    ids=lambda words: words[0],
)
def test_a_model_that_train_refuses_is_refused_in_the_same_words(
    words: tuple[str, ...], refusal: str
) -> None:
    assert f"note: {refusal}" in " ".join(printed(*words).split())
    assert json.loads(printed(*words, "--json"))["untrainable"] == refusal


def test_what_can_be_trained_is_not_spoken_of() -> None:
    assert "trained" not in printed("simulate", str(SMALL))
    assert json.loads(printed("models", "tiny-llama", "--json"))["untrainable"] is None
    trains = {line.split()[0]: line.split()[-1] for line in printed("models").splitlines()}
    assert trains["qwen2.5-32b"] == "yes" and trains["gpt2-345m"] == "no"
