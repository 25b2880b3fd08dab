"""A plan made ready to prove and simulate, whatever its replicas are: its program, its costs, where
its ranks stand, and what `collective = "auto"` comes to in a whole step. And the case of a job that
has a layout, with what memory decided.

Where the job leaves recovery and accumulation to RATrain, these are tried, and the fastest of
those that are proved to fit is taken:

    keep all activations          local gradients, or sharded
    keep all but scores           local, or sharded (where attention stores its scores)
    keep the last stage's alone   local, or sharded
    recover on every stage        local, or sharded
    keep what each stage has memory for, by closed formula

Those alone are proved and simulated that a lower bound (`least_step_s`) does not rule out."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from math import inf

from ratrain.cost.algorithms import ALGORITHMS, AUTO
from ratrain.describe.cluster import Device, Link
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec, LayoutSpec
from ratrain.errors import ProgramError, SpecError
from ratrain.plan.case.words import InWords
from ratrain.plan.file.checks import untrainable
from ratrain.plan.file.form import PlanFile
from ratrain.plan.file.reading import plan_of_file
from ratrain.plan.layout.enumerate import StateMode, modes_of
from ratrain.plan.layout.jobs import (
    fault,
    require_shards,
    require_tieable,
    require_whole,
    strategy_of,
)
from ratrain.plan.layout.links import speed
from ratrain.plan.layout.placement import place
from ratrain.plan.layout.plan import (
    LAYER_MAJOR,
    MODES,
    SPLIT,
    Plan,
    group_of_plan,
    keeps_all,
    plan_of_layout,
    require_one_dtype,
)
from ratrain.plan.layout.sizes import stores_scores
from ratrain.plan.layout.tiers import leaner_jobs, require_bucketable, require_tier
from ratrain.plan.layout.turns import hidden_turns
from ratrain.plan.price.durations import UnitPlace
from ratrain.plan.price.fitted import fitted
from ratrain.plan.price.places import costs_of, unit_places
from ratrain.plan.price.trial import least_step_s, only_over_budget, proof, step_s_of
from ratrain.program.program import Program
from ratrain.program.repeating import Repeating
from ratrain.program.replicas import Recovery
from ratrain.program.settled import Proved
from ratrain.program.setup import Averages, Setup
from ratrain.program.skeletons import SKELETONS, Place
from ratrain.program.strategies import Choices, Strategy
from ratrain.simulate.costs import Costs
from ratrain.simulate.long import simulate_proved
from ratrain.simulate.simulate import Simulation


@dataclass(frozen=True)
class RankPlace:
    """The devices of a program rank: of all replicas that are folded into its own, one replica
    after the other. `reduces_over`, `sums_over`: the slowest link of its gradient reductions, and
    of its tensor group; None where it has none."""

    devices: tuple[Device, ...]
    reduces_over: Link | None
    sums_over: Link | None

    @property
    def kind(self) -> DeviceKind:
        return self.devices[0].kind


@dataclass(frozen=True)
class Standing:
    """`links`: for each replica the program spells out, the link from each rank to the next; none
    where its stages have several members."""

    ranks: tuple[RankPlace, ...]
    links: tuple[tuple[Link, ...], ...]
    idle: tuple[Device, ...] = ()


def standing_of(plan: Plan) -> Standing:
    """The `Standing` of a plan."""
    links = plan.links
    ranks = [(number, rank) for number, r in enumerate(plan.replicas) for rank in range(r.ranks)]
    return Standing(
        tuple(
            RankPlace(
                tuple(d for groups in plan.replicas[number].groups for d in groups[rank]),
                _slowest_reduction(plan, number, rank),
                links.sums(number, rank),
            )
            for number, rank in ranks
        ),
        tuple(
            tuple(
                links.between(number, rank, rank + 1)
                for rank in range(0 if replica.has_members else replica.ranks - 1)
            )
            for number, replica in enumerate(plan.replicas)
        ),
        plan.idle,
    )


def _slowest_reduction(plan: Plan, number: int, rank: int) -> Link | None:
    """The slowest link over which a rank of a replica reduces any of its gradients."""
    groups = {held for held in plan.holders.values() if rank in held[number]}
    shared = (held for held in groups if len(plan.links.groups_that_hold(held)) > 1)
    links = (link for held in shared for _, link in plan.links.reducing(held))
    return min(links, key=speed, default=None)


GAIN = 1e-6
"""The part of a step that one algorithm for all units must save: less is rounding."""


@dataclass(frozen=True)
class Case(InWords):
    """What everything that runs, proves, simulates or describes a plan asks of it."""

    plan: Plan
    beside: tuple[str, ...] = field(default=(), kw_only=True)
    """Lines of the headline: which plan was not taken, where the job was planned (`case_of_job`)"""

    @property
    def job(self) -> JobSpec:
        return self.plan.job

    @property
    def strategy(self) -> Strategy:
        return self.plan.strategy

    @property
    def setup(self) -> Setup:
        """The header of the program, before its strategy's passes."""
        return self.plan.setup

    @cached_property
    def choices(self) -> Choices:
        """With turns that hide averages best, where backward hides them."""
        choices = self.plan.choices
        asked = self.job.schedule.average_turns
        if asked or choices.asked_averages is not Averages.DREAMDDP:
            return choices
        costs, steps = costs_of(self.plan, self.setup), choices.average_steps
        turns = hidden_turns(self.setup, costs, steps, tied=choices.tie)
        return replace(choices, average_turns=turns)

    @cached_property
    def proved(self) -> Proved:
        """The program, kept short where it is long and repeats itself, with its proof."""
        with named_in(self.plan):
            return proof(self.strategy, self.setup, self.choices)

    @cached_property
    def program(self) -> Program:
        """The program, written out."""
        program = self.proved.program
        try:
            return program.written_out() if isinstance(program, Repeating) else program
        except ProgramError as error:
            place = f"{self.job.path or 'job'} {'[batch]' if self.plan.is_layout else 'sequences'}"
            fix = "cut the batch into fewer micro-batches, or use --form text, which keeps the "
            fix += "repeated middle folded; `verify` and `simulate` take the job as it is"
            raise ProgramError(error.what, place=place, fix=fix) from None

    @cached_property
    def costs(self) -> Costs:
        """What the ops of the proved program take."""
        return costs_of(self.settled, self.proved.short.setup)

    @cached_property
    def simulation(self) -> Simulation:
        """The program on a clock."""
        return simulate_proved(self.proved, self.costs)

    @cached_property
    def settled(self) -> Plan:
        """The plan with the collective by which its replicas reduce. "auto" is the one for all
        units that makes the step the shortest, or the fastest for each by itself: transfers that
        are may get in each other's way, or keep busy the processors that compute. Only whole steps
        tell."""
        plan, proved = self.plan, self.proved
        if self.job.collective != AUTO or max(proved.short.setup.holders.values()) == 1:
            return plan
        if not proved.verdict.sound and not only_over_budget(proved.verdict):
            return plan

        def step_s(plan: Plan) -> float:
            return simulate_proved(proved, costs_of(plan, proved.short.setup)).step_time_s

        schedules = [replace(self.job.schedule, collective=name) for name in ALGORITHMS]
        named = [replace(plan, job=replace(self.job, schedule=each)) for each in schedules]
        times = list(map(step_s, named))
        least_s = min(times)
        return named[times.index(least_s)] if least_s < (1 - GAIN) * step_s(plan) else plan

    def unit_places(self) -> list[UnitPlace]:
        """Every unit of the proved program in its place, in the order of its setup's members."""
        return unit_places(self.settled, self.proved.program.setup)

    def standing(self) -> Standing:
        """Where the ranks of its program stand."""
        return standing_of(self.plan)

    # ---- who does what, of the replicas that the program spells out ------------------------

    @property
    def apart(self) -> bool:
        """Whether replicas may compute in orders of their own."""
        return not self.plan.is_layout and len(self.plan.replicas) > 1

    def device(self, data: int, pipeline: int, tensor: int) -> Device:
        """The device of a replica, a rank of its pipeline, and a place in its tensor group."""
        replica = next(replica for replica in self.plan.replicas if data in replica.members)
        return replica.groups[replica.members.index(data)][pipeline][tensor]

    @property
    def refusals(self) -> list[tuple[str, str]]:
        """What processes cannot do of it, and the smallest fix."""
        return untrainable(self.plan)


