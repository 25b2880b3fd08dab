"""Pass about partial synchronisation: replicas that meet once in several steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from ratrain.program.actions import NONE, Action
from ratrain.program.columns import STAGE, STEP, UNIT, Rows
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.setup import Averages
from ratrain.program.units import Bools


def average_weights(
    program: Program,
    steps: int,
    averages: Averages,
    turns: Mapping[str, int],
    *,
    outer: bool = False,
    wire: str = "",
) -> Program:
    """Parameter averaging: replicas train alone, and average each unit's weights once in `steps`
    steps, which the program spells out.

    Takes every reduction of gradients away but those inside a site, where replicas stand at sites:
    there sharding stays too, and the owner of a part averages it with the owners elsewhere, who may
    be others of each of its elements: a site of one replica has all of its states, beside one of
    several that shard them. It changes what training means, and says so by name. Copies of a tied
    matrix still add up their gradients in every step, each replica's alone.

    `local-sgd` (Stich 2019, arXiv 1805.09767): all units after the last step's updates, in their
    order, with the optimizer's moments, so that after a period all replicas are alike. Safe because
    an average reads updated weights, and the next step's forward reads the average.

    `dreamddp` (Tang et al. 2025, arXiv 2502.11058): a unit in the step that `turns` gives it,
    after its last backward there and ahead of its update, which takes the replica's own gradient
    at the weights before. Moments are never averaged, so replicas are never all alike. The
    transfer hides behind the backwards of the units below. Safe because it waits for all readers
    of the view that it overwrites.

    `early-start`: the same weights bit by bit. A copy is made as the step begins, its mean is on
    its way during the whole step, and the update begins with it. Costs the memory of one step's
    copies. Safe because nothing writes the weights between the copy and the update. With `outer`
    the update begins with what an outer optimizer makes of the mean, the same on all replicas:
    DiLoCo (Douillard et al. 2023, arXiv 2311.08105), and with units apart its streaming form
    (arXiv 2501.18512). Costs 8 bytes a parameter, and 4 more where what is sent travels in another
    `wire` than fp32.
    """
    setup = replace(program.setup, period=steps, averages=averages, outer=outer, average_wire=wire)
    apart = {name for name, count in setup.holders.items() if count > setup.peers[name]}
    kind = Kind.named(averages.op)

    def averaged(rank: int, kind: Kind, order: Lane, of_order: Kind) -> Iterator[Action]:
        """An op of a kind for each unit that it is averaged in its turn, in a lane's order."""
        held = dict(program.held_by(rank))
        for action in program.lane(rank, order):
            name = held[action.stage].units[action.unit].name
            if action.kind is of_order and name in apart:
                step = turns[name] if averages.by_turns else steps - 1
                yield Action(kind, action.stage, action.unit, NONE, step)

    def averages_of(rank: int, _lane: Lane, _actions: Iterable[Action]) -> Iterator[Action]:
        if not averages.by_turns:
            return averaged(rank, kind, Lane.UPDATE, Kind.UpdateShard)
        return iter(sorted(completed(rank, kind), key=lambda action: action.step))

    def completed(rank: int, kind: Kind) -> list[Action]:
        """An op for each unit, in the order in which gradients are complete."""
        made = reversed(list(averaged(rank, kind, Lane.REDUCE, Kind.GradSync)))
        return list(dict.fromkeys(made))[::-1]

    def shared(rank: int) -> Bools:
        """By stage and unit whether others add up a rank's gradient too."""
        peers, held = setup.peers_of[setup.replica_of(rank)], program.held_by(rank)
        several = {number: [peers[u.name] > 1 for u in member.units] for number, member in held}
        found = np.zeros((1 + max(several), max(map(len, several.values()))), dtype=np.bool_)
        for number, of_stage in several.items():
            found[number, : len(of_stage)] = of_stage
        return found

    def reductions(rank: int, _lane: Lane, actions: Iterable[Action]) -> Iterator[Action]:
        adds = shared(rank)
        kept = [a for a in actions if a.kind is Kind.TieSync or adds[a.stage, a.unit]]
        yield from (action._replace(step=step) for step in range(steps) for action in kept)

    def copies(rank: int, _lane: Lane, actions: Iterable[Action]) -> Iterator[Action]:
        actions = tuple(actions)
        ordered = completed(rank, Kind.CopyW)
        for step in range(steps):
            yield from (action for action in ordered if action.step == step)
            yield from (action._replace(step=step) for action in actions)

    def gathers(rank: int, rows: Rows) -> Rows:
        return every_step(rank, rows[shared(rank)[rows[:, STAGE], rows[:, UNIT]]])

    def every_step(_rank: int, rows: Rows) -> Rows:
        spelled_out = np.tile(rows, (steps, 1))
        spelled_out[:, STEP] = np.repeat(np.arange(steps), len(rows))
        return spelled_out

    made = program.edit(f"{averages}-{steps}", Lane.REDUCE, by=reductions, setup=setup)
    made = made.edit("", Lane.AVERAGE, by=averages_of)
    for lane in Lane:
        if lane is Lane.UPDATE and averages is Averages.EARLY_START:
            made = made.edit("", lane, by=copies)
        elif lane not in (Lane.REDUCE, Lane.AVERAGE):
            made = made.edit_rows("", lane, by=gathers if lane is Lane.GATHER else every_step)
    return made
