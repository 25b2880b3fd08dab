"""What a program is about: its replicas, and how they share states and memory.

Everything that the rules need to know is here and in `replicas`, so a program's text with this
header is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from ratrain.describe.average_wires import AVERAGE_WIRES
from ratrain.errors import ProgramError
from ratrain.program.replicas import Member, Replica, Stage, check_joined, check_replica


class Accumulation(StrEnum):
    """Where a step's gradients add up."""

    LOCAL = "local"  # whole, on every rank; reduced once a step
    SHARDED = "sharded"  # in each owner's shard; reduced once a micro-batch


class Averages(StrEnum):
    """Which weights replicas that update alone average, and when; moments are each replica's own,
    but in local SGD. A unit has its turn in one step of a period."""

    NONE = ""
    LOCAL_SGD = "local-sgd"  # all units, with their moments, behind a period's last update
    DREAMDDP = "dreamddp"  # a unit's, in place, between its last backward and its update
    EARLY_START = "early-start"  # copies made as the step begins; its update begins with their mean

    @property
    def by_turns(self) -> bool:
        """Whether units have their turns in several steps: then replicas are never all alike."""
        return self not in (Averages.NONE, Averages.LOCAL_SGD)

    @property
    def op(self) -> str:
        """The kind of op that averages."""
        return "AverageCopy" if self is Averages.EARLY_START else "AverageW"


@dataclass(frozen=True)
class Budget:
    """Bytes of one memory tier ("": the device's) on some ranks, the last one included."""

    first_rank: int
    last_rank: int
    tier: str
    size_bytes: int


