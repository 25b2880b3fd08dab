"""What fits a memory before anything runs: what must move where, how fast it is then, the largest
micro-batch and sequence, and the least memory that would do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ratrain.describe.job import Batch, JobSpec
from ratrain.describe.units import format_bytes
from ratrain.errors import Infeasible, RatrainError
from ratrain.plan.layout.enumerate import groups_of
from ratrain.plan.layout.tiers import KEYS, in_tier, in_tiers, tier_of, tiers_of
from ratrain.plan.price.bill import bill_of
from ratrain.plan.price.fitted import fitted
from ratrain.plan.search.layouts import Progress, Tried, search_layouts
from ratrain.program.strategies import STRATEGIES, apply_strategy
from ratrain.program.tiers import DEVICE, TIER_WORDS
from ratrain.program.uses import FREE

MOST_TOKENS = 1 << 20
"""Of a sequence, in search of the longest one."""
MOST_BYTES = 1 << 50


@dataclass(frozen=True)
class Way:
    """A way to use memory, and what comes of it. `best` is None where it does not fit. The other
    figures are by closed formulas, upper bounds of what is proved; 0 where there is none."""

    name: str
    tier: str  # where states wait
    sorts: tuple[str, ...]  # which: keys of a job
    best: Tried | None
    least_memory_bytes: int  # of each device, at this batch and sequence
    tier_bytes: int  # of the tier, on the fullest rank
    tier_has_bytes: int
    moved_bytes: int  # from the tier and back, in a step of the best plan: at least
    longest_sequence: int  # at one sequence a micro-batch
    largest_micro_batch: int  # at the sequence asked for
    tokens: int  # of a step
    rate_bytes_per_s: float  # of the tier

    @property
    def places(self) -> dict[str, str]:
        """Where each sort of states waits, by the key of a job that says so."""
        return {key: self.tier if key in self.sorts else "device" for key in KEYS}

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.best.step_s if self.best is not None else 0.0

    @property
    def memory_bytes(self) -> int:
        """The proven peak of the fullest device."""
        return self.best.bound_bytes if self.best is not None else 0

    @property
    def moving_s(self) -> float:
        """What that takes."""
        return self.moved_bytes / self.rate_bytes_per_s if self.tier else 0.0


def ways_of(job: JobSpec, progress: Progress | None = None) -> tuple[Way, ...]:
    """Each way to use the memory of a job's devices, the least work first: everything kept,
    activations computed again where they do not fit, and then optimizer states in each tier that
    its devices have."""
    return tuple(_way(*each, progress) for each in _jobs(job))


def _jobs(job: JobSpec) -> Iterator[tuple[str, str, JobSpec]]:
    on_device = in_tier(job, "device")
    if STRATEGIES[job.schedule.name].recovery.again:
        kept = replace(on_device, schedule=replace(on_device.schedule, recovery="keep-all"))
        yield "all on the device", DEVICE, kept
    yield "recompute activations", DEVICE, on_device
    for tier in tiers_of(job):
        yield f"optimizer {TIER_WORDS[tier]}", tier, in_tier(job, tier)
    for tier in tiers_of(job):
        away = in_tiers(job, *(tier,) * len(KEYS))
        if away is not None:
            yield f"everything {TIER_WORDS[tier]}", tier, away


def _way(name: str, tier: str, job: JobSpec, progress: Progress | None) -> Way:
    needed = least_tier_bytes(job) if tier else 0
    tiers = [found for kind in job.cluster.kinds if (found := tier_of(kind, tier))]
    has = min((each.capacity_bytes for each in tiers), default=0)
    best: Tried | None = None
    if needed <= has:
        tried = search_layouts(job, progress).tried
        best = tried[0] if tried else None

    def with_memory(size_bytes: int) -> bool:
        return _fits(_with_memory(job, size_bytes))

    def with_length(tokens: int) -> bool:
        model = replace(job.model, sequence_length=tokens)
        return _fits(replace(job, model=model, batch=Batch(job.batch.sequences)))

    def with_size(sequences: int) -> bool:
        return _fits(replace(job, batch=Batch(sequences * job.cluster.devices)), size=sequences)

    return Way(
        name,
        tier,
        tuple(key for key in KEYS if getattr(job, key)),
        best,
        _least(with_memory, MOST_BYTES),
        needed,
        has,
        _moved_bytes(job, best),
        _most(with_length, min(MOST_TOKENS, job.model.spec.max_positions or MOST_TOKENS))
        if needed <= has
        else 0,
        _most(with_size, 1024) if needed <= has else 0,
        job.batch.sequences * job.model.sequence_length,
        min((each.bandwidth_bytes_per_s for each in tiers), default=0.0),
    )


def _moved_bytes(job: JobSpec, best: Tried | None) -> int:
    """What the rank that moves most moves in a step: of a plan, all that its program says; of none,
    its optimizer states there and back."""
    if best is None:
        return 2 * least_tier_bytes(job) if job.optimizer_tier else 0
    table = apply_strategy(best.plan.strategy, best.plan.setup, best.plan.choices).table
    uses, states = table.uses, table.states
    below = np.array([family.tier != DEVICE for family in states.families])[states.family]
    moved = below[uses.state] & (uses.mode != FREE) & table.where("moves")[uses.op]
    sizes = np.bincount(
        table.rank[uses.op[moved]], weights=states.size_bytes[uses.state[moved]].astype(float)
    )
    return int(sizes.max(initial=0)) // table.setup.period


def _with_memory(job: JobSpec, size_bytes: int) -> JobSpec:
    """The job on devices that have so much memory."""
    spec = job.cluster.spec
    kinds = tuple(
        replace(kind, tiers=(replace(kind.memory, capacity_bytes=size_bytes), *kind.tiers[1:]))
        for kind in spec.device
    )
    cluster = replace(job.cluster, spec=replace(spec, device=kinds))
    return replace(job, cluster=cluster, schedule=replace(job.schedule, memory_budget_bytes=None))


def _fits(job: JobSpec, *, size: int | None = None) -> bool:
    """Whether any configuration fits, by closed formula; `size`: of those with such micro-batches.
    A batch that no configuration divides fits nowhere."""
    try:
        return any(
            bool((fitted(group)[1] <= 0).any())
            for group in groups_of(job)
            if size is None or group.job.batch.micro_batch == size
        )
    except RatrainError:
        return False


def least_tier_bytes(job: JobSpec) -> int:
    """What the fullest rank has all the time in another tier, where that is least."""
    every_sort = dict.fromkeys(KEYS, "device")
    kept = replace(job, schedule=replace(job.schedule, **every_sort))
    items = ["optimizer", *(["view"] if job.view_tier else [])]
    bills = [bill_of(g, np.zeros(g.layers.shape, dtype=np.int64)).items for g in groups_of(kept)]
    owned = [np.sum([of_group[item] for item in items], axis=0) for of_group in bills]
    return min(int(of_ranks.max(axis=1).min()) for of_ranks in owned)


def require_room(job: JobSpec) -> None:
    """Refuses a tier that is too small for the optimizer's states of a job that has them there."""
    needed, name = least_tier_bytes(job), job.optimizer_tier
    for kind in job.cluster.kinds:
        tier = tier_of(kind, name)
        if tier is not None and tier.capacity_bytes < needed:
            raise Infeasible(
                f"the optimizer takes {format_bytes(needed)} {TIER_WORDS[name]} of a device, and "
                f"{kind.name} has {format_bytes(tier.capacity_bytes)} there",
                place=f"{job.path or 'job'} [schedule] optimizer_tier",
                fix=f"use devices with a larger tier {name!r}, or more of them",
            )


def _least(suffices: Callable[[int], bool], most: int) -> int:
    """About the least number that suffices, within a percent; 0 where none does."""
    if not suffices(most):
        return 0
    low, high = 1, most
    while high > low * 1.01 + 1:
        middle = int((low * high) ** 0.5)
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def _most(fits: Callable[[int], bool], most: int) -> int:
    """The largest power of two that fits; 0 where not even one does."""
    number = 1
    while number * 2 <= most and fits(number * 2):
        number *= 2
    return number if number > 1 or fits(1) else 0