@contextmanager
def named_in(plan: Plan) -> Generator[None]:
    """A program that cannot be made is the fault of a key of a job's file, or of a plan file."""
    file = plan.job.path or "job"
    try:
        yield
    except ProgramError as error:
        if not plan.is_layout:
            place = f"{file} {error.place or '[replicas]'}"
            fix = error.fix or "divide all replicas alike, or use another schedule"
        elif error.place.startswith("["):
            place, fix = f"{file} {error.place}", error.fix
        else:
            raise
        raise ProgramError(error.what, place=place, fix=fix) from error


def case_of_plan(plan: PlanFile, file: str) -> Case:
    """The case of a plan file."""
    return Case(plan_of_file(plan, file))


# ---- of a job with a layout ------------------------------------------------------------------


def choose(plan: Plan) -> Plan:
    """The fastest of the possible choices whose whole program is proved to fit; the leanest, where
    none is. Recovery only adds work, so where all activations can be kept nothing else is tried.
    `plan`: of a layout, with nothing chosen yet."""
    tried = list(_choices(plan))
    if len(tried) == 1:
        return tried[0]
    kept = [choice for choice in tried if keeps_all(choice)]
    recovering = [choice for choice in tried if not keeps_all(choice)]
    return _fastest(plan, kept) or _fastest(plan, recovering) or tried[-1]


