"""An export keeps what a Hugging Face user finds in a folder beside the weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from launched import made, start
from runs_made import CONFIG, VOCAB, Setting
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from ratrain.errors import SpecError
from ratrain.models.huggingface import check_weights
from ratrain.runtime.run.export import export_run
from ratrain.runtime.run.trained import trained_model

TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"
CHAT = [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "three"}]
ENDS = [2, 5]


def their_tokenizer(folder: Path) -> None:
    """A small tokenizer with special tokens and a chat template."""
    words = Tokenizer(models.BPE(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - 8, special_tokens=["<unk>", "<s>", "</s>", "<pad>"]
    )
    words.train_from_iterator(["one two three four user assistant : "] * 20, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        chat_template=TEMPLATE,
    )
    fast.save_pretrained(folder)


def their_folder(folder: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    """A folder as transformers writes it, of the model that runs of tests train."""
    names = {key: value for key, value in CONFIG.items() if key[0] not in "_m"}
    config = LlamaConfig(
        **names,  # type: ignore[arg-type]
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=ENDS,
        pad_token_id=3,
        attention_dropout=0.25,
        initializer_range=0.0125,
    )
    torch.manual_seed(3)
    model: Any = LlamaForCausalLM(config)
    model.to(dtype)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.6, top_p=0.9, bos_token_id=1, eos_token_id=ENDS
    )
    model.save_pretrained(folder)
    their_tokenizer(folder)
    (folder / "LICENSE.txt").write_text("a licence of its own")
    return folder


def assert_kept(out: Path, source: Path, dtype: torch.dtype) -> None:
    """Transformers finds in `out` what it finds in `source`, with weights in `dtype`."""
    ours, theirs = (AutoConfig.from_pretrained(folder).to_dict() for folder in (out, source))
    assert ours == {**theirs, "dtype": ours["dtype"], "_name_or_path": str(out)}
    assert ours["dtype"] in (dtype, str(dtype).removeprefix("torch."))
    assert ours["eos_token_id"] == ENDS and ours["bos_token_id"] == 1
    ours, theirs = (GenerationConfig.from_pretrained(folder).to_dict() for folder in (out, source))
    assert ours == theirs and ours["temperature"] == 0.6
    ours, theirs = (AutoTokenizer.from_pretrained(folder) for folder in (out, source))
    assert ours.apply_chat_template(CHAT) == theirs.apply_chat_template(CHAT)
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert (out / "LICENSE.txt").read_text() == "a licence of its own"


def test_a_folder_goes_through_ratrain_unchanged(tmp_path: Path) -> None:
    source, out = their_folder(tmp_path / "theirs"), tmp_path / "ours"
    exported = export_run(source, out)
    assert (exported.dtype, exported.source) == ("bf16", source)
    assert_kept(out, source, torch.bfloat16)
    before: Any = AutoModelForCausalLM.from_pretrained(source)
    after: Any = AutoModelForCausalLM.from_pretrained(out)
    assert all(p.dtype is torch.bfloat16 for p in after.parameters())
    for name, parameter in before.named_parameters():
        assert torch.equal(parameter, after.get_parameter(name)), name


def test_the_dtype_asked_for_is_the_dtype_that_the_config_tells(tmp_path: Path) -> None:
    source, out = their_folder(tmp_path / "theirs"), tmp_path / "ours"
    assert export_run(source, out, "fp16").dtype == "fp16"
    assert_kept(out, source, torch.float16)


def test_a_config_of_quantised_weights_does_not_say_so_of_the_weights_that_are_written(
    tmp_path: Path,
) -> None:
    source, out = their_folder(tmp_path / "theirs"), tmp_path / "ours"
    path = source / "config.json"
    said = {**json.loads(path.read_text()), "quantization_config": {"quant_method": "awq"}}
    path.write_text(json.dumps(said))
    export_run(source, out)
    assert "quantization_config" not in json.loads((out / "config.json").read_text())


def test_code_that_a_config_names_comes_along(tmp_path: Path) -> None:
    source, out = their_folder(tmp_path / "theirs"), tmp_path / "ours"
    path = source / "config.json"
    said = {**json.loads(path.read_text()), "auto_map": {"AutoConfig": "configuration_x.X"}}
    path.write_text(json.dumps(said))
    (source / "configuration_x.py").write_text("class X: ...")
    export_run(source, out)
    assert (out / "configuration_x.py").read_text() == "class X: ..."


def test_a_tokenizer_that_lies_alone_gets_the_end_token_that_runs_use(tmp_path: Path) -> None:
    source, out = their_folder(tmp_path / "theirs"), tmp_path / "ours"
    for name in ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        (source / name).unlink(missing_ok=True)
    export_run(source, out)
    assert AutoTokenizer.from_pretrained(out).eos_token == "</s>"


@pytest.mark.slow
def test_a_run_that_began_from_a_folder_is_exported_as_that_folder_was(tmp_path: Path) -> None:
    source = their_folder(tmp_path / "theirs")
    text = " ".join(["one two three four"] * 200)
    (tmp_path / "text.txt").write_text(text)
    setting = Setting(
        weights="theirs", tokenizer="theirs", files=("text.txt",), steps=2, model_file="theirs"
    )
    run, out = made(tmp_path, setting), tmp_path / "ours"
    start(run)
    exported = export_run(run.path, out)
    assert (exported.step, exported.dtype, exported.source) == (2, "bf16", source)
    assert_kept(out, source, torch.bfloat16)
    check_weights(out, trained_model(out).spec)
    before: Any = AutoModelForCausalLM.from_pretrained(source)
    after: Any = AutoModelForCausalLM.from_pretrained(out)
    assert any(
        not torch.equal(parameter, after.get_parameter(name))
        for name, parameter in before.named_parameters()
    )
    shutil.rmtree(source)
    with pytest.raises(SpecError, match="tokenizer that the run was trained with is gone"):
        export_run(run.path, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.slow
def test_a_run_of_a_model_without_a_folder_tells_the_end_token_of_its_tokenizer(
    tmp_path: Path,
) -> None:
    run, out = made(tmp_path, Setting(steps=1)), tmp_path / "ours"
    start(run)
    (tmp_path / "config.json").unlink()
    assert export_run(run.path, out).source is None
    config = AutoConfig.from_pretrained(out)
    assert config.eos_token_id == 256 and config.bos_token_id is None
