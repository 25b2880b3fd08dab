"""Passes about memory tiers: what waits in another one between its uses."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ratrain.errors import ProgramError
from ratrain.program.actions import NONE, Action
from ratrain.program.families import GRADIENT_SLOTS, SPILL_SLOTS, slots_in_use
from ratrain.program.kind import Kind, Lane
from ratrain.program.passes.tied import ends_of
from ratrain.program.program import Program
from ratrain.program.replicas import Member, Recovery
from ratrain.program.setup import Setup
from ratrain.program.tiers import DEVICE, HOST

Use = tuple[Kind, int, int, int]
"""Of a unit by a micro-batch: the fetch for it, then stage, unit and micro-batch."""

_USES = {
    Kind.F: Kind.FetchView_F,
    Kind.R: Kind.FetchView_R,
    Kind.B: Kind.FetchView_B,
    Kind.I: Kind.FetchView_B,
}
_VIEWS = (Kind.FetchView_F, Kind.FetchView_R, Kind.FetchView_B)

LEAST_WAIT = 2 * SPILL_SLOTS
"""Ops of compute between a forward and its backward: where there are fewer, what forward saves is
no longer held than slots would hold it."""


def offload_inputs(program: Program) -> Program:
    """Input offload: the inputs of units that are recovered wait for backward in host memory.

    Adds an OffloadInput behind each forward of such a unit, on a lane of its own, and a FetchInput
    ahead of its recovery, on another. Inputs are made in two slots and come back into a few, so
    what the device holds no longer grows with the micro-batches in flight, nor with how far lanes
    drift apart. Safe because recovery and backward read what was fetched, and a slot is taken over
    only after its readers. Units that keep their activations keep their inputs too, and so do all
    where backward is split: weight gradients, which read inputs, come too late for slots.
    """
    return _offload_activations(program, "offload-inputs", HOST, spills=False)


def offload_activations(program: Program, tier: str) -> Program:
    """Activation offload: what backward needs waits for it in another memory tier.

    On stages that recover: `offload_inputs`, to any tier. On stages in mode spill: adds a Spill
    behind each forward and a Fill ahead of its backward, of the micro-batches whose backward is not
    near. Forward saves into two slots and two micro-batches of a unit come back at once, however
    many are in flight. Safe because backward reads what was filled, and a Fill what was spilled.
    SSDTrain (Wu et al. 2024, arXiv 2408.10013).
    """
    return _offload_activations(program, f"offload-activations-{tier}", tier, spills=True)


def _offload_activations(program: Program, name: str, tier: str, *, spills: bool) -> Program:
    def waiting(member: Member, _is_last: bool) -> Member:
        waits = member.recovery.again and not program.setup.split_backward
        waits |= spills and member.recovery is Recovery.SPILL
        return replace(member, activation_tier=tier if waits else DEVICE)

    setup = program.setup.with_members(waiting)
    changed = program.with_setup(setup)

    def copies(rank: int, lane: Lane, actions: Iterable[Action]) -> Iterator[Action]:
        inputs = _units_with_input_away(changed, rank)
        spilled = _spilled(changed, rank)
        leaves = lane is Lane.OFFLOAD
        moves: list[Action] = []
        for action in program.lane(rank, Lane.COMPUTE):
            cell = action.stage, action.unit, action.micro_batch
            if action.kind is (Kind.F if leaves else Kind.R) and cell[:2] in inputs:
                moves.append(action._replace(kind=Kind.OffloadInput if leaves else Kind.FetchInput))
            elif action.kind in ((Kind.F,) if leaves else (Kind.B, Kind.I)) and cell in spilled:
                moves.append(action._replace(kind=Kind.Spill if leaves else Kind.Fill))
        return iter(_by_first_use(program, rank, (*actions, *moves)))

    return program.edit(name, Lane.OFFLOAD, Lane.FETCH, by=copies, setup=setup)


def offload_optimizer(program: Program, tier: str) -> Program:
    """Optimizer offload: master weights and moments wait for their update in host memory, or on
    disk.

    Adds a FetchOptimizer ahead of each update, on a lane of its own, and a StoreOptimizer behind
    it, on another, both in the order of updates. The device then holds the states of two units
    instead of all, and a step moves each in and out once, however many micro-batches there are.
    Safe because an update reads what was fetched, a fetch reads what the step before stored, and a
    slot is taken over only after its store (and its Save). Fetches of the next step may begin while
    this one's last updates run. In fp32 the weights are their own master, and stay, unless they
    wait too. ZeRO-Offload (Ren et al. 2021, arXiv 2101.06840), ZeRO-Infinity (Rajbhandari et al.
    2021, arXiv 2104.07857).
    """

    def away(member: Member, _is_last: bool) -> Member:
        return replace(member, optimizer_tier=tier)

    def moves(rank: int, lane: Lane, _actions: Iterable[Action]) -> Iterator[Action]:
        kind = Kind.FetchOptimizer if lane is Lane.LOAD else Kind.StoreOptimizer
        for action in program.lane(rank, Lane.UPDATE):
            if action.kind is Kind.UpdateShard:
                yield action._replace(kind=kind)

    setup = program.setup.with_members(away)
    return program.edit(f"offload-optimizer-{tier}", Lane.LOAD, Lane.STORE, by=moves, setup=setup)


def offload_views(program: Program, tier: str) -> Program:
    """View offload: the weights that compute reads wait for each use in another memory tier.

    Adds a fetch ahead of each use of a unit that is not in a slot any more, on the lane of what
    comes back, and a StoreView behind what makes the new weights, on that of what leaves. The
    device then holds two units' (those in use, and one on its way) and two on their way out,
    instead of all. Uses of a unit that follow each other share a fetch: an order that takes all
    micro-batches of a layer together fetches each view twice a step, however many there are.
    Safe because a use reads what was fetched, a slot is taken over only after its readers, and a
    fetch of the next step reads what was stored. ZeRO-Infinity, and GreedySnake for the order
    (arXiv 2512.17570).
    """

    def away(member: Member, _is_last: bool) -> Member:
        return replace(member, view_tier=tier)

    setup = program.setup.with_members(away)

    def stores(rank: int, _lane: Lane, actions: Iterable[Action]) -> Iterator[Action]:
        """In the order in which new weights are made: by updates, or by gathers behind them."""
        yield from actions
        gathers = [a for a in program.lane(rank, Lane.GATHER) if a.kind is Kind.PrefetchW]
        gathered = {action[1:3] for action in gathers}
        updates = [a for a in program.lane(rank, Lane.UPDATE) if a.kind is Kind.UpdateShard]
        for action in (*(a for a in updates if a[1:3] not in gathered), *gathers):
            yield action._replace(kind=Kind.StoreView)

    stored = program.edit(f"offload-views-{tier}", Lane.OFFLOAD, by=stores, setup=setup)
    return fetch_views(stored)


def offload_gradients(program: Program, tier: str) -> Program:
    """Gradient offload: gradients that add up over micro-batches wait for the next in another tier.

    Backward adds to a gradient in one of three slots. Adds a StoreGradient behind a unit's last
    backward before other units take its slot, and a FetchGradient ahead of its next one. Where all
    micro-batches of a unit follow each other nothing moves: the gradient is whole, and stays until
    its update. Safe because backward adds to what was fetched, in ascending micro-batches, and a
    slot is taken over only when its gradient is stored or has made its update. Needs updates that
    go on as gradients come (update-prefetch). Where they wait for a norm over all of them, each
    leaves once more when it is whole (StoreSum), and comes back for its update (FetchSum). Those of
    a tied matrix, which are added to each other, stay on the device.
    """

    def away(member: Member, _is_last: bool) -> Member:
        return replace(member, gradient_tier=tier)

    program = _gathers_as_updated(program)
    if any(action.kind in _WAIT_FOR_ALL for lane in program.lanes.values() for action in lane):
        raise ProgramError(
            "gradients wait in slots for their updates, and an op of the program waits for all of "
            "them at once",
            fix="leave gradient_tier out, or add the passes layerwise-state-pipeline and "
            "update-prefetch",
        )
    setup = program.setup.with_members(away)
    stays = {rank: _stays_of_gradients(program, rank) for rank in range(setup.ranks)}

    def moves(rank: int, lane: Lane, actions: Iterable[Action]) -> list[Action]:
        made: list[Action] = []
        last = program.lane(rank, Lane.UPDATE)
        clips = any(action.kind is Kind.ClipNorm for action in last)
        for stay in stays[rank]:
            if lane is Lane.FETCH and not stay.is_first:
                made.append(stay.actions[0]._replace(kind=Kind.FetchGradient))
            if lane is Lane.OFFLOAD and not stay.is_last:
                made.append(stay.actions[-1]._replace(kind=Kind.StoreGradient))
            elif lane is Lane.OFFLOAD and clips:
                made.append(stay.actions[-1]._replace(kind=Kind.StoreSum))
        if lane is Lane.FETCH:
            left = {stay.actions[0][1:3] for stay in stays[rank]} if clips else ()
            updates = (a for a in last if a.kind is Kind.UpdateShard and a[1:3] in left)
            back = [action._replace(kind=Kind.FetchSum) for action in updates]
            return _by_first_use(program, rank, (*actions, *made, *back))
        return [
            action._replace(micro_batch=NONE) if action.kind is Kind.StoreSum else action
            for action in _by_first_use(program, rank, (*made, *actions))
        ]

    return program.edit(
        f"offload-gradients-{tier}", Lane.FETCH, Lane.OFFLOAD, by=moves, setup=setup
    )


def _gathers_as_updated(program: Program) -> Program:
    """Updated shares, which are in their gradients' places, are gathered in the order in which they
    come, so that the places are free again."""

    def in_order(rank: int, _lane: Lane, actions: Iterable[Action]) -> list[Action]:
        place = {action[1:3]: at for at, action in enumerate(program.lane(rank, Lane.UPDATE))}
        return sorted(actions, key=lambda action: place.get(action[1:3], -1))

    gathers = program.setup.gathers
    return program.edit("", Lane.GATHER, by=in_order) if gathers else program


_WAIT_FOR_ALL = (Kind.AllBackward, Kind.AllSynced, Kind.Commit)


@dataclass
class _Stay:
    """Backwards of a unit that add to its gradient in one stay in a slot."""

    actions: list[Action]
    is_first: bool
    is_last: bool = True


def _stays_of_gradients(program: Program, rank: int) -> list[_Stay]:
    held = dict(program.held_by(rank))
    setup, inside = program.setup, deque[tuple[int, int]](maxlen=GRADIENT_SLOTS - 1)
    tied = ends_of(program, rank) if setup.tied else ()
    stays: list[_Stay] = []
    latest: dict[tuple[int, int], _Stay] = {}
    for action in program.lane(rank, Lane.COMPUTE):
        unit = action.stage, action.unit
        unheld = held[unit[0]].units[unit[1]].frozen or unit in tied
        if not action.kind.adds_gradient or unheld:
            continue
        if setup.per_micro_batch and setup.is_shared(held[unit[0]].units[unit[1]].name):
            continue
        if unit in inside:
            latest[unit].actions.append(action)
            continue
        inside.append(unit)
        if unit in latest:
            latest[unit].is_last = False
        latest[unit] = _Stay([action], unit not in latest)
        stays.append(latest[unit])
    return stays


def fetch_views(program: Program) -> Program:
    """The fetches of views that wait in another tier, for the uses that a program has."""

    def fetches(rank: int, _lane: Lane, actions: Iterable[Action]) -> list[Action]:
        others = [action for action in actions if action.kind not in _VIEWS]
        return _by_first_use(program, rank, (*others, *_fetches_of_views(program, rank)))

    return program.edit("", Lane.FETCH, by=fetches)


def _fetches_of_views(program: Program, rank: int) -> Iterator[Action]:
    """One for each use of a unit that none of the last fetches has brought."""
    held = dict(program.held_by(rank))
    ahead = any(member.recovery is Recovery.FORWARD for member in held.values())
    inside: deque[tuple[int, int]] = deque(maxlen=slots_in_use(program.setup, ahead) - 1)
    gathers = {
        action[:4]
        for action in program.lane(rank, Lane.GATHER)
        if action.kind in (Kind.Gather_F, Kind.Gather_B)
    }
    for fetch, stage, unit, micro_batch in _uses(program, rank):
        member = held[stage]
        if not member.view_tier:
            continue
        if _gathered_per_use(program.setup, member, unit):
            kind = Kind.Gather_F if fetch is Kind.FetchView_F else Kind.Gather_B
            if (gather := (kind, stage, unit, micro_batch)) not in gathers:
                continue
            gathers.remove(gather)  # a recovery and its backward share one
        if (stage, unit) not in inside:
            inside.append((stage, unit))
            yield Action(fetch, stage, unit, micro_batch)


def _gathered_per_use(setup: Setup, member: Member, unit: int) -> bool:
    return setup.gathers_per_use and setup.is_shared(member.units[unit].name)


def _uses(program: Program, rank: int) -> Iterator[Use]:
    """Of units by compute, in order."""
    for kind, stage, unit, micro_batch, _ in program.lane(rank, Lane.COMPUTE):
        if kind in _USES:
            yield _USES[kind], stage, unit, micro_batch


def _first_uses(program: Program, rank: int) -> Iterable[Use]:
    return dict.fromkeys(_uses(program, rank))


def _by_first_use(program: Program, rank: int, actions: Iterable[Action]) -> list[Action]:
    """Moves in the order in which compute first uses what they move; behind them those that wait
    for a step's gradients."""
    place: dict[Use, int] = {}
    compute = program.lane(rank, Lane.COMPUTE)
    for at, (kind, stage, unit, micro_batch, _) in enumerate(compute):
        for fetch in (_USES.get(kind), Kind.FetchGradient if kind.adds_gradient else None):
            if fetch:
                place.setdefault((fetch, stage, unit, micro_batch), at)

    def first_use(action: Action) -> int:
        if action.kind in (Kind.FetchSum, Kind.StoreView):
            return len(compute)
        fetch = action.kind if action.kind in _VIEWS else _LIKE.get(action.kind, Kind.FetchView_B)
        return place.get((fetch, *action[1:4]), -1)

    return sorted(actions, key=first_use)


