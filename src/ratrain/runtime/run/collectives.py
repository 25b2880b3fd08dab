"""Which collectives a run's replicas use, and in which order they add: settled before it starts."""

from __future__ import annotations

from dataclasses import dataclass, field

from ratrain.cost.algorithms import AUTO, DIRECT
from ratrain.cost.exchanges import exchange_of, order_words
from ratrain.plan import Case
from ratrain.plan.layout import widened
from ratrain.runtime.seats import Seats, holders_of


@dataclass(frozen=True)
class Chosen:
    """A run's collectives. `reduces_by` and `gathers_by` name those of each unit where the job
    leaves the choice ("auto"); `sum_order` is as `order_words` has it."""

    collective: str
    reduces_by: dict[str, str] = field(default_factory=dict[str, str])
    gathers_by: dict[str, str] = field(default_factory=dict[str, str])
    hosts: tuple[int, ...] = ()
    sum_order: str = ""


def chosen_collectives(case: Case, seats: Seats, hosts: tuple[int, ...]) -> Chosen:
    """The collectives of a run whose world ranks are on these hosts. An algorithm that is no
    reduce-scatter is refused."""
    setup, name = case.proved.program.setup, case.settled.job.collective
    if max(setup.holders.values()) == 1 or name == DIRECT or (setup.averages and setup.sites):
        return Chosen(name)
    reduces_by, gathers_by = _fastest(case) if name == AUTO else ({}, {})
    reductions = dict.fromkeys(
        (reduces_by.get(unit, name), tuple(hosts[rank] for rank in ranks))
        for tensor in range(seats.tensor)
        for unit, ranks in holders_of(setup, seats, tensor).items()
        if len(ranks) > 1  # of one holder nothing is reduced, and nothing was chosen
    )
    for by, group in reductions:
        exchange_of(by, group)
    return Chosen(name, reduces_by, gathers_by, hosts, order_words(reductions))


def _fastest(case: Case) -> tuple[dict[str, str], dict[str, str]]:
    """What the prediction took for each unit: by what it is reduced, and gathered."""
    setup = case.proved.program.setup
    names = [unit.name for member in setup.members for unit in member.units]
    reduces_by: dict[str, str] = {}
    gathers_by: dict[str, str] = {}
    for name, place in zip(names, case.unit_places(), strict=True):
        if place.group is None:  # nobody else holds it
            continue
        reduces_by.setdefault(name, place.group.chosen(place.reduced_bytes, widened(case.job)))
        gathers_by.setdefault(name, place.group.chosen(place.view_bytes, 1.0))
    return reduces_by, gathers_by
