"""The rows: which devices, which link, and who runs on them.

The planner tries devices in this order and in the other; peers take the one that it chooses.
"""

from __future__ import annotations

from dataclasses import dataclass

from cases import Case

MODEL = "deep"
BASE = Case("", model=MODEL, sequences=24, fits_itself=True, steps=3, warm_up=1)


@dataclass(frozen=True)
class Shape:
    """A peer, and its degrees."""

    method: str
    pipeline: int
    data: int


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

    @property
    def case(self) -> Case:
        """All devices as one pipeline; a plan says otherwise."""
        ranks = len(self.shares)
        return BASE.but(name=self.name, pipeline=ranks, shares=self.shares, link=self.link)


def _peers(ranks: int) -> tuple[Shape, ...]:
    """Pipelines are cut by hand, replicas get equal shares of the batch."""
    pairs = (Shape("pp+ddp", 2, ranks // 2),) if ranks == 4 else ()
    square = (2, ranks // 2) if ranks == 4 else (ranks, 1)
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
    Row("straggler", (0.6, 0.6, 0.1), "1 Gbit/s", fewer=2),
)
