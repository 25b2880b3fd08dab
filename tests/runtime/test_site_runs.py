"""Sites that average weights, each with replicas that add up their gradients, as processes."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from crew import Crew
from launched import cut_short, loss_bits, saved_steps, start
from plain_numbers import plain_logits, plain_rate
from runs_made import VOCAB, Setting, beginning, write_job
from test_turns_runs import OUTER, differing, end, run, sent_bytes
from torch import Tensor
from torch.nn.functional import cross_entropy
from training import RankResult, train_rank

from ratrain.describe.average_wires import AVERAGE_WIRES
from ratrain.describe.model import ModelSpec
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.plan import load_job
from ratrain.runtime.run.prepare import RunRequest, prepare_run, write_run
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
