"""Sites that average weights, each with replicas that add up their gradients, as processes."""

from __future__ import annotations

import random
import signal
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import Crew
from launched import (
    cut_short,
    killer,
    loss_bits,
    made,
    meanwhile,
    saved_steps,
    start,
    steps_done,
)
from plain_numbers import plain_logits, plain_rate
from runs_made import VOCAB, Setting, Unlike, beginning, write_job
from test_turns_runs import OUTER, differing, end, loss_values, run, sent_bytes
from torch import Tensor
from torch.nn.functional import cross_entropy
from training import RankResult, train_rank

from ratrain.checkpoint.listing import listed
from ratrain.checkpoint.own import own_kind
from ratrain.checkpoint.reader import open_checkpoint
from ratrain.describe.average_wires import AVERAGE_WIRES
from ratrain.describe.model import ModelSpec
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.plan import load_job
from ratrain.runtime.run.prepare import RunRequest, prepare_run, write_run
from ratrain.runtime.run.reports.report import report_of
from ratrain.runtime.run.reports.settled import settled_text
from ratrain.runtime.run_folder import RunFolder

TURNS = (("e", 0), ("0", 1), ("1", 2), ("2", 0), ("3", 1), ("h", 2))
SETTING = Setting(
    "ratrain", data=4, sites=2, average_every=3, averages="early-start", turns=TURNS, steps=7,
    sharding=0,
)  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("averages", ["early-start", "dreamddp"])
def test_one_replica_a_site_trains_as_replicas_that_average(averages: str, tmp_path: Path) -> None:
    setting = replace(SETTING, data=2, averages=averages)
    sites = run(tmp_path / "sites", setting)
    replicas = run(tmp_path / "replicas", replace(setting, sites=0))
    assert loss_bits(sites) == loss_bits(replicas)
    assert not differing(sites, replicas)


def test_replicas_of_one_site_train_as_without_averages(tmp_path: Path) -> None:
    setting = replace(SETTING, data=2, sites=1, sharding=2)
    one = run(tmp_path / "one", setting)
    none = run(
        tmp_path / "none", replace(setting, sites=0, average_every=None, averages=None, turns=())
    )
    assert loss_bits(one) == loss_bits(none)
    assert not differing(one, none)


@pytest.mark.parametrize(("level", "accumulation"), [(1, "local"), (2, "sharded"), (3, "local")])
def test_states_are_sharded_inside_a_site_without_another_bit(
    level: int, accumulation: str, tmp_path: Path
) -> None:
    whole = run(tmp_path / "whole", SETTING)
    setting = replace(SETTING, sharding=level, accumulation=accumulation)
    sharded = run(tmp_path / "sharded", setting)
    if accumulation == "local":
        assert loss_bits(sharded) == loss_bits(whole)
        assert not differing(sharded, whole)
    published = run(tmp_path / "published", replace(setting, averages="dreamddp"))
    assert loss_bits(published) == loss_bits(sharded)
    assert not differing(published, sharded)


@pytest.mark.parametrize(
    ("level", "train", "wire"),
    [(2, (), None), (0, OUTER, "int4"), (1, OUTER, "bf16"), (1, OUTER, "int8")],
)
def test_a_run_of_sites_goes_on_bit_by_bit_from_the_middle_of_a_period(
    level: int, train: tuple[tuple[str, object], ...], wire: str | None, tmp_path: Path
) -> None:
    setting = replace(SETTING, sharding=level, every=2, keep=9, train=train, average_wire=wire)
    whole = run(tmp_path / "whole", setting)
    assert saved_steps(whole) == [2, 4, 6, 7]
    kinds = set(end(whole).kinds)
    assert {"weights.0of2", "weights.1of2"} <= kinds
    assert ({"outer_weights", "outer_residual.1of2"} <= kinds) == bool(train)
    folder = cut_short(whole, tmp_path / "again", setting, 4)
    start(folder)
    assert loss_bits(folder) == loss_bits(whole)
    assert not differing(folder, whole)


@pytest.mark.parametrize("wire", ["bf16", "int8"])
def test_outer_states_are_the_same_sharded_or_whole(wire: str, tmp_path: Path) -> None:
    setting = replace(SETTING, train=OUTER, average_wire=wire, steps=5)
    whole = run(tmp_path / "whole", setting)
    sharded = run(tmp_path / "sharded", replace(setting, sharding=1))
    assert loss_bits(whole) == loss_bits(sharded)
    assert not differing(whole, sharded)
    assert sent_bytes(sharded) != sent_bytes(whole)


