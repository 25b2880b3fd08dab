"""The rows: which devices, which link, and who runs on them.

Peers take the planner's order of devices, or the first devices where others are better left idle.
"""

from __future__ import annotations

from dataclasses import dataclass

from cases import Case, Hosts

MODEL = "deep"
BASE = Case("", model=MODEL, sequences=24, fits_itself=True, steps=3, warm_up=1)


@dataclass(frozen=True)
class Shape:
    """A peer, and its degrees; it leaves out the last devices where these are fewer."""

    method: str
    pipeline: int
    data: int

    @property
    def ranks(self) -> int:
        return self.pipeline * self.data


@dataclass(frozen=True)
class Row:
    """Devices, and what is run on them: ours as planned, and what it is compared with."""

    name: str
    shares: tuple[float, ...]
    link: str
    peers: tuple[Shape, ...] = ()
    pipeline: int | None = None  # plans of this degree alone; None: any
    equal: bool = False  # ours with equal layers too
    fewer: int | None = None  # ours planned for the first so many devices too
    hosts: Hosts | None = None  # where they hold several devices, or stand on two sites

    @property
    def case(self) -> Case:
        """All devices as one pipeline; a plan says otherwise."""
        ranks = len(self.shares)
        return BASE.but(
            name=self.name,
            pipeline=ranks,
            shares=self.shares,
            link=self.link,
            hosts=self.hosts,
        )


def _peers(ranks: int) -> tuple[Shape, ...]:
    """Pipelines are cut by hand, replicas get equal shares of the batch."""
    square = (ranks // 2, 2) if ranks in (4, 8) else (ranks, 1)
    pairs = (Shape("pp+ddp", *square),) if square[1] > 1 else ()
    return (
        Shape("pp", ranks, 1),
        *pairs,
        Shape("ddp", 1, ranks),
        Shape("fsdp2-kept", 1, ranks),
        Shape("deepspeed", *square),
    )


ROWS = (
    Row("split, 1 Gbit/s", (0.5, 1.0), "1 Gbit/s", pipeline=2, equal=True),
    Row("split, 100 Mbit/s", (0.5, 1.0), "100 Mbit/s", pipeline=2, equal=True),
    Row("peers, two kinds", (0.5, 1.0), "1 Gbit/s", _peers(2)),
    Row("peers, three kinds", (0.25, 0.5, 1.0), "1 Gbit/s", _peers(3)),
    Row("peers, four ranks", (0.25, 0.25, 0.5, 0.5), "100 Mbit/s", _peers(4)),
    Row(
        "peers, slow switch",
        (0.5, 0.5, 0.25, 0.25),
        "50 Mbit/s",
        (*_peers(4), Shape("pp", 3, 1)),
    ),
    Row(
        "hosts of 3, 2, 3",
        (0.2, 0.2, 0.2, 0.3, 0.3, 0.15, 0.15, 0.15),
        "100 Mbit/s",
        _peers(8),
        hosts=Hosts((3, 2, 3), inside="1 Gbit/s"),
    ),
    Row(
        "two sites",
        (0.5, 0.5, 0.3, 0.3),
        "1 Gbit/s",
        (*_peers(4), Shape("pp", 2, 1), Shape("ddp", 1, 2)),
        hosts=Hosts((1, 1, 1, 1), first_site=2),
    ),
    Row("straggler", (0.6, 0.6, 0.1), "1 Gbit/s", fewer=2),
)
