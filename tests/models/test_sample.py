"""Sampling: the likeliest token, or one by chance, the same for the same seed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import LLAMA, MODELS, QWEN, running
from transformers import AutoModelForCausalLM

from ratrain.errors import SpecError
from ratrain.models.huggingface import write_model
from ratrain.models.sample import Reader, next_logits, sample
from ratrain.models.shapes import unit_names
from ratrain.models.units import MicroBatch


def test_greedy_sampling_writes_what_transformers_writes(tmp_path: Path) -> None:
    model = running(QWEN)
    write_model(tmp_path, QWEN, torch.float32, model.views.__getitem__)
    theirs: Any = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    prompt = [7, 3, 21]
    wanted = theirs.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)
    sampled = list(sample(QWEN, model.weights, prompt, 12, sequence_length=32))
    assert sampled == wanted[0, 3:].tolist()


@pytest.mark.slow
def test_chance_follows_the_softmax_and_the_seed() -> None:
    model = running(LLAMA, spread=4.0)
    drawn = [
        next(sample(LLAMA, model.weights, [1], 1, sequence_length=4, temperature=2.0, seed=seed))
        for seed in range(400)
    ]
    again = next(sample(LLAMA, model.weights, [1], 1, sequence_length=4, temperature=2.0, seed=9))
    assert again == drawn[9]
    chances = torch.softmax(next_logits(LLAMA, model.weights, torch.tensor([[1]]), 4)[0] / 2, 0)
    for token, count in Counter(drawn).most_common(5):
        expected = 400 * chances[token].item()
        assert abs(count - expected) < 5 * expected**0.5 + 3


def test_a_long_text_is_seen_through_its_last_tokens() -> None:
    model = running(LLAMA)
    text = list(range(20))
    through = list(sample(LLAMA, model.weights, text, 1, sequence_length=8))
    assert through == list(sample(LLAMA, model.weights, text[-8:], 1, sequence_length=8))


@pytest.mark.parametrize("name", MODELS)
def test_going_on_from_kept_keys_is_reading_all_again(name: str) -> None:
    spec, text = MODELS[name], [5, 9, 2, 44, 17, 3, 8]
    model = running(spec)
    units = [model.units[unit] for unit in unit_names(spec)]
    reader = Reader(spec, model.weights, sequence_length=7)
    for end in range(3, len(text) + 1):
        tokens = torch.tensor([text[:end]])
        x, batch = torch.empty(0), MicroBatch(tokens, tokens)
        with torch.no_grad():
            for unit_name, unit in zip(unit_names(spec)[:-1], units, strict=False):
                x = unit.forward(model.weights[unit_name], x, batch)
        head: Any = units[-1]
        wanted = head.logits(model.weights["h"], x)[:, -1]
        logits = reader.read(tokens if end == 3 else tokens[:, -1:])
        assert reader.length == end
        assert torch.allclose(logits, wanted, rtol=1e-4, atol=1e-4 * wanted.abs().max().item())


def test_a_full_sequence_goes_on_from_its_last_half() -> None:
    model = running(LLAMA)
    sampled = list(sample(LLAMA, model.weights, [4], 30, sequence_length=8))
    assert len(sampled) == 30
    # The first eight read are 4 and seven found; the next is found from the four before it.
    assert sampled[8] == next(sample(LLAMA, model.weights, sampled[4:8], 1, sequence_length=8))


def test_a_context_of_a_billion_tokens_takes_the_memory_of_the_text() -> None:
    model = running(LLAMA)
    texts = [
        list(sample(LLAMA, model.weights, [4, 7], 6, sequence_length=length))
        for length in (8, 1_000_000_000)
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("prompt", "temperature"), [([], 0.0), ([1], -1.0), ([1], float("nan"))])
def test_a_prompt_or_temperature_without_sense_is_refused(
    prompt: list[int], temperature: float
) -> None:
    with pytest.raises(SpecError):
        next(
            sample(
                LLAMA,
                running(LLAMA).weights,
                prompt,
                1,
                sequence_length=8,
                temperature=temperature,
            )
        )
