"""Gradients and boundary tensors that travel in bf16 while everything else is fp32."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from crew import Crew
from hypothesis import given, settings
from hypothesis import strategies as st
from launched import assert_same_end, loss_bits, made, start
from runs_made import Setting, write_job
from training import train

from ratrain.cost.scratch import ON_CPU
from ratrain.errors import SpecError
from ratrain.plan.layout.jobs import load_job
from ratrain.runtime.run_folder import RunFolder
from ratrain.runtime.step.exchange.narrowing import landing_place, widen

BF16 = Setting(gradient_wire="bf16", boundary_wire="bf16")


# ---- in a tensor's own memory ------------------------------------------------------------------


@settings(max_examples=12, deadline=None)
@given(
    length=st.one_of(
        st.integers(0, 2000),
        st.integers(-3, 3).map(lambda more: ON_CPU.narrowed + more),
        st.integers(-3, 3).map(lambda more: 3 * ON_CPU.narrowed + more),
    ),
    seed=st.integers(0, 99),
)
def test_what_arrives_in_a_tensor_s_own_memory_is_widened_there(length: int, seed: int) -> None:
    sent = torch.randn(length, generator=torch.Generator().manual_seed(seed)).bfloat16()
    wide = torch.full((length,), 7.0)
    landing_place(wide, torch.bfloat16).copy_(sent)
    widen(wide, torch.bfloat16)
    assert torch.equal(wide, sent.float())


def test_what_arrives_as_it_is_computed_is_left_alone() -> None:
    wide = torch.randn(5)
    assert landing_place(wide, torch.float32) is wide
    before = wide.clone()
    widen(wide, torch.float32)
    assert torch.equal(wide, before)


# ---- jobs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["gradient_wire", "boundary_wire"])
@pytest.mark.parametrize(
    ("dtype", "wire", "allowed"),
    [
        ("fp32", "fp16", "use fp32 or bf16"),
        ("bf16", "fp32", "use bf16"),
        ("fp16", "bf16", "use fp16"),
    ],
)
def test_a_tensor_is_sent_in_the_run_s_dtype_or_from_fp32_in_bf16(
    key: str, dtype: str, wire: str, allowed: str, tmp_path: Path
) -> None:
    job = write_job(tmp_path, replace(Setting(dtype=dtype), **{key: wire}))
    with pytest.raises(SpecError, match=f"tensors of {dtype} cannot be sent in {wire}") as error:
        load_job(job)
    assert key in error.value.place and allowed in error.value.fix


def test_replicas_that_average_weights_have_no_gradients_to_send(tmp_path: Path) -> None:
    averaging = Setting(data=2, average_every=2, gradient_wire="bf16")
    with pytest.raises(SpecError, match="send no gradients"):
        load_job(write_job(tmp_path, averaging))


def test_a_wire_type_changes_no_program_but_the_scratch_of_message_lanes(tmp_path: Path) -> None:
    plain = Setting(pipeline=2, data=2)
    folders = {
        wires: made(
            tmp_path / str(wires), replace(plain, gradient_wire=wires[0], boundary_wire=wires[1])
        )
        for wires in ((None, None), ("fp32", "fp32"), ("bf16", None), ("bf16", "bf16"))
    }
    usual, named, gradients, both = (run.program.read_text() for run in folders.values())
    assert usual == named == gradients
    assert usual != both
    scratch = [
        {unit.scratch_bytes for member in run.read_program().setup.members for unit in member.units}
        for run in (folders[None, None], folders["bf16", "bf16"])
    ]
    assert scratch[1] == {size + 4 * 2 * ON_CPU.narrowed for size in scratch[0]}


def test_plan_and_run_name_what_travels_in_bf16(tmp_path: Path) -> None:
    run = made(tmp_path, replace(BF16, pipeline=2, data=2))
    words = "gradients and boundary tensors travel in bf16"
    assert words in json.loads((run.path / "case.json").read_text())["headline"]
    assert run.read_spec().precision == f"fp32, {words}"
    alone = made(tmp_path / "alone", Setting(data=2, gradient_wire="bf16"))
    assert alone.read_spec().precision == "fp32, gradients travel in bf16"


def test_a_run_of_an_earlier_version_sends_what_it_computes(tmp_path: Path) -> None:
    run = made(tmp_path, Setting())
    path = run.path / "run.json"
    body = json.loads(path.read_text())
    del body["gradient_wire"], body["boundary_wire"]
    path.write_text(json.dumps(body))
    assert run.read_spec().precision == "fp32"
    assert run.read_spec().gradients_travel_in == run.read_spec().boundaries_travel_in == "fp32"


# ---- the same numbers --------------------------------------------------------------------------


BOUNDARIES = [(1, 2), (3, 1), (2, 2)]


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("layout", BOUNDARIES, ids=lambda at: "p{}d{}".format(*at))
def test_every_schedule_gives_the_same_bits_under_the_same_wire_types(
    layout: tuple[int, int], crew: Crew, tmp_path: Path
) -> None:
    usual = replace(BF16, clip_norm=0.5, steps=2).at(layout)
    choices = [
        replace(usual, name="1f1b"),
        *(replace(usual, sharding=level) for level in range(4)),
        replace(usual, name="zb-h1", sharding=3),
        replace(usual, name="gpipe", sharding=0),
        replace(usual, recovery="everywhere"),
    ]
    _require_same(crew, choices, tmp_path)


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    "choices",
    [
        [Setting("interleaved", virtual=2), Setting("megatron-interleaved", virtual=2)],
        [Setting(accumulation="sharded"), Setting("zb-h1", accumulation="sharded", sharding=3)],
        [Setting(model=(("tie_word_embeddings", True),), sharding=level) for level in range(4)],
        [Setting(), Setting(network="staged")],
    ],
    ids=["interleaved", "sharded", "tied", "networks"],
)
def test_so_do_stages_on_shared_ranks_and_sharded_sums_and_tied_copies_and_networks(
    choices: list[Setting], crew: Crew, tmp_path: Path
) -> None:
    wires = {"gradient_wire": "bf16", "boundary_wire": "bf16", "steps": 2}
    _require_same(crew, [replace(each, **wires).at((2, 2)) for each in choices], tmp_path)


@pytest.mark.slow
def test_so_do_tensor_groups(crew: Crew, tmp_path: Path) -> None:
    usual = replace(BF16, tensor=2, steps=2)
    _require_same(crew, [usual.at((2, 1)), replace(usual, name="zb-h1").at((2, 1))], tmp_path / "p")
    _require_same(crew, [usual.at((1, 2)), replace(usual, sharding=0).at((1, 2))], tmp_path / "d")


@pytest.mark.slow
def test_the_depth_of_a_pipeline_changes_no_bit_where_only_gradients_are_narrow(
    crew: Crew, tmp_path: Path
) -> None:
    usual = Setting(gradient_wire="bf16", steps=2)
    deep = replace(usual, name="interleaved", virtual=2)
    _require_same(crew, [usual.at((1, 2)), usual.at((2, 2)), deep.at((2, 2))], tmp_path)


def _require_same(crew: Crew, choices: list[Setting], folder: Path) -> None:
    results = [train(crew, setting, folder / str(n)) for n, setting in enumerate(choices)]
    for result, setting in zip(results, choices, strict=True):
        assert not result.differences(results[0]), str(setting)
        assert result.norms == results[0].norms, str(setting)


@pytest.mark.slow
def test_losses_stay_within_two_percent_of_those_of_fp32(crew: Crew, tmp_path: Path) -> None:
    usual = Setting(steps=12).at((2, 2))
    exact = train(crew, usual, tmp_path / "fp32")
    for number, wires in enumerate(("gradient_wire", "boundary_wire")):
        narrow = train(crew, replace(usual, **{wires: "bf16"}), tmp_path / str(number))
        assert narrow.losses != exact.losses
        assert narrow.loss_values == pytest.approx(exact.loss_values, rel=0.02)


# ---- bytes ---------------------------------------------------------------------------------------


WIDE = (("hidden_size", 256), ("intermediate_size", 512), ("num_hidden_layers", 2))
"""Boundary tensors of several pieces, and layers whose gradients are."""


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("layout", "key", "sharding", "expected"),
    [
        ((2, 1), "boundary_wire", None, 1 / 2),  # nothing but messages
        ((1, 2), "gradient_wire", 0, 1 / 2),  # an all-reduce: both of its halves
        ((1, 2), "gradient_wire", 2, 3 / 4),  # gathers of weights stay in fp32
    ],
    ids=["messages", "all-reduce", "reduce-scatter"],
)
def test_a_narrow_wire_halves_what_is_sent(
    layout: tuple[int, int],
    key: str,
    sharding: int | None,
    expected: float,
    crew: Crew,
    tmp_path: Path,
) -> None:
    usual = Setting(model=WIDE, sharding=sharding, micro_batch=4, steps=2).at(layout)
    wide = train(crew, usual, tmp_path / "fp32")
    narrow = train(crew, replace(usual, **{key: "bf16"}), tmp_path / "bf16")
    assert wide.sent_bytes[0] > 100_000
    assert narrow.sent_bytes[0] / wide.sent_bytes[0] == pytest.approx(expected, rel=0.03)


# ---- whole runs --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    setting = replace(BF16, steps=6, every=3).at((2, 2))
    whole, cut = made(tmp_path / "whole", setting), made(tmp_path / "cut", setting)
    start(whole)
    shutil.copytree(whole.checkpoints / "step-00000003", cut.checkpoints / "step-00000003")
    lines = whole.metrics.read_text().splitlines(keepends=True)
    cut.metrics.write_text("".join(lines[:3]))
    start(cut)
    assert loss_bits(cut) == loss_bits(whole)
    assert_same_end(cut, whole)


@pytest.mark.slow
def test_what_ranks_allocate_stays_within_the_bound(tmp_path: Path) -> None:
    setting = replace(BF16, model=WIDE, sequence_length=64, micro_batch=16, sequences=64, steps=2)
    bound = max(_bounds(made(tmp_path / "free", setting.at((2, 2)))))
    run = made(tmp_path / "held", replace(setting.at((2, 2)), budget_bytes=bound))
    start(run)
    rows = run.read_metrics()
    for rank in range(4):
        peaks = [row["ranks"][rank]["allocated_peak_bytes"] for row in rows]
        assert 0 < max(peaks) <= bound


def _bounds(run: RunFolder) -> list[int]:
    items = json.loads((run.path / "case.json").read_text())["bound_items"]
    return [sum(of_rank.values()) for of_rank in items]
