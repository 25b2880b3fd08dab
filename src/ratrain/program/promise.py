"""What the loss of one rank, or of one host, costs a run whose other ranks go on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ratrain.describe.ranges import write_ranges
from ratrain.program.setup import Setup


def buddies(hosts: Sequence[object], place: int) -> tuple[int, int]:
    """Of a holder its buddy, and whose buddy it is: so many places further on, and back, that as
    many as can be have theirs on another host. `hosts`: of all holders."""
    count = len(hosts)

    def apart(shift: int) -> int:
        return sum(hosts[i] != hosts[(i + shift) % count] for i in range(count))

    shift = max(range(1, count), key=apart)  # the least of the best
    return (place + shift) % count, (place - shift) % count


def keeps_every_step(setup: Setup) -> bool:
    """Whether the others hold a whole version of all states at every moment, none older than the
    last step that was told of."""
    names = set(setup.holders) - setup.frozen
    return setup.mirrored and all(setup.is_shared(name) for name in names)


def needed_hosts(sharing: Iterable[Sequence[int]], *, divided: bool) -> set[int]:
    """Hosts that some part of the states does not outlive. `sharing`: of each unit, and each rank
    of its tensor groups, the hosts of those that share it; `divided`: each has its own part alone,
    and a buddy a copy of that."""
    needed = set[int]()
    for hosts in sharing:
        if divided:
            buddy = [hosts[buddies(hosts, place)[0]] for place in range(len(hosts))]
            needed |= {own for own, other in zip(hosts, buddy, strict=True) if own == other}
        elif len(set(hosts)) == 1:
            needed.add(hosts[0])
    return needed


def loss_words(
    setup: Setup, hosts: Sequence[int] = (), sharing: Iterable[Sequence[int]] = ()
) -> str:
    """`hosts`: of each rank of a run, where they are known; `sharing`: as `needed_hosts` has it."""
    if not keeps_every_step(setup):
        return "with one rank at most the steps since the latest checkpoint are lost"
    words = "no step is lost with one rank"
    if len(set(hosts)) in (0, 1, len(hosts)):
        return words  # nobody knows of hosts, there is one, or each is a rank
    needed = needed_hosts(sharing, divided=setup.sharding > 0)
    if not needed:
        return f"{words}, or with one host"
    ranks = write_ranges([rank for rank, host in enumerate(hosts) if host in needed])
    return f"{words}; with a host of ranks {ranks} the steps since the latest checkpoint are"