def choose_order(plan: Plan) -> Plan:
    """The compute order whose step is the shortest of those that are proved to fit, with what is
    chosen in it. One that needs more memory must gain by it."""
    usual = choose(plan)
    orders = [
        (order.worth, order.ordered(usual.job, name))
        for order in (LAYER_MAJOR, SPLIT)
        for name in order.names(usual)
    ]
    best, best_s = usual, (step_s_of(usual) or inf) if orders else inf
    for worth, ordered in orders:
        chosen = choose(plan.in_order_of(ordered))
        step_s = step_s_of(chosen)
        if step_s is not None and step_s <= best_s * (1 - worth):
            best, best_s = chosen, step_s
    return best


def _fastest(plan: Plan, among: Sequence[Plan]) -> Plan | None:
    """The fastest that fits; None where none does. None is simulated whose lower bound says that it
    is slower, or that recovers more than one that fits and is else like it."""
    costs = costs_of(plan, plan.setup)
    order = sorted(
        (
            least_step_s(choice.strategy, plan.setup, choice.choices, costs),
            sum(mode is not Recovery.NONE for mode in choice.alike.recovery),
            number,
        )
        for number, choice in enumerate(among)
    )
    best, fitting = (inf, -1), list[Plan]()
    for bound_s, _, number in order:
        choice = among[number]
        if bound_s > best[0]:
            break
        if any(
            other.mode == choice.mode
            and _recovers_less(other.alike.recovery, choice.alike.recovery)
            for other in fitting
        ):
            continue
        step_s = step_s_of(choice)
        if step_s is not None:
            fitting.append(choice)
            best = min(best, (step_s, number))
    return among[best[1]] if fitting else None


def _recovers_less(modes: Sequence[Recovery], others: Sequence[Recovery]) -> bool:
    """Whether stages recover as others do, but for some that keep their activations."""
    alike = all(mode in (Recovery.NONE, other) for mode, other in zip(modes, others, strict=True))
    return alike and modes != others


def _choices(plan: Plan) -> Iterator[Plan]:
    """What may become of activations and gradients, the leanest last."""
    job, chosen = plan.job, plan.strategy
    leveled = replace(job, schedule=replace(job.schedule, sharding=chosen.sharding))
    modes = modes_of(leveled, chosen, plan.layout.data)
    for recovery in _recoveries(plan):
        for mode in modes:
            yield replace(plan.recovering(recovery), mode=mode)
    may_differ = chosen.recovery is not Recovery.NONE and not chosen.recovers_all
    if job.schedule.recovery == "auto" and may_differ:
        for mode in modes:
            fitting = replace(plan, mode=mode)
            codes = fitted(group_of_plan(fitting))[0][0]
            yield fitting.recovering(tuple(MODES[int(code)] for code in codes))


def _recoveries(plan: Plan) -> Iterator[tuple[Recovery, ...]]:
    """What stages do: all the same, but perhaps the last."""
    chosen, stages, asked = plan.strategy, plan.layout.stages, plan.job.schedule.recovery
    everywhere = (chosen.recovery,) * stages
    ahead = chosen.recovery is Recovery.FORWARD
    named = {
        "keep-all": (Recovery.NONE,) * stages,
        "selective": (Recovery.SELECTIVE,) * stages,
        "spill": (Recovery.SPILL,) * stages,
        "exempt-last": (*everywhere[1:], Recovery.NONE) if ahead else everywhere,
        "everywhere": everywhere,
    }
    if asked != "auto":
        yield named[asked]
        return
    if chosen.recovery is not Recovery.NONE and not chosen.recovers_all:
        yield named["keep-all"]
        if stores_scores(plan.job):
            yield named["selective"]
        if plan.job.activation_tier:
            yield named["spill"]
        if ahead:
            yield named["exempt-last"]
    yield everywhere