# ---- sites of other layouts ---------------------------------------------------------------------

ALIKE = replace(SETTING, unlike=(Unlike((4,), 4), Unlike((4,), 4)), site_devices=(1, 1))
TWO_AND_THREE = replace(
    SETTING, unlike=(Unlike((2, 2), 4), Unlike((1, 2, 1), 4)), site_devices=(2, 3)
)
ONE_AND_TWO = replace(
    SETTING, unlike=(Unlike((4,), 4), Unlike((4,), 2, count=2)), site_devices=(1, 2)
)
TWO_AND_THREE_REPLICAS = replace(
    SETTING, unlike=(Unlike((4,), 3, count=2), Unlike((4,), 2, count=3)), site_devices=(2, 3),
    sequences=12,
)  # fmt: skip
UNEQUAL_SHARES = replace(
    SETTING, unlike=(Unlike((4,), 2), Unlike((2, 2), 3, count=2)), site_devices=(1, 4)
)


def close(a: RunFolder, b: RunFolder, rel: float = 1e-6) -> None:
    """Losses that agree but for the order of sums, or for other roundings to integers."""
    assert loss_values(a) == pytest.approx(loss_values(b), rel=rel)


@pytest.mark.parametrize("averages", ["early-start", "dreamddp"])
def test_sites_cut_into_other_stages_train_bit_by_bit_as_sites_of_one_layout(
    averages: str, tmp_path: Path
) -> None:
    alike = run(tmp_path / "alike", replace(ALIKE, averages=averages))
    unlike = run(tmp_path / "unlike", replace(TWO_AND_THREE, averages=averages))
    assert loss_bits(alike) == loss_bits(unlike)
    assert not differing(alike, unlike)


@pytest.mark.parametrize("level", [0, 1])
def test_a_site_of_one_replica_averages_with_one_of_two_that_shard_states_or_not(
    level: int, tmp_path: Path
) -> None:
    alike = run(tmp_path / "alike", ALIKE)
    unlike = run(tmp_path / "unlike", replace(ONE_AND_TWO, sharding=level))
    close(alike, unlike)
    assert loss_bits(unlike) != loss_bits(alike), "two gradients are added up in another order"


def test_owners_at_sites_of_two_and_three_replicas_average_ranges_across_each_others_borders(
    tmp_path: Path,
) -> None:
    wide = replace(ALIKE, unlike=(Unlike((4,), 6), Unlike((4,), 6)), sequences=12)
    close(
        run(tmp_path / "alike", wide),
        run(tmp_path / "unlike", replace(TWO_AND_THREE_REPLICAS, sharding=2)),
    )


@pytest.mark.parametrize(
    ("train", "wire"),
    [((), None), (OUTER, None), (OUTER, "bf16"), (OUTER, "int8"), (OUTER, "int4")],
)
def test_sites_of_other_layouts_go_on_bit_by_bit_and_from_each_others_checkpoints(
    train: tuple[tuple[str, object], ...], wire: str | None, tmp_path: Path
) -> None:
    setting = replace(ONE_AND_TWO, sharding=1, every=2, keep=9, train=train, average_wire=wire)
    whole = run(tmp_path / "whole", setting)
    assert saved_steps(whole) == [2, 4, 6, 7]
    again = cut_short(whole, tmp_path / "again", setting, 4)
    start(again)
    assert loss_bits(again) == loss_bits(whole)
    assert not differing(again, whole)
    alike = replace(ALIKE, every=2, keep=9, train=train, average_wire=wire)
    other = cut_short(whole, tmp_path / "other", alike, 4)
    start(other)
    close(other, whole)


def test_a_site_counts_in_a_mean_as_many_times_as_it_takes_sequences(tmp_path: Path) -> None:
    """After one step of plain SGD from the same weights, averaged by the next step, the model is
    that of one step with the mean gradient of all sequences, whoever computed them."""
    plain = replace(
        UNEQUAL_SHARES, average_every=1, turns=(), steps=1,
        train=(("optimizer", "sgd"), ("weight_decay", 0.0)),
    )  # fmt: skip
    apart = end(run(tmp_path / "apart", plain))
    one = replace(
        plain, sites=0, site_devices=(), unlike=(), average_every=None, averages=None, data=1,
    )  # fmt: skip
    together = end(run(tmp_path / "together", one))
    for unit, size in together.manifest.meta.units.items():
        mean, whole = (each.read_range(unit, "weights", 0, size) for each in (apart, together))
        assert abs(mean - whole).max() < 2e-6, unit


# ---- sites of other tensor degrees, and of members -----------------------------------------------

