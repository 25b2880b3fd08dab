"""Area of a router with collectives, in gate equivalents (arXiv 2603.26438; 7 nm, 1 GHz).

The paper gives shares of a baseline router and two absolute figures; the baseline follows from
them. Scaling to other widths and port counts is ours: multiplexers with width times ports, the
header queue with its depth, the request arbiters with the output ports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Confidence = Literal["published", "derived", "scaled"]

MULTICAST_SHARE = 0.058
PARALLEL_SHARE = 0.087
ALL_SHARE = {"arXiv v2": 0.169, "MLSys 2026": 0.165}
WIDE_REDUCTION_KGE = 13.62
WIDE_REDUCTION_COMBINATIONAL = 0.563
TILE_KGE = 5600.0

_WIDE_BITS, _PORTS, _HEADER_SLOTS = 512, 5, 5 + 2


@dataclass(frozen=True)
class AreaRow:
    """A router with all features up to this one."""

    feature: str
    kge: float
    added_kge: float
    overhead: float
    """Over the baseline router, as a share."""
    confidence: Confidence


def baseline_kge(version: str = "arXiv v2") -> float:
    """13.62 kGE of wide reduction are the share that takes 8.7 % to the total: 166-175 kGE."""
    return WIDE_REDUCTION_KGE / (ALL_SHARE[version] - PARALLEL_SHARE)


def router_area(
    *,
    wide_bits: int = _WIDE_BITS,
    ports: int = _PORTS,
    pipeline_cycles: int = 5,
    version: str = "arXiv v2",
) -> list[AreaRow]:
    """Cumulative area, feature by feature; `scaled` unless the shape is the published one."""
    base = baseline_kge(version)
    width = wide_bits * ports / (_WIDE_BITS * _PORTS)
    published = wide_bits == _WIDE_BITS and ports == _PORTS and pipeline_cycles == 5
    # The baseline is queues and crossbar; both grow with width times ports.
    base *= width
    multicast = MULTICAST_SHARE * baseline_kge(version) * width
    parallel = (PARALLEL_SHARE - MULTICAST_SHARE) * baseline_kge(version) * ports / _PORTS
    muxes = WIDE_REDUCTION_KGE * WIDE_REDUCTION_COMBINATIONAL * width
    header = WIDE_REDUCTION_KGE * (1 - WIDE_REDUCTION_COMBINATIONAL)
    wide = muxes + header * (pipeline_cycles + 2) / _HEADER_SLOTS
    rows: list[AreaRow] = []
    total = 0.0
    for feature, added in (
        ("baseline router", base),
        ("+ multicast and response merge", multicast),
        ("+ parallel reduction (barrier)", parallel),
        ("+ wide reduction through DCA", wide),
    ):
        total += added
        tag: Confidence = "scaled" if not published else "derived" if not rows else "published"
        rows.append(AreaRow(feature, total, added, total / base - 1, tag))
    return rows


def tile_share(version: str = "arXiv v2") -> float:
    """Collectives as a share of the whole tile of 5.6 MGE (the paper says below 1 %)."""
    return ALL_SHARE[version] * baseline_kge(version) / TILE_KGE
