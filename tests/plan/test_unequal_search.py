"""The search for plans whose stages and replicas differ: what it tries, and what it finds."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from random_jobs import job
from test_left_out import cluster_file, job_file

from ratrain.cli.main import ratrain
from ratrain.describe.job import ClusterChoice, JobSpec
from ratrain.errors import Infeasible
from ratrain.plan.case.case import case_of_plan
from ratrain.plan.draft.draft import Draft, shared, shares_of
from ratrain.plan.draft.on_devices import plans_of
from ratrain.plan.draft.parts import Part, layers_moved, part_of
from ratrain.plan.draft.pools import Post, pipeline_of, pools_of
from ratrain.plan.draft.space import Space
from ratrain.plan.draft.stages import Stages
from ratrain.plan.file.form import file_of_plan, load_plan, parse_plan, write_plan
from ratrain.plan.layout.enumerate import StateMode
from ratrain.plan.layout.jobs import load_job, strategy_of
from ratrain.plan.layout.plan import has_members
from ratrain.plan.price.kind_speed import least_step_s
from ratrain.plan.search.beam import seeds
from ratrain.plan.search.every_plan import EveryPlan, every_plan
from ratrain.plan.search.moves import MOVES, changed
from ratrain.plan.search.moves_of_work import best_cut, cut_together
from ratrain.plan.search.tried import timed
from ratrain.plan.search.unequal import searchable
from ratrain.plan.words.planned import every_text
from ratrain.program.replicas import Recovery
from ratrain.simulate.long import simulate_proved

LOCAL, LEVEL_1 = StateMode(0, False), StateMode(1, False)
BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "unequal"
EXAMPLES = Path(__file__).parents[2] / "examples"
MODES = (Recovery.NONE, Recovery.FORWARD, Recovery.BACKWARD)


def stages_of(spec: JobSpec) -> Stages:
    return Stages(spec, pools_of(spec.cluster.members()), strategy_of(spec), MODES)


def three_kinds(folder: Path) -> JobSpec:
    return load_job(job_file(folder, fast=(40, 2), middle=(20, 1), slow=(10, 1)))


def all_drafts(stages: Stages, size: int) -> list[Draft]:
    """The seeds in micro-batches of a size, and what every move makes of them."""
    space = Space(stages, (LEVEL_1,))
    begun = [
        draft
        for draft in seeds(space, divided=False, state=LEVEL_1)
        if all(part.micro_batch == size for part in draft.parts)
    ]
    made = {draft.key: draft for draft in begun}
    for draft in begun:
        made |= {other.key: other for other in changed(space, draft)}
    return list(made.values())


def parts_of(stages: Stages, *shapes: tuple[int, ...], size: int = 1) -> list[Part]:
    parts = [
        part_of(
            stages, pipeline_of(tuple(Post(pool, 1) for pool in shape)), size, len(shapes), LEVEL_1
        )
        for shape in shapes
    ]
    assert None not in parts
    return [part for part in parts if part is not None]


def shared_out(stages: Stages, parts: Sequence[Part], state: StateMode) -> Draft | None:
    shares = shares_of(parts, stages.job.batch.sequences)
    return None if shares is None else shared(stages, parts, shares, state)


# ---- shapes, cuts and shares ---------------------------------------------------------------


def cuts(layers: int, count: int) -> Iterator[tuple[int, ...]]:
    every = product(range(1, layers + 1), repeat=count)
    return (cut for cut in every if sum(cut) == layers)


def test_no_cut_has_a_faster_slowest_stage(tmp_path: Path) -> None:
    stages = stages_of(three_kinds(tmp_path))
    for shape in ((0, 1), (2, 0), (0, 2, 1), (2, 1, 0)):
        (part,) = parts_of(stages, shape)
        best = min(
            max(work.busy_s for (work,) in other.works)
            for cut in cuts(4, len(shape))
            if (other := part_of(stages, part.members, 1, 1, LEVEL_1, cut)) is not None
        )
        assert max(work.busy_s for (work,) in part.works) == best


def test_the_best_cut_is_one_that_no_single_move_makes_faster(tmp_path: Path) -> None:
    stages = stages_of(three_kinds(tmp_path))
    space, state = Space(stages, (LEVEL_1,)), LEVEL_1
    parts = parts_of(stages, (0,), (0, 1), (2, 0), (1, 0, 2), (2, 1, 0, 0))
    for micro_batches in (1, 2, 24):
        made = [best_cut(space, part, micro_batches, len(parts), state) for part in parts]
        assert [part.shape for part in made] == [part.shape for part in parts]
        for part, before in zip(made, parts, strict=True):
            step_s = part.step_s(micro_batches)
            assert step_s <= before.step_s(micro_batches)
            for layers in layers_moved(part.layers):
                other = part_of(stages, part.members, 1, len(parts), LEVEL_1, layers)
                assert other is None or other.step_s(micro_batches) >= step_s * (1 - 1e-9)
    unmoved = [best_cut(space, part, 24, len(parts), state) for part in made]
    assert [part.layers for part in unmoved] == [part.layers for part in made]


def test_layers_follow_speed_and_not_memory() -> None:
    spec = job("small-llama", "lab-mixed", 4, 24)
    stages = stages_of(spec)
    (part,) = parts_of(stages, (0, 0, 1, 1))
    layer_s = [stages.seconds(post, 1)[1] for post in part.shape]
    speeds = [1 / (each.forward_s + each.backward_s) for each in layer_s]
    for stage in (1, 2):  # without an embedding or a head
        share = 8 * speeds[stage] / sum(speeds)
        assert abs(part.layers[stage] - share) <= 1


def test_shares_come_to_the_whole_batch_and_none_is_empty() -> None:
    stages = stages_of(job("small-llama", "lab-mixed", 4, 24))
    for size in (1, 2, 3, 4):
        for draft in all_drafts(stages, size):
            assert min(draft.shares) >= 1
            sides = zip(draft.parts, draft.shares, strict=True)
            assert sum(part.micro_batch * share for part, share in sides) == 24


def test_no_shares_end_sooner(tmp_path: Path) -> None:
    stages = stages_of(three_kinds(tmp_path))
    parts = parts_of(stages, (0,), (0, 2), (1,))
    draft = shared_out(stages, parts, LEVEL_1)
    assert draft is not None

    def end_s(shares: tuple[int, ...]) -> float:
        return max(part.step_s(share) for part, share in zip(parts, shares, strict=True))

    assert end_s(draft.shares) == min(end_s(shares) for shares in cuts(12, 3))


@pytest.mark.parametrize("sequences", [3, 12, 100, 4095])
def test_shares_are_those_that_are_handed_out_one_by_one(tmp_path: Path, sequences: int) -> None:
    stages = stages_of(three_kinds(tmp_path))
    for sizes in ((1, 1, 1), (1, 2, 4), (8, 1, 2)):
        parts = [
            replace(part, micro_batch=size)
            for part, size in zip(parts_of(stages, (0,), (0, 2), (1,)), sizes, strict=True)
        ]
        shares, left = [1] * 3, sequences - sum(sizes)
        while fitting := [place for place in range(3) if sizes[place] <= left]:
            place = min(fitting, key=lambda place: (parts[place].step_s(shares[place] + 1), place))
            shares[place] += 1
            left -= sizes[place]
        assert shares_of(parts, sequences) == (None if left else tuple(shares))


def two_kinds(folder: Path, fast: int, slow: int) -> JobSpec:
    return load_job(job_file(folder, sequences=48, fast=(40, fast), slow=(15, slow)))


@pytest.mark.slow
def test_plans_of_many_devices_are_no_slower_than_alike_ones_and_the_same_each_time(
    tmp_path: Path,
) -> None:
    spec = two_kinds(tmp_path, 5, 13)
    first, again = every_plan(spec), every_plan(load_job(tmp_path / "job.toml"))
    assert first.alike is not None
    assert first.best is not None
    assert first.best.step_s < first.alike.best.step_s
    assert again.best is not None
    assert write_plan(file_of_plan(first.best.plan)) == write_plan(file_of_plan(again.best.plan))
    assert first.best.step_s == again.best.step_s


def test_replicas_that_go_through_two_hosts_alike_may_be_cut_at_the_same_layers(
    tmp_path: Path,
) -> None:
    spec = load_job(job_file(tmp_path, fast=(60, 3), slow=(10, 3)))
    stages = stages_of(spec)
    parts = parts_of(stages, (0, 1), (0, 1, 1))
    assert [part.layers[0] for part in parts] == [3, 2]
    made = list(cut_together(stages, parts, LEVEL_1))  # not at 3: two stages cannot share a layer
    assert [[part.layers[0] for part in each] for each in made] == [[2, 2]]
    crossed = parts_of(stages, (0, 1), (1, 0, 1))
    assert not list(cut_together(stages, crossed, LEVEL_1)), "no layer may stay in one pool"


def test_a_layer_moves_from_one_host_to_another_in_all_replicas_at_once(tmp_path: Path) -> None:
    stages = stages_of(load_job(job_file(tmp_path, fast=(60, 3), slow=(10, 3))))
    parts = parts_of(stages, (0, 1), (0, 1, 1))
    (together,) = cut_together(stages, parts, LEVEL_1)
    moved = list(cut_together(stages, together, LEVEL_1))  # two stages cannot share one layer
    assert [[part.layers[0] for part in each] for each in moved] == [[1, 1]]
    assert [[part.shape for part in each] for each in moved] == [[part.shape for part in parts]]


# ---- drafts as plans -----------------------------------------------------------------------


def test_a_draft_s_plan_file_is_read_as_the_plan_that_was_simulated(tmp_path: Path) -> None:
    spec = three_kinds(tmp_path)
    stages = stages_of(spec)
    best = sorted(all_drafts(stages, 1), key=lambda draft: draft.estimate_s)
    for draft in best[:12]:
        plan, short = timed(spec, stages.pools, draft, float("inf"))
        assert plan is not None
        assert not short
        text = write_plan(file_of_plan(plan.plan))
        case = case_of_plan(parse_plan(text, str(spec.path)), str(spec.path))
        assert case.setup == plan.plan.setup or len(draft.parts) == 1
        read_s = simulate_proved(case.proved, case.costs, steps=3).step_time_s
        assert read_s == pytest.approx(plan.step_s, rel=1e-12)


@pytest.mark.slow
def test_no_simulated_plan_is_faster_than_all_devices_at_work(tmp_path: Path) -> None:
    spec = three_kinds(tmp_path)
    stages, least_s = stages_of(spec), least_step_s(spec, spec.cluster.members())
    for draft in all_drafts(stages, 1)[:40]:
        plan, _ = timed(spec, stages.pools, draft, float("inf"))
        assert plan is not None
        assert plan.step_s > least_s


def gaps_of_the_best(tmp_path: Path, *, members: bool) -> list[float]:
    """What estimates are off by, of the 30 drafts of the least, from plans as simulated."""
    spec = three_kinds(tmp_path)
    stages = stages_of(spec)
    drafts = [draft for draft in all_drafts(stages, 1) if draft.has_members is members]
    best = sorted(drafts, key=lambda draft: draft.estimate_s)[:30]
    gaps = [
        draft.estimate_s / plan.step_s - 1
        for draft in best
        if (plan := timed(spec, stages.pools, draft, float("inf"))[0]) is not None
    ]
    assert len(gaps) == len(best)
    return gaps


@pytest.mark.slow
def test_estimates_are_near_what_is_simulated(tmp_path: Path) -> None:
    gaps = gaps_of_the_best(tmp_path, members=False)
    assert sum(map(abs, gaps)) / len(gaps) < 0.1


@pytest.mark.slow
def test_estimates_of_stages_of_several_members_are_bounds_of_what_is_simulated(
    tmp_path: Path,
) -> None:
    assert all(gap <= 0.0 for gap in gaps_of_the_best(tmp_path, members=True))


def test_both_cut_directions_are_tried_where_hosts_hold_several_devices() -> None:
    spec = job("tiny-llama", "mixed-sites", 16, 16)
    stages = stages_of(spec)
    draft = shared_out(stages, parts_of(stages, (1, 1), (1, 1), (1, 1)), LEVEL_1)
    assert draft is not None
    inside, between = plans_of(spec, stages.pools, draft)
    for plan, same_host in ((inside, True), (between, False)):
        hosts = [{group[0].host for group in groups} for groups in plan.replicas[0].groups]
        assert (len(hosts[0]) == 1) is same_host


# ---- what is found -------------------------------------------------------------------------


def too_many() -> JobSpec:
    """A job on 288 devices of several kinds: four times as many hosts as the preset has."""
    spec = job("tiny-llama", "mixed-sites", 72, 288)
    cluster = spec.cluster.spec
    hosts = tuple(replace(host, count=4 * host.count) for host in cluster.host)
    return replace(spec, cluster=ClusterChoice(replace(cluster, host=hosts), 288))


def test_jobs_of_one_kind_or_of_many_devices_are_left_to_the_other_search() -> None:
    assert not searchable(job("tiny-llama", "cpu-lab", 4, 8))
    assert not searchable(too_many())
    assert searchable(job("tiny-llama", "mixed-sites", 12, 24))


@pytest.mark.slow
def test_on_more_devices_the_planner_says_that_it_tried_identical_replicas_alone() -> None:
    plans = every_plan(too_many())
    words = " ".join(" ".join(every_text(plans, 1)).split())
    assert (
        "others are searched for on up to 256 devices of several kinds, and here are 288" in words
    )


@pytest.fixture(scope="module")
def lopsided(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, EveryPlan]:
    """One device that is as fast as three others, on fast links: alike replicas waste it."""
    folder = tmp_path_factory.mktemp("lopsided")
    path = job_file(folder, sequences=12, fast=(60, 1), slow=(20, 3))
    text = (folder / "cluster.toml").read_text()
    (folder / "cluster.toml").write_text(text.replace("1Gbit/s", "10Gbit/s"))
    return path, every_plan(load_job(path))


def test_replicas_of_unequal_shares_beat_alike_ones(lopsided: tuple[Path, EveryPlan]) -> None:
    plans = lopsided[1]
    assert plans.best is not None
    assert plans.alike is not None
    assert plans.best.step_s < 0.95 * plans.alike.best.step_s
    assert not plans.best.refusals


@pytest.mark.slow
def test_hosts_of_three_two_and_three_devices_share_the_batch_by_speed(tmp_path: Path) -> None:
    """Estimates of such replicas are far too high: each alike plan must be timed all the same."""
    path = job_file(tmp_path, sequences=48, slow=(6, 1), middle=(8, 1), fast=(12, 1))
    text = path.read_text().replace("devices = 3", "devices = 8").replace("= 64", "= 128")
    path.write_text(text.replace("tiny-llama", str(EXAMPLES / "twelve-layers" / "config.json")))
    hosts = (tmp_path / "cluster.toml").read_text().replace("1Gbit/s", "200Mbit/s")
    for name, count in (("slow", 3), ("fast", 2), ("middle", 3)):
        one = f'device = "{name}"\ndevices = 1'
        assert one in hosts
        hosts = hosts.replace(one, f'device = "{name}"\ndevices = {count}')
    (tmp_path / "cluster.toml").write_text(hosts)
    plans = every_plan(load_job(path))
    assert plans.best is not None and plans.alike is not None
    assert not plans.best.refusals
    assert plans.best.step_s < 0.9 * plans.alike.best.step_s
    kinds = {
        (replica.kinds, replica.sequences): len(replica.members)
        for replica in plans.best.plan.replicas
    }
    assert kinds == {(("slow",), 4): 3, (("middle",), 6): 3, (("fast",), 9): 2}


@pytest.mark.slow
def test_twelve_devices_may_be_more_than_eight_replicas(tmp_path: Path) -> None:
    spec = load_job(job_file(tmp_path, sequences=96, slow=(6, 4), middle=(8, 4), fast=(12, 4)))
    alone = [draft for draft in all_drafts(stages_of(spec), 1) if len(draft.parts) == 12]
    assert alone, "each device by itself"
    by_kind = {
        part.shape[0].pool: share
        for part, share in zip(alone[0].parts, alone[0].shares, strict=True)
    }
    assert by_kind[0] < by_kind[1] < by_kind[2]


@pytest.mark.slow
def test_the_best_plan_comes_first_and_simulate_and_verify_take_its_file(
    lopsided: tuple[Path, EveryPlan],
) -> None:
    path, plans = lopsided
    assert plans.best is not None
    plan = path.parent / "plan.json"
    run = CliRunner().invoke(ratrain, ["plan", str(path), "-o", str(plan), "--json"])
    assert run.exit_code == 0
    body = json.loads(run.output)
    first = body["unequal"]["trainable"][0]
    chosen = next(iter(body[key] for key in body if key != "schema"))
    assert {key: chosen[key] for key in first} == first and not chosen["identical_replicas"]
    assert body["tokens_per_s"] == chosen["tokens_per_s"]
    assert chosen["step_time_s"] == plans.best.step_s < body["plans"][0]["step_time_s"]
    assert first["step_time_s"] == plans.best.step_s
    assert first["refused"] == []
    assert first["step_time_s"] > body["unequal"]["least_step_time_s"]
    simulated = verb("simulate", str(plan))
    assert simulated["step_time_s"] == pytest.approx(first["step_time_s"], rel=1e-6)
    assert max(simulated["bound_bytes"].values()) == first["bound_bytes"]
    verb("verify", str(plan))


def verb(*words: str) -> dict[str, Any]:
    run = CliRunner().invoke(ratrain, [*words, "--json"])
    assert run.exit_code == 0, run.output
    return json.loads(run.output)


@pytest.mark.slow
def test_where_the_only_links_are_a_thousand_times_slower_the_plan_is_another(
    tmp_path: Path,
) -> None:
    path = job_file(tmp_path, sequences=12, fast=(60, 1), slow=(20, 3))
    used: list[int] = []
    for link in ("10Gbit/s", "1Mbit/s"):
        cluster_file(tmp_path, fast=(60, 1), slow=(20, 3))
        text = (tmp_path / "cluster.toml").read_text()
        (tmp_path / "cluster.toml").write_text(text.replace("1Gbit/s", link))
        plans = every_plan(load_job(path))
        if plans.best is not None:
            used.append(len(plans.best.plan.devices))
        else:
            assert plans.alike is not None
            used.append(plans.alike.best.plan.layout.devices)
    assert used == [4, 1]


@pytest.mark.slow
def test_a_budget_that_asks_for_recovery_has_plans_that_fit(tmp_path: Path) -> None:
    path = job_file(tmp_path, sequences=8, fast=(40, 1), slow=(20, 2))
    text = path.read_text().replace('name = "ratrain"', 'name = "ratrain"\nmemory_budget = "16MB"')
    path.write_text(text)
    spec = load_job(path)
    plans = every_plan(spec)
    for tried in (plans.unequal.trainable + plans.unequal.others) if plans.unequal else ():
        assert tried.bound_bytes <= 16_000_000


def test_a_job_that_fits_nowhere_says_so_as_before(tmp_path: Path) -> None:
    path = job_file(tmp_path, fast=(40, 1), slow=(20, 1))
    text = path.read_text().replace('name = "ratrain"', 'name = "ratrain"\nmemory_budget = "2MB"')
    path.write_text(text)
    with pytest.raises(Infeasible, match="nothing fits 2 MB"):
        every_plan(load_job(path))


# ---- sequence parallelism and selective recovery --------------------------------------------


def hosts_of_two(folder: Path, *settings: str) -> Path:
    """A job on three kinds of device, two of a kind in each host."""
    path = job_file(folder, sequences=8, fast=(40, 2), middle=(25, 2), slow=(10, 2))
    hosts = (folder / "cluster.toml").read_text()
    hosts = hosts.replace("devices = 1\ncount = 2", "devices = 2\ncount = 1")
    host_link = '\n[links.host]\nlatency = "5us"\nbandwidth = "8GB/s"\nsource = "a test"\n'
    (folder / "cluster.toml").write_text(hosts + host_link)
    text = path.read_text().replace('name = "ratrain"', "\n".join(('name = "ratrain"', *settings)))
    path.write_text(text.replace("= 64", "= 256"))
    return path


def planned_file(path: Path) -> dict[str, Any]:
    """The plan file that `plan` writes, simulated and proved by the other verbs."""
    plan = path.parent / "plan.json"
    verb("plan", str(path), "-o", str(plan))
    verb("simulate", str(plan))
    verb("verify", str(plan))
    return json.loads(plan.read_text())


@pytest.mark.slow
def test_a_job_that_asks_for_sequence_parallelism_gets_unequal_replicas_that_have_it(
    tmp_path: Path,
) -> None:
    path = hosts_of_two(tmp_path, "sequence_parallel = true")
    plan = planned_file(path)
    assert plan["sequence_parallel"] is True
    shares = [r["micro_batches"] * r["stages"][0]["micro_batch"] for r in plan["replicas"]]
    assert len(set(shares)) > 1
    degrees = {stage["tensor"] for replica in plan["replicas"] for stage in replica["stages"]}
    assert 2 in degrees


def in_other_division(stages: Stages, draft: Draft) -> Draft | None:
    return next(MOVES["sequences"].changes(Space(stages, (LEVEL_1,)), draft), None)


def test_drafts_are_tried_with_sequence_parallelism_and_cost_what_their_programs_do(
    tmp_path: Path,
) -> None:
    spec = load_job(hosts_of_two(tmp_path))
    stages = stages_of(spec)
    part = part_of(stages, pipeline_of((Post(0, 2), Post(2, 1))), 1, 2, LEVEL_1)
    other = part_of(stages, pipeline_of((Post(1, 2),)), 1, 2, LEVEL_1)
    assert part is not None and other is not None
    whole = shared_out(stages, (part, other), LEVEL_1)
    assert whole is not None
    divided = in_other_division(stages, whole)
    assert divided is not None and divided.divided
    assert [post.divided for post in divided.parts[0].shape] == [True, False]
    again = in_other_division(stages, divided)
    assert again is not None and again.key == whole.key
    for draft in (whole, divided):
        plan, _ = timed(spec, stages.pools, draft, float("inf"))
        assert plan is not None
        assert plan.plan.sequence_parallel is draft.divided
        assert draft.estimate_s == pytest.approx(plan.step_s, rel=0.1)
    only_whole = replace(spec, schedule=replace(spec.schedule, sequence_parallel=False))
    assert in_other_division(stages_of(only_whole), whole) is None


@pytest.mark.slow
def test_stored_scores_are_let_go_where_a_kind_has_no_memory_for_them(tmp_path: Path) -> None:
    path = job_file(tmp_path, sequences=16, fast=(40, 1), slow=(15, 2))
    text = path.read_text().replace(
        'name = "ratrain"', 'name = "ratrain"\nattention = "stored"\nmemory_budget = "BUDGET"'
    )
    modes: dict[str, set[str]] = {}
    for budget in ("2GB", "60MB"):
        path.write_text(text.replace("BUDGET", budget).replace("= 64", "= 512"))
        plans = every_plan(load_job(path))
        assert plans.unequal is not None
        modes[budget] = {
            mode.value
            for timed_plan in (*plans.unequal.trainable, *plans.unequal.others)
            for replica in timed_plan.plan.replicas
            for mode in replica.recovery
        }
    assert modes["2GB"] == {"none"}
    assert "selective" in modes["60MB"]


# ---- against every plan --------------------------------------------------------------------


@pytest.fixture
def exhaustive(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The benchmark's module, which stands in no package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield import_module("exhaustive")
    sys.modules.pop("exhaustive", None)


@pytest.mark.slow
def test_a_faster_plan_that_cannot_be_trained_is_named_as_such(
    exhaustive: Any, tmp_path: Path
) -> None:
    kinds = tuple(
        exhaustive.Kind(rate, count, count > 1) for rate, count in ((10, 1), (15, 1), (5, 3))
    )
    cluster = exhaustive.Cluster(kinds, "10Gbit/s", layers=5, sequences=6)
    path, fastest = exhaustive.write_job(tmp_path, cluster), tmp_path / "fastest.json"
    words = ["plan", str(path), "--set", "schedule.collective=ring"]
    run = CliRunner().invoke(ratrain, [*words, "--fastest", str(fastest)])
    assert run.exit_code == 0
    assert "Faster, but not trainable yet" in run.output
    assert (
        "cannot run it: members that hold a layer at tensor 1 and 2 cannot reduce it by the "
        "collective ring yet"
    ) in " ".join(run.output.split())
    stages = [stage for replica in load_plan(fastest).replicas for stage in replica.stages]
    assert {member.tensor for stage in stages for member in stage.held_by} == {1, 2}
    verb("simulate", str(fastest))


@pytest.mark.slow
def test_pipelines_cross_between_two_hosts_so_that_reductions_stay_inside_them(
    exhaustive: Any, tmp_path: Path
) -> None:
    kinds = exhaustive.Kind(30, 2, one_host=True), exhaustive.Kind(20, 3, one_host=True)
    cluster = exhaustive.Cluster(kinds, "200Mbit/s", layers=4, sequences=6)
    path = exhaustive.write_job(tmp_path, cluster)
    whole = 'name = "ratrain"\nsequence_parallel = false'
    path.write_text(path.read_text().replace('name = "ratrain"', whole))
    plans = every_plan(load_job(path))
    assert plans.unequal is not None
    replicas = next(
        each.plan.replicas
        for each in plans.unequal.trainable
        if not has_members(each.plan) and not any(replica.joined for replica in each.plan.replicas)
    )
    assert {replica.layout.layers for replica in replicas} == {(2, 2)}
    assert {replica.kinds for replica in replicas} == {("kind-0", "kind-1")}
    assert sorted(replica.tensor for replica in replicas) == [(1, 1), (1, 2)]


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(6))
def test_the_plan_is_within_one_percent_of_every_plan_there_is(seed: int, exhaustive: Any) -> None:
    compared = exhaustive.compare(exhaustive.random_cluster(Random(seed), 4))
    assert compared.loss <= exhaustive.WANTED, compared