TWO_PARTS = replace(
    SETTING, unlike=(Unlike((4,), 4, tensor=(2,)), Unlike((4,), 4)), site_devices=(2, 1)
)
PARTS_AND_SHARDS = replace(
    TWO_PARTS, unlike=(Unlike((4,), 4, tensor=(2,)), Unlike((4,), 2, count=2)),
    site_devices=(2, 2),
)  # fmt: skip
PARTS_OF_ONE_STAGE = replace(
    TWO_PARTS, unlike=(Unlike((2, 2), 4, tensor=(1, 2)), Unlike((4,), 4)), site_devices=(3, 1)
)
MEMBERS = replace(
    TWO_PARTS, unlike=(Unlike((2, 2), 4), Unlike((4,), 4)), site_devices=(3, 1),
    serving=(("0, 2", "1, 3"), ("all",)),
)  # fmt: skip
DIVIDED = [
    (TWO_PARTS, 0), (PARTS_AND_SHARDS, 0), (PARTS_AND_SHARDS, 2), (PARTS_OF_ONE_STAGE, 0),
    (MEMBERS, 0), (MEMBERS, 1),
]  # fmt: skip


@pytest.mark.parametrize(("setting", "level"), DIVIDED)
def test_sites_of_other_tensor_degrees_or_of_members_train_as_sites_of_one_layout(
    setting: Setting, level: int, tmp_path: Path
) -> None:
    unlike = run(tmp_path / "unlike", replace(setting, sharding=level))
    close(run(tmp_path / "alike", ALIKE), unlike)
    published = run(tmp_path / "published", replace(setting, sharding=level, averages="dreamddp"))
    assert loss_bits(published) == loss_bits(unlike)
    assert not differing(published, unlike)


@pytest.mark.parametrize(("setting", "level"), DIVIDED)
def test_the_mean_of_sites_that_differ_is_that_of_one_process_bit_by_bit(
    setting: Setting, level: int, tmp_path: Path
) -> None:
    """All units are averaged in each step, and the last step's rate is zero: it ends with the mean
    of what both sites had after the step before."""
    setting = replace(
        setting, sharding=level, average_every=1, turns=(), every=1, keep=9, steps=3,
        train=(("final_rate", 0.0),),
    )  # fmt: skip
    saved = listed(run(tmp_path, setting).checkpoints)
    before, after = (open_checkpoint(checkpoint.path) for checkpoint in saved[-2:])
    kinds = [own_kind("weights", place, 2) for place in range(2)]
    for unit, size in after.manifest.meta.units.items():
        one, other = (before.read_range(unit, kind, 0, size) for kind in kinds)
        if not unit.startswith("e"):  # of the table the text has some rows alone
            assert one.tobytes() != other.tobytes(), "each site has taken a step of its own"
        mean = (one + other) / 2
        for kind in kinds:
            assert after.read_range(unit, kind, 0, size).tobytes() == mean.tobytes(), (unit, kind)


@pytest.mark.parametrize(
    ("setting", "level", "train", "wire"),
    [(PARTS_AND_SHARDS, 1, (), None), (TWO_PARTS, 0, OUTER, "int8"),
     (PARTS_AND_SHARDS, 2, OUTER, "bf16")],
)  # fmt: skip
def test_sites_of_other_tensor_degrees_go_on_bit_by_bit_and_from_each_others_checkpoints(
    setting: Setting, level: int, train: tuple[tuple[str, object], ...], wire: str | None,
    tmp_path: Path,
) -> None:  # fmt: skip
    keys: dict[str, Any] = {"every": 2, "keep": 9, "train": train, "average_wire": wire}
    setting = replace(setting, sharding=level, **keys)
    whole = run(tmp_path / "whole", setting)
    assert saved_steps(whole) == [2, 4, 6, 7]
    again = cut_short(whole, tmp_path / "again", setting, 4)
    start(again)
    assert loss_bits(again) == loss_bits(whole)
    assert not differing(again, whole)
    other = cut_short(whole, tmp_path / "other", replace(ALIKE, **keys), 4)
    start(other)
    rel = 1e-4 if wire == "int8" else 1e-6
    close(other, whole, rel)
    back = cut_short(run(tmp_path / "alike", replace(ALIKE, **keys)), tmp_path / "b", setting, 4)
    start(back)
    close(back, whole, rel)