@dataclass(frozen=True)
class Setup:
    """The header of a program. A budget of `budgets` goes before `budget_bytes`."""

    replicas: tuple[Replica, ...]
    sharding: int = 0  # ZeRO stage: 0 nothing, 1 optimizer, 2 and gradients, 3 and views
    accumulation: Accumulation = Accumulation.LOCAL
    split_backward: bool = False  # I and W in place of B
    recovery_buffer: int = 2  # units whose activations may be held recovered at once
    transit_slots: int = 0  # unreduced gradients held at once; 0: as many as units
    bucket_bytes: int | None = None  # a gradient leaves in pieces of this size; None: whole
    budget_bytes: int | None = None  # per rank, of the tier below
    tier: str = "memory"  # of the device
    tied: bool = False  # the first and the last unit hold one matrix, each a copy of it
    sequence_parallel: bool = False  # a tensor group divides the tensors between units
    arrival_places: bool = False  # a gradient that arrives has a place of its own, not a slot
    together: int = 1  # so many of the first and the last micro-batches go layer by layer
    gathers_per_pass: bool = False  # level 3 gathers a view once for all micro-batches of a pass
    period: int = 1  # steps that the program spells out
    averages: Averages = Averages.NONE  # of replicas that update alone
    outer: bool = False  # an outer optimizer goes on from the last mean, by the new one
    average_wire: str = ""  # in what its gradients are sent, with error feedback; "": as they are
    forward_only: bool = False  # nothing is kept for a backward, and nothing is trained
    backward_sends: bool = False  # backward fills buckets that leave beside it, with its GradSync
    error_feedback: int = 0  # residuals of each gradient sent: 1; 2 where a step may be skipped
    mirrored: bool = False  # of each owner's states a buddy keeps the same, on its host
    network_in_turn: bool = False  # a rank's network ops go one by one, in one order of all ranks
    notes: tuple[str, ...] = ()  # of third-party passes, for their rules and families
    budgets: tuple[Budget, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    @property
    def data(self) -> int:
        """Data-parallel degree: all replicas, the folded ones counted."""
        return sum(replica.count for replica in self.replicas)

    @cached_property
    def ranks(self) -> int:
        """Ranks that the program spells out."""
        return sum(replica.ranks for replica in self.replicas)

    @cached_property
    def first_rank(self) -> tuple[int, ...]:
        """For each replica, the program's number of its rank 0."""
        starts = [0]
        for replica in self.replicas[:-1]:
            starts.append(starts[-1] + replica.ranks)
        return tuple(starts)

    def replica_of(self, rank: int) -> int:
        """Which replica a program rank belongs to."""
        return max(i for i, first in enumerate(self.first_rank) if first <= rank)

    @property
    def alike_every(self) -> int:
        """Steps after which a run may end or save as at a period's end: 1 where every replica has
        states of its own at any time, and saves them."""
        return 1 if self.averages.by_turns else self.period

    @cached_property
    def tensor(self) -> int:
        """The largest tensor-parallel degree of any member."""
        return max(member.tensor for member in self.members)

    @cached_property
    def joins(self) -> bool:
        """Whether any stage computes several micro-batches at once."""
        return any(replica.most_joined > 1 for replica in self.replicas)

    @cached_property
    def members(self) -> tuple[Member, ...]:
        return tuple(
            member
            for replica in self.replicas
            for stage in replica.stages
            for member in stage.members
        )

    @cached_property
    def is_uneven(self) -> bool:
        """Whether members differ in tensor degree or in what they compute at once, or replicas in
        their stages or micro-batches."""
        shapes = {(replica.stages, replica.micro_batches) for replica in self.replicas}
        alike = {(member.tensor, member.joined) for member in self.members}
        return len(shapes) > 1 or len(alike) > 1

    @property
    def devices(self) -> int:
        """Devices that the program stands for."""
        total = 0
        for replica in self.replicas:
            degree = {m.rank: m.tensor for stage in replica.stages for m in stage.members}
            total += sum(degree.values()) * replica.count
        return total

    @cached_property
    def holders(self) -> dict[str, int]:
        """For each unit's name how many ranks hold it: folded replicas counted, a tensor group as
        one."""
        return _holders_in(self.replicas)

    @cached_property
    def sites(self) -> tuple[int, ...]:
        """The sites between which weights are averaged; none where each replica is by itself."""
        return tuple(
            sorted({replica.site for replica in self.replicas if replica.site is not None})
        )

    @cached_property
    def site_counts(self) -> dict[int, int]:
        """How many replicas stand at each of these sites."""
        return {
            site: sum(replica.count for replica in self.replicas if replica.site == site)
            for site in self.sites
        }

    @cached_property
    def peers_of(self) -> tuple[dict[str, int], ...]:
        """For each replica and each unit's name how many ranks add up its gradient: all that hold
        it, or where these average weights those of its site."""
        if not self.averages:
            return (self.holders,) * len(self.replicas)
        alone = dict.fromkeys(self.holders, 1)
        at = {
            site: _holders_in([each for each in self.replicas if each.site == site])
            for site in self.sites
        }
        return tuple(alone if each.site is None else at[each.site] for each in self.replicas)

    @cached_property
    def peers(self) -> dict[str, int]:
        """The same of the replica that has the most of them."""
        return {name: max(of[name] for of in self.peers_of) for name in self.holders}

    @cached_property
    def apart(self) -> int:
        """How many train apart, and average their weights: sites, or replicas; 1: all as one."""
        if not self.averages:
            return 1
        return len(self.sites) or max(self.holders.values())

    @cached_property
    def unit_degrees(self) -> dict[str, tuple[int, ...]]:
        """For each unit's name, in model order, the tensor degree of each member that holds it."""
        return _degrees_in(self.replicas)

    @cached_property
    def sharing_degrees(self) -> dict[str, tuple[int, ...]]:
        """The same, and for the units of a tied matrix the degrees at both of its ends, whose ranks
        add up their copies."""
        return _degrees_in(self.replicas, tied=self.tied)

    @cached_property
    def mixed_degrees(self) -> dict[str, tuple[int, ...]]:
        """The unlike ones of these, by units whose gradients such ranks add up: between sites that
        average weights they may differ."""
        mixed: dict[str, tuple[int, ...]] = {}
        for site in (self.sites if self.averages else ()) or (None,):
            here = [replica for replica in self.replicas if site in (None, replica.site)]
            for name, degrees in _degrees_in(here, tied=self.tied).items():
                if len(set(degrees)) > 1:
                    mixed.setdefault(name, degrees)
        return mixed

    @cached_property
    def frozen(self) -> frozenset[str]:
        """The names of units that nobody updates."""
        return frozenset(u.name for member in self.members for u in member.units if u.frozen)

    def is_shared(self, name: str) -> bool:
        """Whether several ranks hold a unit, and have the same weights of it after every step."""
        return self.peers[name] > 1

    def is_reduced(self, name: str) -> bool:
        """Whether a unit's gradient needs a reduction."""
        return self.is_shared(name) and name not in self.frozen

    def is_mirrored(self, name: str) -> bool:
        """Whether a buddy keeps what each of a unit's owners has alone."""
        return self.mirrored and self.sharding > 0 and self.is_reduced(name)

    @cached_property
    def reduces(self) -> bool:
        """Whether any gradient needs a reduction."""
        return max(self.peers.values()) > 1

    @property
    def gathers(self) -> bool:
        """Whether updated views are gathered once a step (levels 1 and 2)."""
        return self.reduces and self.sharding in (1, 2)

    @property
    def gathers_per_use(self) -> bool:
        """Whether views are gathered for their uses, and let go (level 3)."""
        return self.reduces and self.sharding == 3

    @property
    def per_micro_batch(self) -> bool:
        """Whether gradients are reduced micro-batch by micro-batch."""
        return self.reduces and self.accumulation is Accumulation.SHARDED

    def budget_of(self, rank: int, tier: str = "") -> int | None:
        """The budget of a program rank in a tier ("": the device's); None: no limit."""
        for budget in self.budgets:
            if budget.tier == tier and budget.first_rank <= rank <= budget.last_rank:
                return budget.size_bytes
        return None if tier else self.budget_bytes

    def with_members(self, change: Callable[[Member, bool], Member]) -> Setup:
        """The same setup with `change(member, is_of_last_stage)` applied to every member."""
        replicas = tuple(
            replace(
                replica,
                stages=tuple(
                    Stage(
                        tuple(
                            change(member, number == len(replica.stages) - 1)
                            for member in stage.members
                        )
                    )
                    for number, stage in enumerate(replica.stages)
                ),
            )
            for replica in self.replicas
        )
        return replace(self, replicas=replicas)


def _holders_in(replicas: Sequence[Replica]) -> dict[str, int]:
    holders: dict[str, int] = {}
    for replica in replicas:
        for stage in replica.stages:
            for name in stage.names:
                holders[name] = holders.get(name, 0) + replica.count * len(stage.members)
    return holders


def _degrees_in(replicas: Sequence[Replica], *, tied: bool = False) -> dict[str, tuple[int, ...]]:
    degrees: dict[str, tuple[int, ...]] = {}
    for replica in replicas:
        for stage in replica.stages:
            for name in stage.names:
                of_members = tuple(member.tensor for member in stage.members)
                degrees[name] = degrees.get(name, ()) + of_members
    if tied:
        first, *_, last = degrees
        degrees[first] = degrees[last] = degrees[first] + degrees[last]
    return degrees


def _check(setup: Setup) -> None:
    """What no program can repair: a header that contradicts itself."""
    if not 0 <= setup.sharding <= 3:
        raise ProgramError(f"sharding level {setup.sharding}", fix="use sharding 0, 1, 2 or 3")
    if setup.recovery_buffer < 1:
        raise ProgramError("a recovery buffer holds at least one unit", fix="set it to 1 or more")
    if setup.accumulation is Accumulation.SHARDED and setup.sharding < 2:
        raise ProgramError(
            "sharded accumulation needs sharded gradients",
            fix="use sharding 2 or 3, or local accumulation",
        )
    if setup.backward_sends and not (
        setup.accumulation is Accumulation.SHARDED and setup.bucket_bytes and setup.transit_slots
    ):
        raise ProgramError(
            "backward that sends its gradient needs sharded accumulation, and buckets",
            fix="set accumulation sharded, transit_slots 2 and bucket_bytes, or leave "
            "backward_sends out",
        )
    if setup.period < 1:
        raise ProgramError("a program needs at least one step", fix="set period to 1 or more")
    if setup.together < 1:
        raise ProgramError(
            "no micro-batch goes through a stage at a time", fix="set together to 1 or more"
        )
    if setup.averages and setup.sharding and not setup.reduces:
        raise ProgramError(
            "replicas that average their weights hold all of their states",
            fix="use sharding 0",
        )
    if setup.averages and setup.sites:
        _check_sites(setup)
    if setup.averages and any(m.optimizer_tier or m.view_tier for m in setup.members):
        raise ProgramError(
            "replicas that average their weights average the optimizer's states too, which must be "
            "in the device's memory for that",
            fix="keep weights and optimizer on the device, or reduce gradients in every step",
        )
    if any(member.view_tier and not member.optimizer_tier for member in setup.members):
        raise ProgramError(
            "weights that wait in another tier are made of the optimizer's, which must wait too",
            fix="set optimizer_tier, or leave view_tier out",
        )
    if setup.averages.by_turns:
        _check_turns(setup)
    if setup.average_wire and not setup.outer:
        raise ProgramError(
            f"weights are not sent in {setup.average_wire}, but what replicas learnt since an "
            "outer step is",
            fix="set outer, or leave average_wire out",
        )
    if setup.average_wire and setup.average_wire not in AVERAGE_WIRES:
        raise ProgramError(
            f"averages are not sent in {setup.average_wire}",
            fix=f"use one of {', '.join(AVERAGE_WIRES)}",
        )
    if setup.outer and setup.averages is not Averages.EARLY_START:
        raise ProgramError(
            "an outer optimizer takes means of copies of weights",
            fix=f"set averages {Averages.EARLY_START}, or leave outer out",
        )
    _check_error_feedback(setup)
    if setup.mirrored:
        _check_mirrored(setup)
    for number, replica in enumerate(setup.replicas):
        check_replica(number, replica)
    _check_joined(setup)
    _check_tied(setup)
    _check_replicas_agree(setup)
    _check_idle(setup)
    _check_frozen(setup)


def _check_sites(setup: Setup) -> None:
    """Refuses averages between sites that do not hold the same ranges of weights."""
    if setup.averages is Averages.LOCAL_SGD:
        raise ProgramError(
            "between sites units are averaged by turns, each owner's weights alone, not with all "
            f"states at once ({setup.averages})",
            fix=f"use averages {Averages.EARLY_START} or {Averages.DREAMDDP}",
        )
    if any(replica.site is None for replica in setup.replicas):
        raise ProgramError("a replica stands at no site, others do", fix="give each a site")
    if not (setup.gathers_per_use or setup.per_micro_batch):
        return
    for name in setup.holders:
        counts = [of_replica[name] for of_replica in setup.peers_of]
        if len(set(counts)) > 1:
            words = f"{', '.join(map(str, counts[:-1]))} and {counts[-1]}"
            raise ProgramError(
                f"sites where {words} ranks hold unit {name} do not meet alike in every "
                "micro-batch, for gradients or views",
                fix="use local accumulation and sharding 2 or less, or as many replicas at all "
                "sites",
            )


def _check_turns(setup: Setup) -> None:
    """Refuses what units that are averaged by turns cannot do."""
    alone = f', or averages "{Averages.LOCAL_SGD}"'
    for name, degrees in (setup.mixed_degrees if setup.sites else setup.unit_degrees).items():
        if len(set(degrees)) > 1:
            raise ProgramError(
                f"replicas that hold unit {name} at tensor {' and '.join(map(str, degrees))} "
                f"cannot average it by turns ({setup.averages})",
                fix="use one tensor degree" + (" inside each site" if setup.sites else alone),
            )
    if setup.averages is Averages.EARLY_START and any(
        not unit.copy_bytes and not unit.frozen and setup.holders[unit.name] > 1
        for member in setup.members
        for unit in member.units
    ):
        raise ProgramError(
            "units whose copies are averaged need a size of a copy", fix="set copy_bytes"
        )


def _check_frozen(setup: Setup) -> None:
    """Refuses units that some ranks update and others do not, and frozen ones with a gradient."""
    units = [unit for member in setup.members for unit in member.units]
    for unit in units:
        if unit.name in setup.frozen and not unit.frozen:
            raise ProgramError(
                f"unit {unit.name} is frozen on some ranks, and updated on others",
                fix="freeze it on all of them, or on none",
            )
        if unit.frozen and (unit.gradient_bytes or unit.optimizer_bytes):
            raise ProgramError(
                f"unit {unit.name} is frozen, and has a gradient or an optimizer",
                fix="set gradient_bytes and optimizer_bytes to 0, or leave frozen out",
            )
    if not setup.forward_only and all(unit.frozen for unit in units):
        raise ProgramError("every unit is frozen", fix="let one unit be trained")
    if setup.tied and {units[0].name, units[-1].name} & setup.frozen:
        raise ProgramError(
            "the ends of a tied model are frozen, and have no gradients to add up",
            fix="leave tied out",
        )


def _check_mirrored(setup: Setup) -> None:
    if setup.averages or any(member.optimizer_tier for member in setup.members):
        raise ProgramError(
            "mirrors are of optimizer states on the device, of owners that reduce every gradient",
            fix="leave mirrored out, or averages and optimizer_tier",
        )
    for name, degrees in setup.sharing_degrees.items():
        if len(set(degrees)) > 1:
            raise ProgramError(
                f"ranks hold unit {name} at tensor {' and '.join(map(str, degrees))}, and own "
                "other parts of it than their buddies",
                fix="leave mirrored out, or use one tensor degree",
            )


def _check_error_feedback(setup: Setup) -> None:
    if not 0 <= setup.error_feedback <= 2:
        raise ProgramError(
            f"{setup.error_feedback} residuals of each gradient",
            fix="use error_feedback 1, 2 where a step may be skipped, or 0 for none",
        )
    if setup.error_feedback and (setup.averages or setup.period > 1):
        raise ProgramError(
            "error feedback needs a gradient that is sent in every step, and a program of one step",
            fix="leave error_feedback out, or averages and period",
        )


def _check_joined(setup: Setup) -> None:
    """Refuses what stages that compute several micro-batches at once cannot do."""
    if not setup.joins:
        return
    if setup.sequence_parallel:
        raise ProgramError(
            "ranks that divide the sequence divide the rows of all joined micro-batches, so stages "
            "that join other numbers of them hold other rows",
            fix="leave sequence_parallel out, or let all stages compute micro-batches of one size",
        )
    if setup.together > 1:
        raise ProgramError(
            "micro-batches that go layer by layer are computed one by one, and a stage joins some",
            fix="set together to 1, or let all stages compute micro-batches of one size",
        )
    for number, replica in enumerate(setup.replicas):
        check_joined(number, replica)
    _check_joined_alike(setup)


def _check_joined_alike(setup: Setup) -> None:
    """Ranks that meet for every use or every reduction must do so equally often."""
    if not (setup.per_micro_batch or (setup.gathers_per_use and not setup.gathers_per_pass)):
        return
    joined: dict[str, int] = {}
    for replica in setup.replicas:
        for stage in replica.stages:
            for name in stage.names:
                if joined.setdefault(name, stage.members[0].joined) != stage.members[0].joined:
                    raise ProgramError(
                        f"unit {name} is computed by ranks that join other numbers of "
                        "micro-batches, and cannot meet in each",
                        fix="use local accumulation and sharding 2 or less, or join as many "
                        "everywhere",
                    )


def _check_tied(setup: Setup) -> None:
    if not setup.tied:
        return
    for number, replica in enumerate(setup.replicas):
        if sum(len(stage.names) for stage in replica.stages) < 2:
            raise ProgramError(
                f"replica {number} has one unit, which cannot be tied to itself",
                fix="divide the model into at least an embedding and a head",
            )
        if max(len(stage.members) for stage in replica.stages) > 1:
            raise ProgramError(
                f"replica {number} ties its ends, and has a stage of several members",
                fix="use one member per stage, or untie the ends",
            )
    if setup.per_micro_batch:
        raise ProgramError(
            "adding the gradients of tied copies takes whole gradients, which sharded accumulation "
            "does not keep",
            fix="use local accumulation",
        )


def _check_replicas_agree(setup: Setup) -> None:
    names = [
        [name for stage in replica.stages for name in stage.names] for replica in setup.replicas
    ]
    for number, other in enumerate(names[1:], start=1):
        if other != names[0]:
            raise ProgramError(
                f"replica {number} divides the model into different units than replica 0",
                fix="use one unit per layer, so that gradients can be reduced layer by layer",
            )
    counts = {
        len(replica.serves(member))
        for replica in setup.replicas
        for stage in replica.stages
        for member in stage.members
    }
    if setup.per_micro_batch and len(counts) > 1:
        raise ProgramError(
            "replicas with unequal micro-batch counts cannot reduce once per micro-batch",
            fix="use local accumulation",
        )
    # A gather for every use is a meeting for every use: ranks that use a unit in another order, or
    # another number of times, would wait for each other for ever.
    shapes = {
        (
            replica.micro_batches,
            tuple((m.rank, len(m.units), m.serves) for s in replica.stages for m in s.members),
        )
        for replica in setup.replicas
    }
    alike = len(shapes) == 1 and len(counts) == 1
    if setup.gathers_per_use and not setup.gathers_per_pass and not alike:
        raise ProgramError(
            "replicas of unequal stages or micro-batch counts cannot gather views for every use",
            fix="use sharding 2, gather once per pass (the schedule pe-zero does), or divide all "
            "replicas alike",
        )


def _check_idle(setup: Setup) -> None:
    """Members without a micro-batch can only join in what happens once a step."""
    idle = any(
        not replica.serves(member)
        for replica in setup.replicas
        for stage in replica.stages
        for member in stage.members
    )
    if idle and setup.gathers_per_use:
        raise ProgramError(
            "a member that serves no micro-batch cannot gather views for their uses: it has none",
            fix="use sharding 2, or let every member serve a micro-batch",
        )
    if idle and setup.averages:
        raise ProgramError(
            "ranks that average their weights train alone in between, and a member that serves no "
            "micro-batch would have no gradient",
            fix="let every member serve a micro-batch, or reduce gradients in every step",
        )
