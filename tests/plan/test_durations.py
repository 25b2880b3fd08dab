"""What clipping and saving cost, and which jobs ask for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from random_jobs import job

from ratrain.cost.blocks import blocks
from ratrain.describe.cluster import ClusterSpec
from ratrain.describe.device import Tier
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.describe.train import CheckpointSpec, TrainSpec
from ratrain.errors import SpecError
from ratrain.plan.case.case import Case, case_of
from ratrain.plan.file.form import file_of_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.search.every_plan import case_of_job
from ratrain.plan.search.misfit import planned
from ratrain.program.actions import Kind
from ratrain.program.kind import Waiting
from ratrain.program.setup import Accumulation
from ratrain.simulate.simulate import simulate


def laid_out(
    layout: LayoutSpec, cluster: str = "cpu-lab", schedule: str = "ratrain", dtype: str = "fp32"
) -> JobSpec:
    spec = job("tiny-llama", cluster, layout.devices, 8, 128, schedule=schedule, backend="torch")
    return replace(spec, layout=layout, schedule=replace(spec.schedule, dtype=dtype))


def on_backend(spec: JobSpec, backend: str) -> JobSpec:
    return replace(spec, schedule=replace(spec.schedule, backend=backend))


def with_disk(asked: JobSpec, bandwidth_bytes_per_s: float, path: str | None = None) -> JobSpec:
    """The job on devices with a disk."""
    spec = asked.cluster.spec
    disk = Tier("disk", 10**12, bandwidth_bytes_per_s, "test", path)
    kinds = tuple(replace(kind, tiers=(*kind.tiers, disk)) for kind in spec.device)
    cluster: ClusterSpec = replace(spec, device=kinds)
    return replace(asked, cluster=replace(asked.cluster, spec=cluster))


def kinds_of(case: Case) -> set[Kind]:
    return {action.kind for lane in case.program.lanes.values() for action in lane}


@pytest.mark.parametrize(
    ("dtype", "clip_norm", "clips"),
    [("fp32", None, False), ("fp32", 1.0, True), ("fp16", None, True), ("fp16", 1.0, True)],
)
def test_a_program_for_the_runtime_saves_and_clips_as_its_job_says(
    dtype: str, clip_norm: float | None, clips: bool
) -> None:
    spec = replace(laid_out(LayoutSpec(2, 2), dtype=dtype), train=TrainSpec(clip_norm=clip_norm))
    kinds = kinds_of(case_of(spec))
    assert Kind.Save in kinds
    assert (Kind.ClipNorm in kinds) == clips


def test_a_program_that_is_only_described_saves_nothing_and_checks_no_overflow() -> None:
    spec = on_backend(laid_out(LayoutSpec(2, 2), dtype="fp16"), "described")
    assert not {Kind.Save, Kind.ClipNorm} & kinds_of(case_of(spec))


def test_a_plan_file_stands_for_the_very_program_that_was_planned() -> None:
    spec = job("tiny-llama", "cpu-lab", 2, 4, 64, backend="torch")
    asked = replace(spec, train=TrainSpec(clip_norm=1.0), checkpoint=CheckpointSpec(every=5))
    best = planned(asked).best.plan
    read = plan_of_file(file_of_plan(best), "a.json")
    assert Case(read).program == Case(best).program


@pytest.mark.parametrize(("schedule", "owners"), [("ratrain", 2), ("megatron", 1)])
def test_a_save_takes_twelve_bytes_of_each_owned_parameter_through_the_disk(
    schedule: str, owners: int
) -> None:
    spec = with_disk(laid_out(LayoutSpec(1, 2), schedule=schedule), 1e6)
    saving = replace(spec, checkpoint=CheckpointSpec(every=1))
    case = case_of(saving)
    ran = simulate(case.program, case.costs).run
    table = case.program.table
    saves = np.flatnonzero(table.kind == Kind.Save)
    taken_s = (ran.end_s - ran.start_s)[saves]
    params = np.array([block.params for block in blocks(spec.model.spec)])[table.unit[saves]]
    assert taken_s == pytest.approx(12 * params / owners / 1e6)


@pytest.mark.parametrize(
    ("dtype", "path", "schedule", "left"),
    [
        ("fp32", None, "ratrain", 4),  # weights are their own master, and stay
        ("fp16", None, "ratrain", 0),
        ("fp16", "/other", "ratrain", 12),  # maybe another file system
        ("fp16", None, "megatron", 12),  # each holds what only one of them saves
    ],
)
def test_a_save_does_not_write_what_lies_on_the_disk_as_the_checkpoint_takes_it(
    dtype: str, path: str | None, schedule: str, left: int
) -> None:
    spec = with_disk(laid_out(LayoutSpec(1, 2), dtype=dtype, schedule=schedule), 1e6, path)
    away = replace(spec.schedule, optimizer_tier="disk")
    saving = replace(spec, schedule=away, checkpoint=CheckpointSpec(every=1))
    case = case_of(saving)
    table, work = case.program.table, case.costs.work[Kind.Save]
    units = len(blocks(spec.model.spec))
    params = np.array([block.params for block in blocks(spec.model.spec)])
    owners = 2 if schedule == "ratrain" else 1
    assert len(table.setup.members[0].units) == units
    written = work.volume_bytes[:units]
    assert written == pytest.approx(left * params / owners, rel=1e-3, abs=64)


def test_devices_of_a_host_that_share_a_disk_have_even_parts_of_its_room_and_rate() -> None:
    spec = with_disk(laid_out(LayoutSpec(1, 4)), 1e6)
    cluster = spec.cluster.spec
    (host,), (kind,) = cluster.host, cluster.device
    rates: list[float] = []
    for shared_by in ("device", "host"):
        disk = replace(kind.tiers[-1], shared_by=shared_by)
        whole = replace(kind, tiers=(*kind.tiers[:-1], disk))
        hosts = (replace(host, devices=2, count=2),)
        shared = replace(cluster, device=(whole,), host=hosts)
        job = replace(spec, cluster=replace(spec.cluster, spec=shared))
        away = replace(job, schedule=replace(job.schedule, optimizer_tier="disk"))
        case = case_of(away)
        work = case.costs.work[Kind.FetchOptimizer]
        rates.append(float(case.costs.link_rate_bytes_per_s[int(work.link[0])]))
        assert {
            budget.size_bytes for budget in case.program.setup.budgets if budget.tier == "disk"
        } == {10**12 // (2 if shared_by == "host" else 1)}
    assert rates == [1e6, 5e5]


def test_a_device_without_a_disk_saves_in_no_time() -> None:
    spec = replace(laid_out(LayoutSpec(2)), checkpoint=CheckpointSpec(every=1))
    case = case_of(spec)
    work = case.costs.work[Kind.Save]
    assert not work.volume_bytes.any()
    assert not work.fixed_s.any()


def test_a_slow_disk_holds_the_next_step_up_and_the_wait_has_its_name() -> None:
    spec = replace(laid_out(LayoutSpec(2)), checkpoint=CheckpointSpec(every=1))
    fast, slow = (case_of(with_disk(spec, rate)) for rate in (1e12, 1e4))
    quick_s, late = (simulate(case.program, case.costs) for case in (fast, slow))
    assert late.step_time_s > 2 * quick_s.step_time_s
    assert late.exposed_s[Waiting.DISK] > 0.5 * late.step_time_s


def tied(spec: JobSpec) -> JobSpec:
    """The job with its model's embeddings tied."""
    model = replace(spec.model, spec=replace(spec.model.spec, tied_embeddings=True))
    return replace(spec, model=model)