# ---- the end of a run ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting",
    [
        replace(SETTING, sharding=2, steps=5),
        replace(ONE_AND_TWO, sharding=1, steps=5),
        replace(TWO_AND_THREE, steps=5, train=OUTER, average_wire="int4"),
        replace(SETTING, data=2, sites=0, steps=5),
        replace(PARTS_AND_SHARDS, sharding=1, steps=5),
        replace(PARTS_AND_SHARDS, sharding=0, steps=5, train=OUTER, average_wire="int8"),
    ],
    ids=["alike", "unlike", "int4", "replicas", "degrees", "degrees in int8"],
)
def test_a_run_ends_with_one_model_and_its_report_says_so(setting: Setting, tmp_path: Path) -> None:
    setting = replace(setting, every=2, keep=9)
    folder = run(tmp_path / "run", setting)
    places = range(2)
    last = end(folder)
    middle = open_checkpoint(listed(folder.checkpoints)[0].path)
    for unit, size in last.manifest.meta.units.items():
        kinds = [own_kind("weights", place, 2) for place in places]
        one, other = (last.read_range(unit, kind, 0, size).tobytes() for kind in kinds)
        assert one == other, unit
        if unit != "e.t1of2":  # rows of a table that no text has asked for
            assert len({middle.read_range(unit, kind, 0, size).tobytes() for kind in kinds}) == 2
    report = report_of(folder)["settled"]
    assert report["unlike"] == 0 and report["ranges"] >= len(last.manifest.meta.units)
    assert report["averaged"] and report["took_s"] > 0
    assert "difference 0" in " ".join(" ".join(settled_text(report)).split())
    if not setting.sites:
        assert report["between_sites"] is None
        return
    sent = report["between_sites"]
    beside = 40_000 if any(each.tensor for each in setting.unlike) else 20_000
    for of in ("step", "last"):  # beside it: frames, padding, words of control, records of saves
        planned, counted = sent[f"planned_{of}_bytes"], sent[f"{of}_bytes"]
        assert planned < counted < planned * 1.1 + beside, sent


def test_local_sgd_ends_alike_without_a_last_average(tmp_path: Path) -> None:
    folder = run(tmp_path, replace(SETTING, data=2, sites=0, turns=(), averages=None, steps=5))
    settled = report_of(folder)["settled"]
    assert (settled["unlike"], settled["averaged"], settled["took_s"]) == (0, False, 0.0)
    assert settled["ranges"] == len(end(folder).manifest.meta.units)
    words = " ".join(" ".join(settled_text(settled)).split())
    assert "as the last step's averages left them" in words


def test_a_run_that_is_asked_to_stop_saves_one_model(tmp_path: Path) -> None:
    folder = made(tmp_path, replace(SETTING, data=2, steps=400))
    disturb = killer(folder, 1, lambda: steps_done(folder) >= 3, signal.SIGTERM)
    with meanwhile(disturb):
        start(folder)
    (last,) = listed(folder.checkpoints)
    assert 3 < last.step < 400
    saved = open_checkpoint(last.path)
    for unit, size in saved.manifest.meta.units.items():
        kinds = [own_kind("weights", place, 2) for place in range(2)]
        assert len({saved.read_range(unit, kind, 0, size).tobytes() for kind in kinds}) == 1


def drawn_averages(seed: int) -> Setting:
    """Averages of replicas, or of sites that shard states or not, over four ranks at most."""
    dice = random.Random(seed)
    pipeline, data, sites, sharding = dice.choice(
        [(1, 3, 0, 0), (2, 2, 0, 0), (1, 4, 2, 0), (1, 4, 2, 1), (1, 4, 2, 2), (1, 4, 2, 3)]
    )
    rates = dice.choice([(1.0, 0.0), (0.7, 0.9), (0.4, 0.0)])
    return replace(
        SETTING, pipeline=pipeline, data=data, sites=sites, sharding=sharding, turns=(), steps=6,
        average_wire=dice.choice([*AVERAGE_WIRES]), dtype=dice.choice(["fp32", "bf16"]),
        sequences=12,
        train=tuple(zip(("outer_learning_rate", "outer_momentum"), rates, strict=True)),
        model=(("tie_word_embeddings", dice.random() < 0.5 and not sites),),
    )  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(12))
def test_all_sites_end_a_period_with_the_same_weights(
    crew: Crew, seed: int, tmp_path: Path
) -> None:
    """What an outer step leaves, which each replica or site then trains from, is the same bit by
    bit wherever a part is held; and so are both copies of a tied matrix."""
    setting = drawn_averages(seed)
    ranks = in_crew(crew, setting, tmp_path)
    held: dict[tuple[str, int], set[bytes]] = defaultdict(set)
    for rank in ranks:
        for unit, (begin, values) in rank.agreed.items():
            held[unit, begin].add(values.tobytes())
    assert {unit for unit, _ in held} == {unit for rank in ranks for unit in rank.parts}
    assert all(len(alike) == 1 for alike in held.values())
    if dict(setting.model)["tie_word_embeddings"]:
        matrix = 4 * VOCAB * 32
        assert len({next(iter(held[unit, 0]))[:matrix] for unit in ("e", "h")}) == 1


