"""A run whose replicas differ, out of a plan file: what its ranks and its folder need to know."""

from __future__ import annotations

from ratrain.errors import SpecError
from ratrain.plan import UnevenCase, UnevenReplica, activations_words, untrainable
from ratrain.runtime.seats import Seats


def micro_batches_of(case: UnevenCase) -> tuple[int, ...]:
    """Of each class of replicas alike, the sequences of a micro-batch."""
    return tuple(replica.micro_batch for replica in case.plan.replicas)


def devices_of(case: UnevenCase, seats: Seats) -> tuple[int, ...]:
    """The number of each world rank's device in the cluster."""
    numbers: list[int] = []
    for seat in seats.all():
        replica = case.plan.replicas[seats.replica_class[seat.data]]
        groups = replica.groups[replica.members.index(seat.data)]
        numbers.append(groups[seat.pipeline][seat.division.rank].index)
    return tuple(numbers)


def require_uneven_runnable(case: UnevenCase, place: str) -> None:
    """Refuses what a plan may say of unlike replicas, and processes cannot do yet."""
    for what, fix in untrainable(case.plan):
        raise SpecError(what, place=place, fix=fix)


def facts_of_run(case: UnevenCase) -> dict[str, object]:
    """The facts of `UnevenCase`, with figures of the whole run beside those of each replica:
    the ranks of the largest, and the cut of the first."""
    replicas = case.plan.replicas
    return {
        **case.facts(),
        "pipeline": max(replica.ranks for replica in replicas),
        "tensor": max(max(replica.tensor) for replica in replicas),
        "virtual": max(replica.layout.virtual for replica in replicas),
        "layers_per_stage": replicas[0].layout.layers,
        "activations": _activations(replicas),
    }


def _activations(replicas: tuple[UnevenReplica, ...]) -> str:
    words = [activations_words(replica) for replica in replicas]
    if len(set(words)) == 1:
        return words[0]
    named = zip(replicas, words, strict=True)
    return "; ".join(f"replica {', '.join(map(str, r.members))}: {text}" for r, text in named)
