"""A Hugging Face folder is tuned: adapters as plain torch trains them, resumed, and written merged
and as PEFT does; of a folder that was changed meanwhile, nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from launched import cut_short, loss_bits, made, start
from runs_made import Setting
from test_export import their_folder
from torch.nn import functional
from transformers import AutoModelForCausalLM

from ratrain.errors import SpecError
from ratrain.models.peft_folder import WEIGHTS
from ratrain.runtime.run.export import export_adapters, export_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SETTING = Setting(
    model_file="theirs",
    weights="theirs",
    steps=4,
    every=2,
    pipeline=2,
    data=2,
    train=(("lora", {"rank": 4}),),
)


def test_adapters_are_trained_resumed_and_written_merged_and_apart(tmp_path: Path) -> None:
    their_folder(tmp_path / "theirs", torch.float32)
    run = made(tmp_path, SETTING)
    start(run)
    again = replace(SETTING, model_file="../theirs", weights="../theirs")
    part = cut_short(run, tmp_path / "part", again, 2)
    start(part)
    assert loss_bits(part) == loss_bits(run)
    exported = export_run(run.path, tmp_path / "out", "fp32")
    apart = export_adapters(run.path, tmp_path / "adapters")
    assert apart.size_bytes < exported.size_bytes / 4
    tensors: dict[str, Any] = safetensors.torch.load_file(tmp_path / "adapters" / WEIGHTS)
    assert max(float(t.abs().max()) for name, t in tensors.items() if "lora_B" in name) > 0
    before, after = (
        dict(AutoModelForCausalLM.from_pretrained(tmp_path / folder).named_parameters())
        for folder in ("theirs", "out")
    )
    for name, value in after.items():
        key = f"base_model.model.{name.removesuffix('.weight')}"
        change = torch.zeros_like(value)
        if f"{key}.lora_A.weight" in tensors:
            change = 4 * tensors[f"{key}.lora_B.weight"] @ tensors[f"{key}.lora_A.weight"]
        assert torch.allclose(value, before[name] + change, atol=1e-6)
    with pytest.raises(SpecError, match="holds adapters already"):
        export_adapters(run.path, tmp_path / "adapters")
    plain = made(tmp_path / "plain", Setting(steps=1))
    start(plain)
    with pytest.raises(SpecError, match="has no adapters"):
        export_adapters(plain.path, tmp_path / "none")
    assert functional.mse_loss(after["lm_head.weight"], before["lm_head.weight"]) == 0
