"""What cannot be trained is said before anybody tries: by `models`, `plan` and `simulate`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratrain.cli.main import ratrain
from ratrain.describe.huggingface import load_config
from ratrain.errors import SpecError
from ratrain.models.trainable import check_trainable
from ratrain.plan import load_job
from ratrain.runtime.run.trainable import doubts

SMALL = Path(__file__).parents[2] / "examples" / "small.toml"

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "relu6",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "vocab_size": 256,
    "max_position_embeddings": 4096,
}
"""Of a model whose activation nobody computes here."""


def printed(*words: str) -> str:
    ran = CliRunner().invoke(ratrain, words, catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


@pytest.mark.parametrize("verb", ["models", "simulate", "plan"])
def test_a_model_that_train_refuses_is_refused_in_the_same_words(verb: str, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    with pytest.raises(SpecError) as refused:
        check_trainable(load_config(config))
    refusal = refused.value.what
    job = (str(SMALL), "--set", f'model.name="{config}"')
    words = (verb, *((str(config),) if verb == "models" else job))
    assert f"note: {refusal}" in " ".join(printed(*words).split())
    assert json.loads(printed(*words, "--json"))["untrainable"] == refusal


def test_what_can_be_trained_is_not_spoken_of() -> None:
    assert "trained" not in printed("simulate", str(SMALL))
    assert json.loads(printed("models", "tiny-llama", "--json"))["untrainable"] is None
    rows = [line.split() for line in printed("models").splitlines() if line.strip()]
    trains = {row[0]: row[-1] for row in rows}
    assert trains["qwen2.5-32b"] == "yes" and trains["megatron-15b"] == "no"


def test_a_vocabulary_that_tokens_hardly_use_and_too_long_sequences_are_spoken_of() -> None:
    job = load_job(SMALL)
    model = job.model.spec
    assert doubts(job, model.vocab) == []
    assert f"{model.vocab:,} words" in " ".join(doubts(job, 257))
    longer = replace(job.model, sequence_length=model.max_positions + 1)
    assert "positions" in " ".join(doubts(replace(job, model=longer), model.vocab))