_LIKE = {
    Kind.OffloadInput: Kind.FetchView_F,
    Kind.Spill: Kind.FetchView_F,
    Kind.FetchInput: Kind.FetchView_R,
    Kind.FetchGradient: Kind.FetchGradient,
    Kind.StoreGradient: Kind.FetchGradient,
    Kind.StoreSum: Kind.FetchGradient,
}
"""What else moves with a forward or a recovery; all others with a backward."""


def _units_with_input_away(program: Program, rank: int) -> set[tuple[int, int]]:
    """(stage, unit) of a rank's units whose inputs wait in another tier."""
    return {
        (stage, number)
        for stage, member in program.held_by(rank)
        for number, unit in enumerate(member.units)
        if member.activation_tier
        and member.recovery.again
        and unit.recoverable
        and (stage, number) != (0, 0)
    }


def _spilled(program: Program, rank: int) -> set[tuple[int, int, int]]:
    """(stage, unit, micro-batch) of what is spilled: where enough is computed in between."""
    spilling = {
        stage
        for stage, member in program.held_by(rank)
        if member.activation_tier and member.recovery is Recovery.SPILL
    }
    places: dict[Use, int] = {use: at for at, use in enumerate(_first_uses(program, rank))}
    return {
        (stage, unit, micro_batch)
        for (fetch, stage, unit, micro_batch), at in places.items()
        if fetch is Kind.FetchView_F
        and stage in spilling
        and places.get((Kind.FetchView_B, stage, unit, micro_batch), 0) - at > LEAST_WAIT
    }
