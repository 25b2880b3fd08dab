"""A plan in words and as JSON. Replicas that are divided alike are a count, and what they are is
said once; where they differ each sort of them says it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from ratrain.cost.algorithms import Hosts
from ratrain.cost.compute import case_of_block
from ratrain.cost.gpu_layer import Execution
from ratrain.cost.measured import Unmeasured, conditions, measured
from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec, LayoutSpec, ScheduleSpec
from ratrain.describe.lines import wrapped
from ratrain.describe.ranges import (
    RANKS,
    STAGES,
    Nouns,
    write_degrees,
    write_kinds,
    write_list,
    write_ranges,
)
from ratrain.describe.staging import network_words
from ratrain.describe.units import counted
from ratrain.plan.file.form import share_text
from ratrain.plan.layout.enumerate import kinds_of_block
from ratrain.plan.layout.links import collective_words
from ratrain.plan.layout.placement import PlacedReplica
from ratrain.plan.layout.plan import Plan
from ratrain.plan.layout.sizes import gradients_in, optimizer_words, own_words, travels
from ratrain.program.promise import loss_words
from ratrain.program.replicas import Recovery
from ratrain.program.skeletons import SKELETONS
from ratrain.program.strategies import STRATEGIES, Strategy

ACTIVATIONS = {
    Recovery.NONE: ("kept", "kept"),
    Recovery.SELECTIVE: ("scores recomputed", "kept without attention scores"),
    Recovery.SPILL: ("in another tier", "kept in another tier"),
    Recovery.FORWARD: ("recomputed", "recovered ahead of backward"),
    Recovery.BACKWARD: ("recomputed", "recovered when backward arrives"),
}
"""What becomes of a stage's activations: for a table, and in a sentence, which says when."""