@pytest.mark.parametrize(
    ("sites", "sharding", "dtype"), [(2, 2, "bf16"), (2, 3, "fp32"), (2, 0, "fp32"), (0, 0, "fp32")]
)
def test_validation_is_of_the_mean_model_and_leaves_no_bit_of_training_changed(
    crew: Crew, sites: int, sharding: int, dtype: str, tmp_path: Path
) -> None:
    setting = replace(SETTING, sites=sites, sharding=sharding, dtype=dtype, steps=4)
    plain = in_crew(crew, setting, tmp_path / "plain")
    validated = in_crew(crew, replace(setting, validate_every=2), tmp_path / "validated")
    assert validated[0].losses == plain[0].losses
    assert len({tuple(rank.validated) for rank in validated}) == 1
    (_, loss, tokens), *_ = validated[0].validated
    assert float.fromhex(loss) > 0 and tokens == setting.held_out * 16
    for rank, other in zip(validated, plain, strict=True):
        assert {k: v.tobytes() for k, v in rank.views.items()} == {
            k: v.tobytes() for k, v in other.views.items()
        }


def in_crew(crew: Crew, setting: Setting, folder: Path) -> list[RankResult]:
    job = write_job(folder, replace(setting, files=("none.txt",)))
    write_run(prepare_run(RunRequest(job, threads=1, calibrate=False)), RunFolder(folder / "run"))
    return crew.ask(setting.world_size, train_rank, setting, folder, None)


# ---- beside plain torch -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(4) as made:
        yield made


@pytest.mark.parametrize("level", [0, 2])
def test_two_sites_of_two_replicas_train_as_plain_torch_does(
    crew: Crew, level: int, tmp_path: Path
) -> None:
    """In each site the mean gradient of its half of the batch; a unit in its turn goes on from the
    mean of both sites' weights, by the gradient at its own."""
    setting = replace(SETTING, sharding=level, steps=8)
    ranks = in_crew(crew, setting, tmp_path / "job")
    losses = [float.fromhex(loss) for loss in ranks[0].losses]
    assert losses == pytest.approx(torch_losses(setting, tmp_path / "job" / "job.toml"), rel=2e-5)
    assert all(a != b for a, b in pairwise(losses))


def torch_losses(setting: Setting, path: Path) -> list[float]:
    job = load_job(path)
    spec, train = job.model.spec, job.train
    turn, losses = dict(setting.turns), list[float]()
    sites = [leaves_of(spec) for _ in range(2)]
    optimizers = [
        torch.optim.AdamW(
            [
                {"params": [p for p in leaves.values() if p.dim() > 1]},
                {"params": [p for p in leaves.values() if p.dim() == 1], "weight_decay": 0.0},
            ],
            betas=(train.keys.beta1, train.keys.beta2),
            eps=train.keys.epsilon,
            weight_decay=train.weight_decay,
        )
        for leaves in sites
    ]
    half = setting.sequences // 2
    for step in range(setting.steps):
        of_sites: list[float] = []
        for number, leaves in enumerate(sites):
            tokens, targets = map(torch.from_numpy, setting.samples(step, number * half, half))
            logits = plain_logits(spec, leaves, tokens)
            loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
            optimizers[number].zero_grad()
            loss.backward()
            of_sites.append(float(loss.detach()))
        losses.append(sum(of_sites) / 2)
        with torch.no_grad():
            for name in sites[0]:
                if turn[name.partition(".")[0]] == step % 3:
                    mean = (sites[0][name] + sites[1][name]) / 2
                    for leaves in sites:
                        leaves[name].copy_(mean)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = plain_rate(train, step)
            optimizer.step()
    return losses


def leaves_of(spec: ModelSpec) -> dict[str, Tensor]:
    leaves: dict[str, Tensor] = {}
    for unit in unit_names(spec):
        layout = unit_layout(spec, unit)
        flat = beginning(spec, unit, "weights", 0, layout.size)
        for parameter in layout.parameters:
            values = flat[parameter.offset : parameter.end].reshape(parameter.shape)
            leaves[f"{unit}.{parameter.name}"] = values.clone().requires_grad_()
    return leaves
