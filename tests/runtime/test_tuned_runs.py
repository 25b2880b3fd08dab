"""Runs of which only a part of the model is trained: what is frozen never changes, and the numbers
are those of plain torch, in every layout and schedule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crew import Crew
from plain_numbers import plain_losses
from runs_made import Setting, Unlike, beginning, write_job
from torch import Tensor
from training import Result, train

from ratrain.models.shapes import unit_layout, unit_names
from ratrain.plan.layout.jobs import load_job
from ratrain.runtime.step.frozen import FROZEN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TUNINGS: dict[str, dict[str, Any]] = {
    "first layers frozen": {"freeze": ["embed_tokens", "layers.[01]"]},
    "parts of layers": {"freeze": ["self_attn", "model.norm", "layers.*.mlp.up_proj"]},
    "norms alone": {"train_only": ["*norm"]},
    "the head alone": {"train_only": ["lm_head"]},
    "adapters": {"lora": {"rank": 4, "alpha": 8.0}},
    "adapters on 8 bits": {"lora": {"rank": 4, "base": "int8"}},
    "some adapters": {"lora": {"rank": 2, "targets": ["q_proj", "layers.2.mlp"]}},
}
TIED = (("tie_word_embeddings", True),)
WIDE = (("num_key_value_heads", 4),)


def setting_of(tuning: str, **changes: Any) -> Setting:
    return replace(Setting(steps=4, train=tuple(TUNINGS[tuning].items())), **changes)


def checked(crew: Crew, setting: Setting, folder: Path) -> Result:
    """A run, whose ledger stayed within what was proved."""
    result = train(crew, setting, folder)
    assert all(p <= b for p, b in zip(result.ledger_peaks, result.bounds, strict=True))
    return result


def of_8_bits(matrix: Tensor) -> Tensor:
    """A matrix whose rows' blocks of 64 were held as whole numbers of 127ths of their largest."""
    rows: list[Tensor] = []
    for row in matrix:
        scales = [block.abs().max() / 127 for block in row.split(64)]
        blocks = zip(row.split(64), scales, strict=True)
        rows.append(torch.cat([torch.round(block / scale) * scale for block, scale in blocks]))
    return torch.stack(rows)


def plainly_tuned(folder: Path, setting: Setting) -> tuple[list[float], list[float]]:
    """Losses and norms of plain torch, with requires_grad only where something is trained."""
    job = load_job(write_job(folder, setting))
    spec, leaves, frozen = job.model.spec, dict[str, Tensor](), set[str]()
    scale = job.train.lora.scale if job.train.lora else 0.0
    for unit in unit_names(spec):
        layout = unit_layout(spec, unit)
        in_8_bits = job.train.lora is not None and job.train.lora.base and unit.isdecimal()
        for held, kind in ((layout, "weights"), (layout.frozen, FROZEN)):
            if held is None:
                continue
            flat = beginning(spec, unit, kind, 0, held.size)
            for each in held.parameters:
                leaf = flat[each.offset : each.end].view(each.shape).clone()
                if in_8_bits and kind == FROZEN and leaf.dim() == 2:
                    narrows = each.name in ("attention.output.weight", "mlp.down.weight")
                    leaf = of_8_bits(leaf.t()).t() if narrows else of_8_bits(leaf)
                leaves[f"{unit}.{each.name}"] = leaf
                if kind == FROZEN:
                    frozen.add(f"{unit}.{each.name}")

    def read(leaves: dict[str, Tensor]) -> dict[str, Tensor]:
        weights = dict(leaves)
        for name, a in leaves.items():
            module, _, kind = name.rpartition(".")
            if kind == "lora_a":
                matrix = f"{module}.weight"
                weights[matrix] = leaves[matrix] + scale * leaves[f"{module}.lora_b"] @ a
        return weights

    batches = [
        (torch.from_numpy(tokens), torch.from_numpy(targets))
        for tokens, targets in (
            setting.samples(step, 0, setting.sequences) for step in range(setting.steps)
        )
    ]
    return plain_losses(spec, leaves, job.train, batches, frozen, read)


@pytest.mark.matrix
@pytest.mark.parametrize("name", TUNINGS)
def test_a_partly_frozen_run_agrees_with_plain_torch(name: str, crew: Crew, tmp_path: Path) -> None:
    setting = setting_of(name, clip_norm=0.5)
    losses, norms = plainly_tuned(tmp_path / "plain", setting)
    for number, changes in enumerate(
        [{}, {"pipeline": 2, "data": 2}, {"pipeline": 2, "tensor": 2, "sequence_parallel": True}]
    ):
        result = checked(crew, replace(setting, **changes), tmp_path / str(number))
        assert result.loss_values == pytest.approx(losses, rel=3e-6)
        assert result.norms == pytest.approx(norms, rel=1e-4)