class InWords(ABC):
    """What words need of a case, and what they make of it."""

    plan: Plan
    beside: tuple[str, ...]

    @cached_property
    @abstractmethod
    def settled(self) -> Plan:
        """The plan with the collective by which its replicas reduce: "auto" may come to one."""

    # ---- as JSON -------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """What the job is and what was chosen for it. What replicas differ in stands with each."""
        plan, job, cut = self.plan, self.plan.job, self._cut()
        return {
            "model": job.model.spec.name,
            "sequence_length": job.model.sequence_length,
            "cluster": job.cluster.spec.name,
            "devices": job.cluster.devices,
            "idle_devices": [device.index for device in plan.idle],
            "data": plan.setup.data,
            "sequence_parallel": plan.sequence_parallel,
            **(cut if plan.is_layout else dict.fromkeys(cut)),
            **({} if plan.is_layout else {"replicas": list(map(self._facts_of, plan.replicas))}),
            "recovery_buffer": plan.buffer,
            "micro_batches": [replica.micro_batches for replica in plan.replicas],
            "schedule": job.schedule.name,
            "order": plan.strategy.skeleton,
            "without": list(job.schedule.without),
            "sharding": plan.strategy.sharding,
            "gradients": self._gradients,
            "backend": job.schedule.backend,
            "dtype": job.schedule.dtype,
            "dtypes": {k: d for k, d in job.dtypes.items() if k not in plan.idle_kinds},
            "gradient_dtype": job.schedule.gradient_dtype,
            "gradient_wire": job.schedule.gradients_travel_in,
            "boundary_wire": job.schedule.boundaries_travel_in,
            "error_feedback": job.schedule.error_feedback,
            "collective": job.collective,
            "network": job.train.network,
            "reversed_kinds": plan.reversed_kinds,
            "measured_times": plan_measured(plan),
        }

    def run_facts(self) -> dict[str, Any]:
        """The same with figures of the whole run, where those of its replicas differ."""
        return {**self.facts(), **self._cut()}

    def plan_json(self) -> dict[str, Any]:
        """The same, where replicas divided alike say their micro-batches once."""
        alike = {"micro_batches": self.plan.alike.micro_batches} if self.plan.is_layout else {}
        return {**self.facts(), **alike}

    def _cut(self) -> dict[str, Any]:
        """How replicas are divided: the ranks of the largest, and the first's layers."""
        replicas = self.plan.replicas
        return {
            "pipeline": max(replica.ranks for replica in replicas),
            "tensor": max(max(replica.tensor) for replica in replicas),
            "virtual": max(replica.layout.virtual for replica in replicas),
            "layers_per_stage": list(replicas[0].layers),
            "activations": self._activations,
            "recovery": [mode.value for mode in replicas[0].recovery],
            "micro_batch": replicas[0].micro_batch,
        }

    def _facts_of(self, replica: PlacedReplica) -> dict[str, object]:
        return {
            "count": len(replica.members),
            "numbers": list(replica.members),
            "device_kinds": list(replica.kinds),
            "budget_bytes": [self.plan.job.budget_of(group[0].kind) for group in replica.groups[0]],
            "pipeline": replica.layout.pipeline,
            "tensor": list(replica.tensor),
            "virtual": replica.layout.virtual,
            "layers_per_stage": list(replica.layers),
            "micro_batch": replica.micro_batch,
            "micro_batch_of_ranks": list(replica.sizes),
            "micro_batches": replica.micro_batches,
            "serves": [share_text(share) for share in replica.serves],
            "ranks_of_places": [list(ranks) for ranks in replica.places],
            "activations": _activations_of(replica),
        }

    # ---- in lines of at most 80 columns ----------------------------------------------------

    def headline(self, *, whole: bool = False) -> list[str]:
        """What the job is and what was chosen for it. `whole`: all that was chosen."""
        lines = [*self._lines(whole=whole), *self.beside]
        indents = ("    " if line.startswith(" ") else "  " for line in lines)
        cut = map(wrapped, lines, indents)
        return [part for parts in cut for part in parts]

    def _lines(self, *, whole: bool) -> Iterator[str]:
        plan, job = self.plan, self.plan.job
        divided = ", sequence parallel" * plan.sequence_parallel
        yield f"{job.model.spec.name} on {job.cluster.devices} x {job.cluster.spec.name}: " + (
            f"{self._shapes}{divided}{self._rounds}"
        )
        without = f" without {', '.join(job.schedule.without)}" if job.schedule.without else ""
        yield (
            f"{job.schedule.name}{without}: gradients {self._gradients}"
            f"{gradients_in(job.schedule)}, sharding level {plan.strategy.sharding}"
        )
        yield from order_words(job.schedule, plan.strategy)
        yield from self._of_replicas(whole=whole)
        yield from travels(job, plan.idle_kinds)
        yield from optimizer_words(job)
        if job.schedule.mirror:
            yield f"mirrored: {loss_words(replace(plan.setup, mirrored=True))}"
        if job.cluster.devices > 1:
            yield from network_words(job.cluster.spec, job.cluster.kinds, job.train)
        yield from own_words(job)
        yield from collective_words(self.settled.job, self._reducing_hosts)
        yield from plan_measured(plan)
        if plan.reversed_kinds:
            yield "device kinds in reversed order: the last hosts hold the first stages"
        if plan.idle:
            kinds = write_kinds([device.kind.name for device in plan.idle])
            numbers = write_ranges([device.index for device in plan.idle])
            yield f"idle: {counted(len(plan.idle), 'device')}, {numbers} ({kinds})"

    def _of_replicas(self, *, whole: bool) -> Iterator[str]:
        """How replicas are divided, and what they keep: in one line for each sort of them."""
        if not self.plan.is_layout:
            for each in zip(self.plan.replicas, self.plan.setup.first_rank, strict=True):
                yield from _lines_of(*each)
            return
        replica = self.plan.alike
        yield f"activations {self._activations}"
        if whole:
            ahead = Recovery.FORWARD in replica.recovery
            yield f"layers per stage {write_list(replica.layers, STAGES)}; " + (
                f"{_share_words(replica)} per replica"
                + f"; recovery buffer {self.plan.buffer}" * ahead
            )

    @property
    def _gradients(self) -> str:
        """Where they add up."""
        plan = self.plan
        sharded = plan.mode.sharded_gradients and plan.strategy.sharding >= 2 and plan.setup.reduces
        return "sharded" if sharded else "local"

    @property
    def _activations(self) -> str:
        """What its replicas keep and recover, once where all do the same."""
        words = [_activations_of(replica) for replica in self.plan.replicas]
        if len(set(words)) == 1:
            return words[0]
        named = zip(self.plan.replicas, words, strict=True)
        return "; ".join(f"replica {', '.join(map(str, r.members))}: {text}" for r, text in named)

    @property
    def _reducing_hosts(self) -> Iterator[Hosts]:
        """Of each rank of replicas divided alike, the hosts of those that reduce its gradients."""
        placed = self.plan.placed
        if placed is not None and placed.layout.data > 1:
            for rank in range(placed.layout.pipeline):
                yield placed.data_group(rank).hosts

    # ---- names -----------------------------------------------------------------------------

    @property
    def _shapes(self) -> str:
        """ "pipeline 4 x data 2 x tensor 2"; or how many replicas, of how many shapes."""
        plan, data = self.plan, self.plan.setup.data
        if plan.is_layout:
            tensor = f" x tensor {plan.layout.tensor}" if plan.layout.tensor > 1 else ""
            return f"pipeline {plan.layout.pipeline} x data {data}{tensor}"
        shapes = f"of {len(plan.replicas)} shapes" if len(plan.replicas) > 1 else "all alike"
        return f"{counted(data, 'replica')} {shapes}" if data > 1 else "1 replica"

    @property
    def _rounds(self) -> str:
        """How many stages a rank holds, where these are several and each replica's."""
        virtual = self.plan.alike.layout.virtual
        return f", {virtual} stages per rank" if virtual > 1 and self.plan.is_layout else ""

    @property
    def name(self) -> str:
        """What tells it from other plans of the job, in a sentence: "pipeline 4 x data 2,
        micro-batch 1", and its order where another one was chosen; of replicas that differ their
        layers: "5 + 2 + 1 layers | 8 layers"."""
        if self.plan.is_layout:
            order = order_name(self.plan.job.schedule)
            named = f"{self._shapes}{self._rounds}"
            named += ", sequence parallel" * self.plan.sequence_parallel
            named += f", micro-batch {self.plan.alike.micro_batch}"
            return f"{named}, order {order}" if order else named
        cuts = [" + ".join(map(str, r.layers)) for r in self.plan.replicas for _ in r.members]
        return " | ".join(f"{cut} layers" for cut in cuts[:8]) + " | ..." * (len(cuts) > 8)

    @property
    def short_name(self) -> str:
        """The same in a column of a table: "p 16 x d 16 x t 1"; "t 4+s" with sequence parallelism;
        virtual stages where there are any. Of replicas that differ what each is."""
        if not self.plan.is_layout:
            return " + ".join(map(_replica_words, self.plan.replicas))
        layout = self.plan.layout
        divided = "+s" if layout.sequence_parallel else ""
        virtual = f" x v {layout.virtual}" if layout.virtual > 1 else ""
        return f"p {layout.pipeline} x d {layout.data} x t {layout.tensor}{divided}{virtual}"

    @property
    def in_brief(self) -> str:
        """The same beside plans of other jobs, with what becomes of activations."""
        if not self.plan.is_layout:
            return self._shapes
        kept = (ACTIVATIONS[mode][0] for mode in self.plan.alike.recovery)
        return f"{self.name}; {', '.join(dict.fromkeys(kept))}"

    @property
    def details(self) -> tuple[str, ...]:
        """What the name leaves out."""
        mode, replicas = self.plan.mode, self.plan.replicas
        states = f"sharding level {mode.sharding} (ZeRO-{mode.sharding}), gradients "
        states += "sharded" if mode.sharded_gradients else "local"
        if not self.plan.is_layout:
            return (*map(_details_of, replicas), states)
        layers = f"layers per stage: {write_list(replicas[0].layers, STAGES)}"
        return layers, f"activations: {self._activations}", states

    @property
    def shares(self) -> list[str]:
        """What part of a step each replica takes, where they differ."""
        if self.plan.is_layout:
            return []
        return [_share_of(replica, self.plan.job) for replica in self.plan.replicas]


