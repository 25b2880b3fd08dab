"""Conversations through a tokenizer's chat template: the tokens and the answers that Transformers
finds, whole in their samples."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ratrain.corpus.held_out import HeldOut
from ratrain.corpus.prepare import Prepared, prepare
from ratrain.corpus.samples import MASKED, Samples
from ratrain.corpus.tokenizer import ANSWER
from ratrain.describe.train import DataSpec
from ratrain.errors import SpecError

MARKED = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|end|>\n"
    "{% endgeneration %}{% else %}{{ m['content'] }}<|end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
PLAIN = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")
FORGETS = (
    "{% for m in messages %}{{ m['role'] }}: "
    "{% if loop.last %}{{ m['content'] }}{% else %}...{% endif %}\n{% endfor %}"
)
WORDS = [
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "Käse",
    "数",
    "user",
    "assistant",
    "system",
]
LENGTH = 48


def tokenizer_in(folder: Path, template: str | None) -> Any:
    words = Tokenizer(models.BPE(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<unk>", "<s>", "</s>", "<|start|>", "<|end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    words.train_from_iterator([" ".join(WORDS)] * 20, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    if template is not None:
        fast.chat_template = template
    fast.save_pretrained(folder)
    return fast


def conversations(count: int, seed: int = 0) -> list[list[dict[str, str]]]:
    chance = random.Random(seed)

    def said(role: str) -> dict[str, str]:
        return {"role": role, "content": " ".join(chance.choices(WORDS, k=chance.randint(1, 7)))}

    made: list[list[dict[str, str]]] = []
    for _ in range(count):
        turns = [said("user" if n % 2 == 0 else "assistant") for n in range(chance.randint(1, 4))]
        made.append(([said("system")] if chance.random() < 0.4 else []) + turns)
    return made


def written(folder: Path, chats: list[list[dict[str, str]]]) -> Path:
    path = folder / "chat.jsonl"
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    return path


def prepared(folder: Path, name: str = "chat.jsonl", length: int = LENGTH) -> Prepared:
    data = DataSpec((name,), "tokenizer", messages_key="messages")
    return prepare(data, folder, cache=folder / "cache", sequence_length=length)


@pytest.mark.parametrize("template", [MARKED, PLAIN], ids=["marked", "by turns"])
def test_tokens_and_answers_are_those_of_transformers(template: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_in(tmp_path / "tokenizer", template)
    tokenizer.chat_template = MARKED
    chats = conversations(60)
    written(tmp_path, chats)
    store = prepared(tmp_path, length=1).store
    raw = store.read(0, len(store)).astype(np.int64)
    ids: list[int] = []
    masks: list[int] = []
    for chat in chats:
        theirs = tokenizer.apply_chat_template(
            chat, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        ids += theirs["input_ids"]
        masks += theirs["assistant_masks"]
    assert (raw % int(ANSWER)).tolist() == ids
    assert (raw // int(ANSWER)).tolist() == masks
    assert 0 < sum(masks) < len(masks)


def test_a_conversation_that_fits_lies_whole_in_one_sample(tmp_path: Path) -> None:
    tokenizer = tokenizer_in(tmp_path / "tokenizer", MARKED)
    chats = conversations(80)
    written(tmp_path, chats)
    made = prepared(tmp_path)
    samples = Samples(made.store, LENGTH, 4, shuffle=False)
    rows = [samples.at(np.array([n])) for n in range(samples.count)]
    starts = tokenizer.convert_tokens_to_ids("<s>")
    fitting = [
        ids
        for chat in chats
        if len(ids := tokenizer.apply_chat_template(chat, return_dict=False)) <= LENGTH
    ]
    assert len(fitting) > 20
    text = [" ".join(map(str, row.tokens[0].tolist())) for row in rows]
    for ids in fitting[: len(fitting) // 2]:  # the last ones may be behind the last sample
        assert any(" ".join(map(str, ids)) in line for line in text)
    assert any((row.tokens[0] == starts).sum() > 1 for row in rows), "nothing was packed"
    for row in rows:
        assert row.tokens.max() < made.tokenizer.vocab_size
        kept = row.targets[0] != MASKED
        assert (row.targets[0][:-1][kept[:-1]] == row.tokens[0][1:][kept[:-1]]).all()


def test_only_answers_are_counted_in_steps_and_in_held_out_text(tmp_path: Path) -> None:
    tokenizer_in(tmp_path / "tokenizer", MARKED)
    written(tmp_path, conversations(50))
    samples = Samples(prepared(tmp_path).store, LENGTH, 4, seed=3)
    for step in range(6):
        batch = samples.batch(step, 0, 4)
        assert samples.counted(step, 0, 4) == (batch.targets != MASKED).sum()
        halves = [samples.counted(step, first, 2) for first in (0, 2)]
        assert sum(halves) == samples.counted(step, 0, 4) < 4 * LENGTH
    held_out = HeldOut(replace(samples, shuffle=False))
    total = sum(held_out.counted(number, 0, 4) for number in range(held_out.batches))
    rows = samples.at(np.arange(samples.count))
    assert total == sum(
        (replace(samples, shuffle=False).at(np.array([n])).targets != MASKED).sum()
        for n in range(samples.count)
    )
    assert rows.tokens.shape == (samples.count, LENGTH)


def test_tables_give_the_same_tokens_as_json_lines(tmp_path: Path) -> None:
    tokenizer_in(tmp_path / "tokenizer", PLAIN)
    chats = conversations(20)
    written(tmp_path, chats)
    pyarrow.parquet.write_table(
        pa.table({"messages": chats, "n": list(range(20))}), tmp_path / "c.parquet"
    )
    lines, rows = prepared(tmp_path), prepared(tmp_path, "c.parquet")
    assert lines.store.index.sha256 == rows.store.index.sha256


def test_another_template_or_length_is_another_corpus(tmp_path: Path) -> None:
    tokenizer_in(tmp_path / "tokenizer", PLAIN)
    written(tmp_path, conversations(20))
    first = prepared(tmp_path)
    assert prepared(tmp_path).made_because == ""
    assert prepared(tmp_path, length=32).store.folder != first.store.folder
    tokenizer_in(tmp_path / "tokenizer", PLAIN.replace("\n", " "))
    assert prepared(tmp_path).store.index.sha256 != first.store.index.sha256


@pytest.mark.parametrize(
    ("line", "template", "words", "fix"),
    [
        ({"messages": []}, PLAIN, "no list of messages", "role"),
        ({"messages": [{"content": "x"}]}, PLAIN, "message 1 has no role", "role"),
        ({"messages": "hello"}, PLAIN, "no list of messages", "role"),
        ({"conversation": [1]}, PLAIN, "no key 'messages'", 'messages_key = "conversation"'),
        ({"messages": [{"role": "user"}]}, "{{ raise_exception('no') }}", "cannot write", "see"),
        ({"messages": [{"role": "user"}]}, "{{ ().__class__.mro }}", "unsafe", "see"),
        ({"messages": [{"role": "user"}]}, "{% for %}", "not a chat template", "fetch"),
        ({"messages": [{"role": "user", "content": "a"}]}, None, "no chat template", "instruction"),
        (
            {
                "messages": [
                    {"role": role, "content": "a"} for role in ("user", "assistant", "user")
                ]
            },
            FORGETS,
            "earlier turns otherwise",
            "generation",
        ),
    ],
)
def test_what_cannot_be_read_is_one_error_with_its_line(
    line: object, template: str | None, words: str, fix: str, tmp_path: Path
) -> None:
    tokenizer_in(tmp_path / "tokenizer", template)
    (tmp_path / "chat.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(SpecError, match=words) as error:
        prepared(tmp_path)
    assert fix in error.value.fix
    assert error.value.place
    assert not list((tmp_path / "cache").glob("*.part"))


def test_chat_that_is_read_as_text_says_how_it_is_read(tmp_path: Path) -> None:
    written(tmp_path, conversations(2))
    with pytest.raises(SpecError, match="no key 'text'") as error:
        prepare(DataSpec(("chat.jsonl",)), tmp_path, cache=tmp_path / "cache")
    assert error.value.fix == 'set messages_key = "messages"'
    (tmp_path / "a.txt").write_text("text")
    tokenizer_in(tmp_path / "tokenizer", PLAIN)
    with pytest.raises(SpecError, match="holds no conversations"):
        prepared(tmp_path, "a.txt")
    with pytest.raises(SpecError, match="has no chat template"):
        prepare(DataSpec(("chat.jsonl",), messages_key="messages"), tmp_path)