@pytest.mark.parametrize("backend", ["torch", "described"])
def test_a_tied_model_alone_adds_its_copies_up(backend: str) -> None:
    plain = on_backend(laid_out(LayoutSpec(2, 2)), backend)
    assert Kind.TieSync in kinds_of(case_of(tied(plain)))
    assert Kind.TieSync not in kinds_of(case_of(plain))


@pytest.mark.parametrize("layout", [LayoutSpec(2), LayoutSpec(3), LayoutSpec(2, 2)])
@pytest.mark.parametrize(("dtype", "element_bytes"), [("fp32", 4), ("fp16", 2)])
def test_a_sum_takes_the_matrix_over_the_link_both_ways_at_once(
    layout: LayoutSpec, dtype: str, element_bytes: int
) -> None:
    asked = tied(laid_out(layout, dtype=dtype))
    asked = replace(asked, schedule=replace(asked.schedule, skeleton="1f1b"))
    case = case_of(asked)  # zb-h1 sends messages meanwhile
    ran = simulate(case.program, case.costs).run
    table = case.program.table
    ties = np.flatnonzero(table.kind == Kind.TieSync)
    taken_s = (ran.end_s - ran.start_s)[ties]
    link = case.plan.placement.links.stage(0, layout.pipeline - 1, range(layout.data))
    model = case.job.model.spec
    moved_s = element_bytes * model.vocab * model.hidden / link.bandwidth_bytes_per_s
    owners = layout.data  # each exchanges its own part with its like at the other end
    assert len(ties) == 2
    assert taken_s == pytest.approx([link.latency_s + moved_s / owners] * 2)