def order_name(schedule: ScheduleSpec) -> str:
    """The compute order, where it is not the one that the schedule's name stands for."""
    asked = schedule.skeleton
    return "" if asked in (None, STRATEGIES[schedule.name].skeleton) else asked or ""


def order_words(schedule: ScheduleSpec, strategy: Strategy) -> list[str]:
    """That order as a line of a headline, and what it does at other times than 1F1B."""
    name, together = order_name(schedule), SKELETONS[strategy.skeleton].together
    if together > 1:
        name = name or strategy.skeleton
        return [f"order {name}: a step's first and last {together} micro-batches go layer by layer"]
    if name == "zb-h1":
        return [f"order {name}: weight gradients wait, and fill the pipeline's gaps"]
    return [f"order {name}"] if name else []


def recovery_words(modes: tuple[Recovery, ...], of: Nouns = STAGES, first: int = 0) -> str:
    """What the stages do: "kept on stages 0-2; recovered ahead of backward on stage 3"; or what
    other things do, numbered from `first`."""
    if len(set(modes)) == 1:
        return f"{ACTIVATIONS[modes[0]][1]} on every {of[0]}"
    parts: list[str] = []
    for known, (_, text) in ACTIVATIONS.items():
        numbers = [number for number, mode in enumerate(modes, first) if mode is known]
        if numbers:
            parts.append(f"{text} on {of[len(numbers) > 1]} {write_ranges(numbers)}")
    return "; ".join(parts)