@pytest.mark.matrix
@pytest.mark.parametrize("name", TUNINGS)
def test_a_partly_frozen_run_has_the_same_bits_under_every_schedule_and_sharding(
    name: str, crew: Crew, tmp_path: Path
) -> None:
    usual = setting_of(name, name="1f1b", data=2)
    first = checked(crew, usual, tmp_path / "first")
    changes: list[dict[str, Any]] = [
        {"pipeline": 2, "name": "ratrain"},
        {"pipeline": 2, "name": "zb-h1", "sharding": 2},
        {"pipeline": 2, "name": "gpipe", "recovery": "everywhere"},
        *({"pipeline": 2, "name": "ratrain", "sharding": level} for level in range(4)),
        {"name": "zero3-heavy"},
        {"pipeline": 2, "name": "pe-zero"},
        {"pipeline": 2, "name": "interleaved", "virtual": 2},
    ]
    for number, change in enumerate(changes):
        result = checked(crew, replace(usual, **change), tmp_path / str(number))
        assert not result.differences(first), change


@pytest.mark.matrix
@pytest.mark.parametrize("name", TUNINGS)
def test_gradients_that_leave_while_backward_makes_them_are_those_of_what_is_trained(
    name: str, crew: Crew, tmp_path: Path
) -> None:
    sharded = setting_of(name, data=2, accumulation="sharded")
    first = checked(crew, sharded, tmp_path / "first")
    for number, change in enumerate(
        [{"sharding": 3}, {"pipeline": 2}, {"bucket_bytes": 40_000}, {"name": "tuned"}]
    ):
        result = checked(crew, replace(sharded, **change), tmp_path / str(number))
        assert not result.differences(first), change


@pytest.mark.parametrize("name", ["first layers frozen", "adapters", "adapters on 8 bits"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_frozen_weights_are_kept_in_the_dtype_of_compute_alone(
    name: str, dtype: str, crew: Crew, tmp_path: Path
) -> None:
    setting = setting_of(name, dtype=dtype, data=2, loss_scale=1024.0)
    results = [
        checked(crew, replace(setting, sharding=level), tmp_path / str(level)) for level in (0, 3)
    ]
    wide = checked(crew, replace(setting, dtype="fp32"), tmp_path / "wide")
    assert not results[1].differences(results[0])
    assert results[0].loss_values == pytest.approx(wide.loss_values, rel=0.01)


def test_a_tied_matrix_is_frozen_at_both_of_its_ends(crew: Crew, tmp_path: Path) -> None:
    setting = replace(Setting(steps=3, model=TIED), train=(("freeze", ["lm_head"]),))
    plain = plainly_tuned(tmp_path / "plain", setting)[0]
    for number, change in enumerate([{}, {"pipeline": 2}, {"pipeline": 2, "data": 2}]):
        result = checked(crew, replace(setting, **change), tmp_path / str(number))
        assert result.loss_values == pytest.approx(plain, rel=3e-6)
        assert not result.units["e"][0].size
        assert result.units["h"][0].size


def test_averaged_replicas_average_what_is_trained(crew: Crew, tmp_path: Path) -> None:
    setting = setting_of("first layers frozen", average_every=2, data=2, pipeline=2)
    result = checked(crew, setting, tmp_path)
    assert np.isfinite(result.loss_values).all()
    assert set(result.units) == {"e", "0", "1", "2", "3", "h"}


@pytest.mark.parametrize("name", ["first layers frozen", "adapters on 8 bits", "the head alone"])
def test_a_partly_frozen_run_resumes_in_another_layout(
    name: str, crew: Crew, tmp_path: Path
) -> None:
    setting = setting_of(name, model=WIDE, every=2, keep=5)
    whole = train(crew, setting, tmp_path / "whole", saves=True)
    saved = tmp_path / "whole" / "run" / "checkpoints" / "step-00000002"
    for number, change in enumerate([{"pipeline": 2}, {"tensor": 2}, {"data": 2, "sharding": 3}]):
        again = train(crew, replace(setting, **change), tmp_path / str(number), checkpoint=saved)
        assert again.loss_values == pytest.approx(whole.loss_values[2:], rel=1e-5)


@pytest.mark.parametrize("name", ["parts of layers", "adapters", "adapters on 8 bits"])
def test_replicas_of_unlike_tensor_degrees_train_the_same_part(
    name: str, crew: Crew, tmp_path: Path
) -> None:
    setting = setting_of(name, model=WIDE)
    alone = checked(crew, setting, tmp_path / "alone")
    unlike = (Unlike((4,), 4, tensor=(1,)), Unlike((4,), 4, tensor=(2,)))
    result = checked(crew, replace(setting, unlike=unlike, tensor=2), tmp_path / "unlike")
    assert result.loss_values == pytest.approx(alone.loss_values, rel=1e-5)