def test_one_rank_with_both_copies_adds_them_in_its_memory() -> None:
    case = case_of(tied(laid_out(LayoutSpec(1, 2))))
    device = case.plan.placement.device(0, 0).kind
    model = case.job.model.spec
    work = case.costs.work[Kind.TieSync]
    (tie,) = np.flatnonzero(case.program.table.kind == Kind.TieSync)
    unit = case.program.table.unit[tie]
    assert work.volume_bytes[unit] == 5 * 4 * model.vocab * model.hidden / 2  # owners
    assert work.fixed_s[unit] == device.launch_s
    rate = case.costs.link_rate_bytes_per_s[work.link[unit]]
    assert rate == device.memory.bandwidth_bytes_per_s


def test_sharded_accumulation_of_a_tied_model_is_refused_and_never_chosen() -> None:
    spec = tied(laid_out(LayoutSpec(2, 2)))
    asked = replace(spec, schedule=replace(spec.schedule, gradient_accumulation="sharded"))
    for wrong in (asked, replace(asked, layout=None)):
        with pytest.raises(SpecError, match="adding their gradients takes whole gradients"):
            case_of_job(wrong)
    assert case_of_job(replace(spec, layout=None)).choices.accumulation is Accumulation.LOCAL
    tried = planned(replace(spec, layout=None)).tried
    assert not any(plan.plan.mode.sharded_gradients for plan in tried)


@pytest.mark.parametrize("layout", [LayoutSpec(4), LayoutSpec(1, 4), LayoutSpec(2, 1, 2)])
def test_the_norm_takes_a_tree_of_messages_over_the_farthest_link(layout: LayoutSpec) -> None:
    case = case_of(laid_out(layout, dtype="fp16"))
    latency_s = case.job.cluster.spec.links["room"].latency_s
    fixed_s = case.costs.work[Kind.ClipNorm].fixed_s
    assert fixed_s == pytest.approx(np.full(len(fixed_s), 4 * latency_s), rel=1e-2)


def test_one_device_has_nobody_to_agree_with_on_the_norm() -> None:
    case = case_of(laid_out(LayoutSpec(1), dtype="fp16"))
    assert not case.costs.work[Kind.ClipNorm].fixed_s.any()


# ---- sums of a tensor group -------------------------------------------------------------


def costs_on(backend: str) -> tuple[Case, dict[Kind, np.ndarray]]:
    """A job's case on two tensor ranks per stage, and what its ops take, alone on their links."""
    tensor_job = laid_out(LayoutSpec(2, 1, 2), schedule="backward-checkpoint")
    case = case_of(on_backend(tensor_job, backend))
    costs = case.costs
    rates = np.append(costs.link_rate_bytes_per_s, np.inf)
    times_s = {k: w.fixed_s + w.volume_bytes / rates[w.link] for k, w in costs.work.items()}
    return case, times_s


def test_on_our_runtime_compute_waits_for_a_layers_inner_sum_and_the_op_carries_the_last() -> None:
    case, on_torch = costs_on("torch")
    _, described = costs_on("described")
    kinds = [block.kind for block in blocks(case.job.model.spec)]
    layers = np.array([kind == "layer" for kind in kinds])
    last_s = on_torch[Kind.AllReduce_F]
    assert np.all(last_s[layers] > 0)
    assert described[Kind.AllReduce_F][layers] == pytest.approx(2 * last_s[layers])
    assert described[Kind.AllReduce_F][~layers] == pytest.approx(last_s[~layers])
    for kind in (Kind.F, Kind.R, Kind.B, Kind.I):
        inner_s = on_torch[kind] - described[kind]
        assert inner_s[layers] == pytest.approx(last_s[layers])
        assert inner_s[~layers] == pytest.approx(0)
    assert on_torch[Kind.W] == pytest.approx(described[Kind.W])


def test_a_recovered_units_last_sum_takes_no_time_where_nobody_makes_it() -> None:
    assert not costs_on("torch")[1][Kind.AllReduce_R].any()
    assert costs_on("described")[1][Kind.AllReduce_R].all()