def _activations_of(replica: PlacedReplica, first_rank: int = 0) -> str:
    """What a replica keeps and recovers: "kept on every stage". Where stages have several members
    that differ, what its ranks do, numbered from `first_rank`."""
    if not replica.has_members or len(set(replica.recovery)) == 1:
        return recovery_words(replica.recovery)
    return recovery_words(replica.recovery, RANKS, first_rank)


def _share_words(replica: PlacedReplica) -> str:
    """A replica's share of a step: "9 micro-batches of 1 sequence"."""
    count, size = replica.micro_batches, counted(replica.micro_batch, "sequence")
    return f"{count:,} micro-batch{'es' * (count != 1)} of {size}"


def _parts_of(replica: PlacedReplica) -> list[str]:
    """Its share, and how many sequences its ranks compute at once, where they differ in that."""
    at_once = f"sequences at once per rank {write_list(replica.sizes, RANKS)}"
    return [_share_words(replica), *([at_once] if replica.joined else [])]


def _replica_words(replica: PlacedReplica) -> str:
    """ "2 x 4, 2 layers on new, old with 8 micro-batches of 2 sequences"."""
    times = f"{len(replica.members)} x " if len(replica.members) > 1 else ""
    tensor = f", tensor {write_degrees(replica.tensor)}" if max(replica.tensor) > 1 else ""
    sizes = f", {write_list(replica.sizes, STAGES)} at once" if replica.joined else ""
    members = " members" if replica.has_members else ""
    return (
        f"{times}{write_list(replica.layers, STAGES)} layers on {write_list(replica.kinds, STAGES)}"
        f"{members}{tensor} with {_share_words(replica)}{sizes}"
    )


def _details_of(replica: PlacedReplica) -> str:
    """Its numbers, layers, degrees, share and activations."""
    return (
        f"replica {write_ranges(replica.members)}: layers per stage "
        f"{write_list(replica.layers, STAGES)}, tensor degree {write_degrees(replica.tensor)}, "
        f"{', '.join(_parts_of(replica))}, activations {_activations_of(replica)}"
    )


