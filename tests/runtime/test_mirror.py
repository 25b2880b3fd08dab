"""Mirrored states: whichever rank is lost, and at whichever moment of a step, the others hold a
whole version of everything, of the very same bits as an undisturbed run has made."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from cut_short import Cut, States, agreed, ops_of, prepared, program_of, read_whole, run_cut
from runs_made import Setting

from ratrain.errors import SpecError
from ratrain.program.actions import Action
from ratrain.program.kind import Kind, Lane
from ratrain.program.verify import Rule, verify

STEPS, STEP = 3, 1
BASE = Setting(data=3, sequences=6, steps=STEPS, mirror=True, sharding=1)
SETTINGS = {
    "optimizer": BASE,
    "gradients": replace(BASE, sharding=2, accumulation="sharded", dtype="bf16"),
    "weights": replace(BASE, sharding=3, clip_norm=0.1),
    "two replicas": replace(BASE, data=2, sequences=4, sharding=2, clip_norm=0.1),
    "pipelines": replace(BASE, data=2, pipeline=2, sequences=8, sharding=1),
    "nothing sharded": replace(BASE, data=2, pipeline=2, sequences=8, sharding=0),
    "tied": replace(BASE, clip_norm=0.1, model=(("tie_word_embeddings", True),)),
}
AFTER = {name: replace(s, data=s.data - 1, sharding=0) for name, s in SETTINGS.items()}
KINDS = {"weights": "weights", "m": "moment1", "v": "moment2"}


def left(setting: Setting) -> Setting:
    """As many ranks as survive, with any plan."""
    ranks = setting.world_size - 1
    return Setting(
        data=ranks,
        sequences=ranks,
        steps=STEPS,
        sharding=0,
        model=setting.model,
        dtype=setting.dtype,
    )


def assert_whole(name: str, cut: Cut, reference: States) -> None:
    setting = SETTINGS[name]
    ends, _ = run_cut(setting, cut)
    live, kept = agreed(left(setting), ends)
    assert live is not None, cut
    committed = max(end.commits for end in ends)
    assert committed <= live.step <= committed + 1, cut  # what anybody was told is not undone
    assert live.beside["updates"] == live.step
    read = read_whole(live, kept, KINDS)
    wanted = {key: whole for key, whole in reference.items() if key[0] == live.step}
    assert read.keys() == wanted.keys()
    for key, values in read.items():
        assert torch.equal(values, wanted[key]), (cut, key)


def cuts(name: str) -> Iterator[Cut]:
    """Every moment of a step, on every rank."""
    for rank in range(SETTINGS[name].world_size):
        for op in ops_of(SETTINGS[name], rank):
            yield from (Cut(rank, STEP, op, behind) for behind in (False, True))


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_a_rank_lost_at_any_moment_leaves_a_whole_version(name: str) -> None:
    reference = run_cut(SETTINGS[name], None)[1]
    for cut in random.Random(name).sample(list(cuts(name)), 10):
        assert_whole(name, cut, reference)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_ranks_that_cannot_know_whether_all_commit_find_out_together(name: str) -> None:
    reference = run_cut(SETTINGS[name], None)[1]
    (commit,) = ops_of(SETTINGS[name], 0, Kind.Commit)
    for cut in (
        Cut(0, STEP, commit, half=True),
        Cut(0, STEP, commit, behind=True),
        Cut(0, STEP, commit),
        Cut(SETTINGS[name].world_size - 1, STEP, commit, behind=True),
    ):
        assert_whole(name, cut, reference)


# ---- the proof ---------------------------------------------------------------------------------


def without(lane: Lane, kind: Kind) -> list[str]:
    """What the verifier finds in a mirrored program that lacks one op of a kind."""
    program = program_of(BASE)
    (gone, *_) = [action for action in program.lane(0, lane) if action.kind is kind]

    def others(_rank: int, _lane: Lane, actions: Iterable[Action]) -> Iterator[Action]:
        return (action for action in actions if action != gone)

    return [finding.rule for finding in verify(program.edit("", lane, by=others)).findings]


def test_a_unit_that_is_not_mirrored_is_found() -> None:
    assert Rule.INCOMPLETE_SYNC in without(Lane.UPDATE, Kind.MirrorUpdate)


def test_a_gradient_that_no_buddy_has_is_found() -> None:
    assert without(Lane.REDUCE, Kind.MirrorGradient)


def test_an_update_ahead_of_the_commit_is_found() -> None:
    assert Rule.INCOMPLETE_SYNC in without(Lane.UPDATE, Kind.Commit)

    def late(_rank: int, _lane: Lane, actions: Iterable[Action]) -> list[Action]:
        first, second, *others = actions
        return [second, first, *others]

    program = program_of(BASE).edit("", Lane.UPDATE, by=late)
    findings = [f for f in verify(program).findings if f.rule is Rule.INCOMPLETE_SYNC]
    assert ["is updated before all ranks commit" in finding.message for finding in findings] == [
        True
    ]


def test_the_host_holds_what_a_buddy_owns_and_its_gradient() -> None:
    verdict, program = prepared(BASE).verdict, program_of(BASE)
    units = [unit for member in program.setup.members for unit in member.units]
    owned = [(-(-u.mirror_bytes // 3), -(-u.gradient_bytes // 3)) for u in units]
    assert all(u.mirror_bytes == 3 * u.gradient_bytes for u in units)  # of 4 bytes a parameter
    (bound,) = verdict.lower_bounds
    assert bound.total_bytes == sum(map(sum, owned))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"average_every": 2, "sharding": 0}, "no gradient in common"),
        ({"dtype": "fp16", "overflow": "unit"}, "skip updates by themselves"),
        ({"dtype": "bf16", "error_feedback": True, "gradient_wire": "bf16"}, "residuals"),
        ({"optimizer_tier": "host"}, "mirrored optimizer states are on the device"),
    ],
)
def test_what_cannot_be_mirrored_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        prepared(replace(BASE, **change))
