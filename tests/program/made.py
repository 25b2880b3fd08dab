"""Small setups and programs that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from ratrain.program.program import Program
from ratrain.program.replicas import Recovery, Replica, Unit, stage
from ratrain.program.setup import Accumulation, Setup
from ratrain.program.skeletons import SKELETONS
from ratrain.program.strategies import Choices, Strategy, apply_strategy, strategy

LAYER = Unit("", 100, 200, 1200, 7, 50)


def layers_of(cut: tuple[int, ...], *, ends: bool = False) -> list[tuple[Unit, ...]]:
    """Units of each stage: `cut` layers each, and with `ends` an embedding and a head."""
    stages: list[list[Unit]] = []
    number = 0
    for count in cut:
        stages.append([replace(LAYER, name=str(number + i)) for i in range(count)])
        number += count
    if ends:
        stages[0].insert(0, Unit("e", 300, 600, 3600, 0, 0, recoverable=False))
        stages[-1].append(Unit("h", 300, 600, 3600, 7, 20, recoverable=False, head=True))
    return [tuple(units) for units in stages]


def replica(
    cut: tuple[int, ...], micro_batches: int, count: int = 1, ranks: int = 0, ends: bool = False
) -> Replica:
    """A replica with one stage for each number of `cut`, going round the ranks."""
    ranks = ranks or len(cut)
    stages = tuple(
        stage(number % ranks, units, output_bytes=7)
        for number, units in enumerate(layers_of(cut, ends=ends))
    )
    return Replica(stages, micro_batches, count)


def small(
    name: str,
    cut: tuple[int, ...] = (2, 2),
    micro_batches: int = 4,
    *,
    clip: bool = False,
    save: bool = False,
    tie: bool = False,
    optimizer_tier: str = "",
) -> Program:
    """The program of a named strategy on a small pipeline."""
    ranks = 2 if name == "interleaved" else len(cut)
    setup = Setup((replica(cut, micro_batches, 2, ranks, ends=True),))
    choices = Choices(clip=clip, save=save, tie=tie, optimizer_tier=optimizer_tier)
    return apply_strategy(strategy(name), setup, choices)


def named_skeletons() -> list[str]:
    """Without orders out of files, which other tests of this process may have declared."""
    return [name for name, skeleton in SKELETONS.items() if skeleton.fixed is None]


@dataclass(frozen=True)
class Case:
    """A random program and what it was made from, so that a failure can be read."""

    strategy: Strategy
    setup: Setup
    choices: Choices

    @property
    def program(self) -> Program:
        return apply_strategy(self.strategy, self.setup, self.choices)


@st.composite
def cases(
    draw: st.DrawFn,
    max_micro_batches: int = 6,
    *,
    tied: bool = False,
    skeletons: Sequence[str] = (),
) -> Case:
    """Any layout, skeleton (of some) and combination of passes; or any whose ends are tied."""
    skeleton = draw(st.sampled_from(sorted(skeletons or named_skeletons())))
    ranks = draw(st.integers(1, 4))
    chunks = draw(st.integers(1, 3)) if skeleton == "interleaved" else 1
    cut = tuple(draw(st.lists(st.integers(1, 3), min_size=ranks * chunks, max_size=ranks * chunks)))
    ends = tied or draw(st.booleans())
    sharding = draw(st.integers(0, 3))
    sharded = sharding >= 2 and not tied and draw(st.booleans())

    def count() -> int:
        if skeleton == "interleaved":
            return ranks * draw(st.integers(1, max(1, max_micro_batches // ranks)))
        return draw(st.integers(1, max_micro_batches))

    replicas = [replica(cut, count(), draw(st.integers(1, 3)), ranks, ends)]
    if draw(st.booleans()):  # a second, unequal replica, cut into the same units
        other = cut
        if skeleton != "interleaved" and sharding < 3:
            total, parts = sum(cut), draw(st.integers(1, min(4, sum(cut))))
            other = tuple(total // parts + (n < total % parts) for n in range(parts))
        per_use = sharded or sharding == 3
        micro_batches = replicas[0].micro_batches if per_use else count()
        replicas.append(
            replica(other, micro_batches, 1, ranks if other == cut else len(other), ends)
        )
    setup = Setup(
        tuple(replicas),
        recovery_buffer=draw(st.integers(1, 3)),
    )
    tensor = draw(st.sampled_from([1, 1, 2]))
    setup = setup.with_members(lambda member, _: replace(member, tensor=tensor))
    layerwise = draw(st.booleans())
    strategy = Strategy(
        "random",
        draw(st.sampled_from(list(Recovery))),
        sharding,
        layerwise,
        prefetch=layerwise and draw(st.booleans()),
        skeleton=skeleton,
        recovers_heads=draw(st.booleans()),
    )
    choices = Choices(
        exempt_last=draw(st.booleans()),
        accumulation=Accumulation.SHARDED if sharded else Accumulation.LOCAL,
        bucket_bytes=draw(st.sampled_from([None, 64])) if sharded else None,
        clip=draw(st.booleans()),
        save=draw(st.booleans()),
        tie=tied or (ends and not sharded and draw(st.booleans())),
        error_feedback=draw(st.sampled_from([0, 0, 1, 2])),
        optimizer_tier=draw(st.sampled_from(["", "", "host", "disk"])),
    )
    return Case(strategy, setup, choices)