def _share_of(replica: PlacedReplica, job: JobSpec) -> str:
    """ "Replica 0: 9 micro-batches of 1, 37.5 % of the sequences"."""
    count = len(replica.members)
    several, each = ("s", " each") if count > 1 else ("", "")
    return (
        f"Replica{several} {write_ranges(replica.members)}: {replica.micro_batches} micro-batches "
        f"of {replica.micro_batch}{each}, "
        f"{100 * count * replica.sequences / job.batch.sequences:.1f} % of the sequences"
    )


def _lines_of(replica: PlacedReplica, first_rank: int) -> Iterator[str]:
    """A sort of replicas: how many, its ranks, what they hold, on what, and its share; and a line
    for each stage of several members: "  stage 1: rank 1 serves 0-5, 7; rank 2 serves 6"."""
    ranks = f"rank{'s' * (replica.ranks > 1)} "
    ranks += write_ranges(range(first_rank, first_rank + replica.ranks))
    parts = (
        f"layers per stage {write_list(replica.layers, STAGES)}",
        f"tensor degree {write_degrees(replica.tensor)}",
        f"on {write_kinds(replica.kinds)}",
        *_parts_of(replica),
        f"activations {_activations_of(replica, first_rank)}",
    )
    count = len(replica.members)
    alike = f"{count} replicas, each like {ranks}" if count > 1 else f"1 replica ({ranks})"
    yield f"{alike}: {'; '.join(parts)}"
    for place, members in enumerate(replica.places):
        if len(members) > 1:
            stages = range(place, replica.layout.stages, replica.layout.pipeline)
            served = (
                f"rank {first_rank + r} serves {share_text(replica.serves[r])}" for r in members
            )
            yield f"  stage {write_ranges(stages)}: {'; '.join(served)}"


# ---- where times come from: a layer profile, read how, or a device's rates ----------------


def plan_measured(plan: Plan) -> list[str]:
    """One sentence for each device kind of a plan that has a layer profile, and degree."""
    sentences: dict[str, None] = {}
    for replica in plan.replicas:
        for rank, group in enumerate(replica.groups[0]):
            kind, job, layout = group[0].kind, plan.job_of(replica, rank), replica.layout_of(rank)
            if kind.layer_profile:
                sentences[f"times on {kind.name}: {'; '.join(_told(job, layout, kind))}"] = None
    return list(sentences)


def left_out_words(job: JobSpec) -> list[str]:
    """What a search did not try because the model's layers were not measured in it: one sentence
    for each device kind on which they were measured at all."""
    layer = kinds_of_block(job)[1]
    sentences: list[str] = []
    for kind in job.cluster.kinds:
        case = case_of_block(layer, job.model.sequence_length, 1, job.dtype_of(kind))
        known = [
            other
            for other in conditions(kind, case)
            if (other.sequence, other.dtype) == (case.sequence, case.dtype)
        ]
        if known:
            degrees = sorted({other.tensor for other in known})
            divided = "" if any(other.sequence_parallel for other in known) else "out"
            sentences.append(
                f"layers were measured on {kind.name} at tensor {', '.join(map(str, degrees))}, "
                f"with{divided} sequence parallelism: no other degree was tried"
            )
    return sentences


def _told(job: JobSpec, layout: LayoutSpec, kind: DeviceKind) -> Iterator[str]:
    """Blocks of one origin together, layers first."""
    by_origin: dict[str, list[str]] = {}
    embedding, layer, head = kinds_of_block(job)
    for block in (layer, embedding, head):
        case = case_of_block(
            block,
            job.model.sequence_length,
            layout.tensor,
            job.schedule.dtype,
            Execution(layout.sequence_parallel),
        )
        try:
            known = measured(kind, case, job.batch.micro_batch, job.model.spec.name)
        except Unmeasured:  # no stage of this kind holds it, else nothing could be priced
            continue
        origin = known.how if known else "from its rates, not measured"
        name = "layers" if block.kind == "layer" else block.kind
        by_origin.setdefault(origin, []).append(name)
    for origin, blocks in by_origin.items():
        yield f"{', '.join(blocks)} {origin}"