def case_of(job: JobSpec) -> Case:
    """The case of a job that has a layout. What is chosen with it is the best for any collective
    that "auto" may come to."""
    assert job.layout is not None, "a job without a layout is planned first: case_of_job"
    case = _case_in_memory(job)
    if job.collective != AUTO or job.layout.data == 1:
        return case
    cases = [case, *(_as_best_with(job, name) for name in ALGORITHMS)]
    sound = [each for each in cases if each.proved.verdict.sound]
    return min(sound, key=lambda each: each.simulation.step_time_s, default=case)


def _as_best_with(job: JobSpec, collective: str) -> Case:
    """The case of a job as it is the fastest with a collective."""
    named = replace(job, schedule=replace(job.schedule, collective=collective))
    case = _case_in_memory(named)
    schedule = replace(case.job.schedule, collective=job.schedule.collective)
    return Case(replace(case.plan, job=replace(case.job, schedule=schedule)))


def _case_in_memory(job: JobSpec) -> Case:
    """The case of a job with a layout. Where memory does not suffice, gradients are sent in
    buckets, or optimizer states wait in another tier, if that is enough."""
    assert job.layout is not None
    case = case_as_asked(job)
    verdict = case.proved.verdict
    if verdict.sound or not only_over_budget(verdict):
        return case
    others = leaner_jobs(job, case.strategy, replicas=job.layout.data > 1)
    tried = (case_as_asked(leaner) for leaner in others)
    return next((other for other in tried if other.proved.verdict.sound), case)


def require_one_by_one(job: JobSpec) -> None:
    """Refuses stages that join micro-batches: no case of a layout says them (`case_of_job`)."""
    if job.layout is not None and job.layout.joined:
        what = "layouts whose stages join micro-batches cannot be compared here"
        fix = "leave joined out; program, verify, simulate, train and report take it"
        raise fault(job, "[layout] joined", what, fix)


def case_as_asked(job: JobSpec) -> Case:
    """The case of a job with a layout: its gradients leave whole, unless it asks for buckets."""
    layout = job.layout
    assert layout is not None
    file = str(job.path or "job")
    require_one_by_one(job)
    chosen = strategy_of(job)
    if job.schedule.name == "tensor-parallel-heavy" and layout.tensor == 1:
        what = "tensor = 1 is no tensor parallelism, which tensor-parallel-heavy is made for"
        fix = "set tensor to the devices of a host, and divide pipeline by it"
        raise fault(job, "[layout] tensor", what, fix)
    require_shards(job, chosen.sharding)
    require_tieable(job)
    shards = layout.data > 1 and chosen.sharding > 0
    where = f"{file} [layout] tensor" if layout.tensor > 1 else f"{file} [schedule] sharding"
    require_whole(job, tensor=layout.tensor, shards=shards, place=where)
    require_bucketable(job, chosen)
    require_tier(job)
    if layout.virtual > 1 and not SKELETONS[chosen.skeleton].chunks:
        what = f"{chosen.skeleton} places one stage on a rank, not {layout.virtual}"
        fix = 'leave it out, or set [schedule] skeleton = "interleaved"'
        raise fault(job, "[layout] virtual", what, fix)
    _require_orderable(job, layout, chosen)
    placement = place(job, layout)
    if job.unlike:
        firsts = range(0, layout.devices, layout.tensor)
        groups = (placement.devices[first : first + layout.tensor] for first in firsts)
        require_one_dtype(job, groups, repeat(f"{file} [layout] tensor"))
    plan = plan_of_layout(job, placement, chosen, StateMode(chosen.sharding, False))
    with named_in(plan):
        return Case(choose_order(plan))


def _require_orderable(job: JobSpec, layout: LayoutSpec, chosen: Strategy) -> None:
    """Refuses a number of micro-batches for which the strategy's skeleton has no order."""
    place = Place(0, layout.pipeline, layout.virtual, job.micro_batches)
    fixed = SKELETONS[chosen.skeleton].fixed
    try:
        next(SKELETONS[chosen.skeleton].order(place), None)
    except ProgramError as error:
        key, fix = "[batch] sequences", f"{error.fix} per replica: {layout.data} x "
        fix += f"{job.batch.micro_batch} sequences each"
        if fixed is not None and (fixed.ranks, fixed.chunks) != (place.ranks, place.chunks):
            key = f"[layout] {'pipeline' if fixed.ranks != place.ranks else 'virtual'}"
            fix = f"use pipeline = {fixed.ranks} and virtual = {fixed.chunks}"
        raise SpecError(error.what, place=f"{job.path or 'job'} {key}", fix=fix) from None
