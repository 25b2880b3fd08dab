"""The first and the last micro-batches of a step go through a stage layer by layer."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from made import replica

from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.replicas import Recovery, Replica
from ratrain.program.setup import Accumulation, Setup
from ratrain.program.skeletons import TOGETHER, exists, layer_major_name
from ratrain.program.strategies import Choices, Strategy, apply_strategy
from ratrain.program.verify import verify

Op = tuple[Kind, int, int]
"""A kind, a unit and a micro-batch."""


def ordered(together: int, *replicas: Replica) -> Program:
    assert exists(layer_major_name(together))
    strategy = Strategy("any", Recovery.NONE, 2, True, True, layer_major_name(together))
    return apply_strategy(strategy, Setup(replicas), Choices())


def computed(program: Program, rank: int = 0) -> list[Op]:
    """The forwards and backwards of a rank's only stage."""
    lane = program.lanes[rank, Lane.COMPUTE]
    return [(op.kind, op.unit, op.micro_batch) for op in lane if op.kind in (Kind.F, Kind.B)]


def test_two_together_compute_each_layer_twice_at_the_ends_and_alternate_between() -> None:
    ops = computed(ordered(2, replica((2,), 4, count=2)))
    words = " ".join(f"{kind.name}{unit}.{micro_batch}" for kind, unit, micro_batch in ops)
    assert words == (
        "F0.0 F0.1 F1.0 F1.1 B1.0 B0.0 F0.2 F1.2 B1.1 B0.1 F0.3 F1.3 B1.2 B1.3 B0.2 B0.3"
    )


def test_as_many_together_as_there_are_compute_the_whole_step_layer_by_layer() -> None:
    ops = computed(ordered(4, replica((3,), 4, count=2)))
    forward = [(Kind.F, unit, m) for unit in range(3) for m in range(4)]
    backward = [(Kind.B, unit, m) for unit in reversed(range(3)) for m in range(4)]
    assert ops == forward + backward


@pytest.mark.parametrize("together", [*TOGETHER, 3, 6, 100])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 5, 8])
def test_every_layer_takes_the_ends_together_and_no_gradient_s_order_changes(
    together: int, micro_batches: int
) -> None:
    """A run is what a layer computes before another layer does."""
    ops = computed(ordered(together, replica((3,), micro_batches, count=2)))
    count = min(together, micro_batches)
    for unit in range(3):
        for kind, ends in ((Kind.F, range(count)), (Kind.B, range(micro_batches)[-count:])):
            at = [n for n, op in enumerate(ops) if op[:2] == (kind, unit)]
            assert [ops[n][2] for n in at] == list(range(micro_batches)), "not in ascending order"
            run = [n for n in at if ops[n][2] in ends]
            assert all(after - before == 1 for before, after in pairwise(run))


def test_replicas_of_unequal_counts_take_their_own_last_micro_batches_together() -> None:
    program = ordered(2, replica((2,), 3), replica((2,), 6))
    assert verify(program).sound
    assert computed(program, 0)[-4:] == [
        (Kind.B, 1, 1),
        (Kind.B, 1, 2),
        (Kind.B, 0, 1),
        (Kind.B, 0, 2),
    ]
    assert computed(program, 1)[-4:] == [
        (Kind.B, 1, 4),
        (Kind.B, 1, 5),
        (Kind.B, 0, 4),
        (Kind.B, 0, 5),
    ]


def test_random_pipelines_and_passes_are_proved_and_hold_what_the_order_declares() -> None:
    dice = random.Random(15)
    for _ in range(150):
        program = drawn(dice)
        verdict = verify(program)
        assert verdict.sound, [finding.message for finding in verdict.findings[:2]]


@pytest.mark.parametrize("number", ["1", "0", "03", "", "2.5"])
def test_fewer_than_two_together_is_no_order(number: str) -> None:
    assert not exists(f"layer-major-{number}")


def drawn(dice: random.Random) -> Program:
    """Any number of replicas, stages, layers and micro-batches with any of the passes."""
    together = dice.randint(2, 12)
    assert exists(layer_major_name(together))
    cut = tuple(dice.randint(1, 3) for _ in range(dice.randint(1, 3)))
    count = dice.randint(1, 9)
    replicas = (replica(cut, count, dice.randint(1, 3), ends=True),)
    layerwise = dice.random() < 0.8
    strategy = Strategy(
        "any",
        dice.choice(list(Recovery)),
        dice.choice([0, 1, 2, 2, 3]),
        layerwise,
        prefetch=layerwise and dice.random() < 0.8,
        skeleton=layer_major_name(together),
    )
    sharded = strategy.sharding >= 2 and dice.random() < 0.4
    if strategy.sharding < 3 and not sharded and dice.random() < 0.5:
        replicas += (replica(cut, dice.randint(1, 9), ends=True),)
    choices = Choices(
        accumulation=Accumulation.SHARDED if sharded else Accumulation.LOCAL,
        clip=dice.random() < 0.3,
        save=dice.random() < 0.3,
    )
    setup = Setup(replicas, recovery_buffer=dice.randint(1, 3))
    return apply_strategy(strategy, setup, choices)
