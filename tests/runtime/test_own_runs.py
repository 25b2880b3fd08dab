"""Models of a user's own modules: plain torch's numbers in every layout, within their proof."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import Crew
from launched import cut_short, loss_bits, made, start
from registered import declared_inside
from runs_made import Setting, write_job
from safetensors.torch import load_file
from test_allocator import COUNTS, allocator_library
from training import RankResult, train, train_rank

from ratrain.describe.own import own_cost
from ratrain.describe.presets import model_preset
from ratrain.describe.train import TrainSpec
from ratrain.errors import SpecError
from ratrain.models.huggingface.reader import read_range
from ratrain.models.initialise import initial_range
from ratrain.models.own import OwnModel, declare_model
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.plan.layout.jobs import load_job
from ratrain.runtime.run.export import export_run
from ratrain.runtime.run.trained import trained_model

HERE = Path(__file__).parent
NAMES = ("own-attention", "own-convolution", "own-recurrence")
EVERY = (*NAMES, "own-dropping")
MINE = Setting(own="own-attention", steps=4, sequences=8)
FOUR = replace(MINE, pipeline=2, data=2)


@pytest.fixture(autouse=True)
def own_models() -> Generator[Any]:
    with declared_inside(HERE / "own"):
        yield import_module("own_models")


@pytest.fixture
def crew_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.train_rank", knowing)


def knowing(rank: int, *rest: Any) -> RankResult:
    """A rank of `train`, in a process that knows the modules."""
    with declared_inside(HERE / "own"):
        import_module("own_models")
        return train_rank(rank, *rest)


def plain_losses(setting: Setting, train: TrainSpec) -> list[float]:
    """The same training in plain torch: modules one after the other, autograd's leaves, AdamW."""
    assert setting.own is not None
    blocks: Any = import_module("own_models")
    spec = model_preset(setting.own)
    made = [blocks.First(), *(blocks.BLOCKS[setting.own]() for _ in range(4)), blocks.Last()]
    for name, module in zip(unit_names(spec), made, strict=True):
        layout = unit_layout(spec, name)
        flat = initial_range(spec, name, layout, 0, layout.size, seed=5)
        for each in layout.parameters:
            module.get_parameter(each.name).data = flat[each.offset : each.end].view(each.shape)
    parameters = [each for module in made for each in module.parameters()]
    groups = [
        {"params": [each for each in parameters if each.dim() > 1]},
        {"params": [each for each in parameters if each.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups,
        train.learning_rate,
        (train.keys.beta1, train.keys.beta2),
        train.keys.epsilon,
        train.weight_decay,
    )
    losses: list[float] = []
    for step in range(setting.steps):
        tokens, targets = map(torch.from_numpy, setting.samples(step, 0, setting.sequences))
        x = tokens
        for module in made[:-1]:
            x = module(x)
        loss = made[-1](x, targets).sum() / (targets >= 0).sum()
        optimizer.zero_grad()
        loss.backward()
        if train.clip_norm:
            torch.nn.utils.clip_grad_norm_(parameters, train.clip_norm)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("crew_knows")
def test_own_modules_train_as_in_plain_torch(crew: Crew, tmp_path: Path, name: str) -> None:
    setting = replace(FOUR, own=name, masked=True, train=(("rate_schedule", "constant"),))
    job = load_job(write_job(tmp_path / "job", setting))
    result = train(crew, setting, tmp_path / "run")
    assert result.loss_values == pytest.approx(plain_losses(setting, job.train), rel=2e-6)
    assert all(
        peak <= bound for peak, bound in zip(result.ledger_peaks, result.bounds, strict=True)
    )


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    "change",
    [
        {"recovery": "everywhere"},
        {"sharding": 0},
        {"sharding": 1},
        {"sharding": 3, "name": "zero3-heavy"},
        {"sharding": 3, "name": "zero3-heavy", "recovery": "everywhere"},
        {"name": "zb-h1"},
        {"name": "gpipe", "recover_heads": True, "recovery": "everywhere"},
        {"virtual": 2, "skeleton": "interleaved"},
        {"accumulation": "sharded", "bucket_bytes": 40_000},
        {"optimizer_tier": "host"},
    ],
    ids=lambda change: " ".join(f"{key}={value}" for key, value in change.items()),
)
@pytest.mark.usefixtures("crew_knows")
def test_every_layout_of_own_modules_has_the_same_bits(
    crew: Crew, tmp_path: Path, name: str, change: dict[str, Any]
) -> None:
    setting = replace(FOUR, own=name, accumulation=change.get("accumulation", "local"))
    usual = train(crew, setting, tmp_path / "usual")
    changed = train(crew, replace(FOUR, own=name, **change), tmp_path / "changed")
    assert not changed.differences(usual)


MEASURE = """
import sys
sys.path.insert(0, sys.argv[1])
import own_models
from ratrain.describe.own import own_cost
from ratrain.describe.own import own_cost
from ratrain.describe.presets import model_preset
from ratrain.models.graphs import gradient_of_leaf, graph_of
from ratrain.models.units import MicroBatch, unit_of
from ratrain.models.weights import Weights

torch.set_num_threads(1)
B, S = 2, 256
KIND = {"e": "embedding", "h": "head"}

def measured(spec, name, dtype):
    unit = unit_of(spec, name, sequence_length=S)
    weights = Weights(unit.layout)
    view = torch.randn(unit.layout.size).mul_(0.1).to(dtype)
    gradient = torch.zeros(unit.layout.size)
    tokens = torch.randint(0, spec.vocab, (B, S))
    batch = MicroBatch(tokens, tokens)
    weights.attach_view(view)
    weights.attach_gradient(gradient)
    boundary = B * S * spec.hidden * dtype.itemsize
    def once(halves):
        shape = (0,) if name == "e" else (B, S, spec.hidden)
        x = torch.randn(shape, dtype=dtype)
        leaf = x.requires_grad_()
        out = unit.forward(weights, leaf, batch)
        graph = graph_of(out, leaf)
        del out
        given = torch.ones(()) if name == "h" else torch.randn(B, S, spec.hidden, dtype=dtype)
        kept = weights.defer() if halves else []
        made = gradient_of_leaf(graph, given)
        weights.stop_deferring()
        del graph
        weights.play(kept)
        return made
    peaks = []
    for halves in (False, True):
        once(halves)
        counts.reset_peak()
        before = counts.held_bytes
        once(halves)
        peaks.append(counts.peak_bytes - before)
    cost = own_cost(spec, KIND.get(name, "layer"), S, B, {4: "fp32", 2: "bf16"}[dtype.itemsize])
    return max(peaks), cost.kept_bytes + cost.scratch_bytes + 3 * boundary

found = []
for label in own_models.BLOCKS:
    spec = model_preset(label)
    for dtype in (torch.float32, torch.bfloat16):
        for name in ("e", "0", "h"):
            found.append([f"{label} {name} {dtype}", *measured(spec, name, dtype)])
print(json.dumps(found))
"""


@pytest.mark.slow
def test_own_modules_allocate_no_more_than_was_traced() -> None:
    environment = os.environ | {"LD_PRELOAD": str(allocator_library()), "MKL_DISABLE_FAST_MM": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", COUNTS + MEASURE, str(HERE / "own")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert len(found) == 6 * len(EVERY)
    assert not [row for row in found if row[1] > row[2]]


@pytest.mark.slow
def test_a_run_of_own_modules_resumes_elsewhere_and_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_models: Any
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE / "own"))
    monkeypatch.setenv("RATRAIN_EXTENSIONS", "own_models")
    whole = made(tmp_path / "whole", replace(FOUR, every=2))
    start(whole)
    losses = [float.fromhex(bits) for bits in loss_bits(whole)]
    resumed = cut_short(whole, tmp_path / "resumed", replace(MINE, recovery="everywhere"), 2)
    start(resumed)
    found = [float.fromhex(bits) for bits in loss_bits(resumed)]
    assert found[:2] == losses[:2]
    assert found[2:] == pytest.approx(losses[2:], rel=1e-6)

    exported = export_run(whole.path, tmp_path / "exported", step=2)
    assert exported.step == 2
    tensors = load_file(tmp_path / "exported" / "model.safetensors")
    blocks = torch.nn.ModuleList(own_models.Attention() for _ in range(4))
    of_blocks = {n.removeprefix("blocks."): t for n, t in tensors.items() if n[0] == "b"}
    blocks.load_state_dict(of_blocks)
    again = made(tmp_path / "again", replace(MINE, weights="../exported", steps=1))
    trained, begun = trained_model(whole.path, 2), again.read_spec()
    assert begun.end_step == 1
    layout = unit_layout(trained.spec, "2")
    read = read_range(tmp_path / "exported", trained.spec, "2", layout, 0, layout.size)
    assert torch.equal(read, trained.source("2"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("statistics", "norm in the block of odd keeps statistics"),
        ("pair", "gives tuple where"),
        ("looks", "cannot be traced"),
        ("mean", "gives \\(\\) where"),
        ("number", "is a int"),
    ],
)
def test_a_module_that_can_be_no_unit_is_refused_by_name(
    kind: str, what: str, own_models: Any
) -> None:
    class Odd(own_models.Attention):
        def __init__(self) -> None:
            super().__init__()
            if kind == "statistics":
                self.norm = torch.nn.BatchNorm1d(own_models.HIDDEN)

        def forward(self, x: torch.Tensor) -> Any:
            if kind == "looks" and float(x.sum()) > 0:
                return -x
            return (x, x) if kind == "pair" else x

    class Mean(own_models.Last):
        def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return super().forward(x, targets).mean()

    last = Mean if kind == "mean" else own_models.Last
    block: Any = (lambda: 3) if kind == "number" else Odd
    declare_model("odd", OwnModel(own_models.First, block, last, 2, own_models.HIDDEN, 300))
    with pytest.raises(SpecError, match=what):
        own_cost(model_preset("odd"), "head" if kind == "mean" else "layer", 16)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"tensor": 2}, "no tensor group divides"),
        ({"train": (("lora", {"rank": 2}),)}, "no adapters"),
        ({"train": (("freeze", ["blocks.7"]),)}, "no parameter"),
    ],
)
def test_what_own_modules_cannot_do_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], what: str
) -> None:
    job = write_job(tmp_path, replace(MINE, **change))
    with pytest.raises(SpecError, match=what):
        load_job(job)
