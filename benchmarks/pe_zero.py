"""Pipeline-efficient ZeRO against level 3 under 1F1B, in simulation: what it gains on slow links.

    python benchmarks/pe_zero.py [--ranks 2 4] [--micro-batches 4 8 16]

Both keep views sharded. Level 3 under 1F1B gathers a unit's view for every micro-batch, in forward
and in backward: 2 M gathers and a reduction a step. `pe-zero` takes all micro-batches of a unit
before the next unit, and gathers once a pass: 2 gathers and a reduction, whatever M. Without either
(`ratrain`, views kept) there are one of each.

`gain`: what the simulator says of the proved programs. `formula`: max(compute, link) of the one by
that of the other, the link carrying 4 (n-1)/n bytes a parameter for every gather and reduction of
fp32: what steps would take if each hid behind the other as far as it can; (2 M + 1) / 3 where the
link alone counts. `gathers`: of each unit in a step. `peak`: the proven peak of a rank, MB.

The same rows as real runs, beside FSDP2 (root; the machine must be quiet):

    python benchmarks/runtime/sweep.py --layout "data 2" "data 4" --variant wide \\
        --link "50 Mbit/s" "100 Mbit/s" "300 Mbit/s" "1 Gbit/s" \\
        --ours pe-zero zero3-heavy --peers fsdp2
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from ratrain.describe.job import (
    Batch,
    ClusterChoice,
    JobSpec,
    LayoutSpec,
    ModelChoice,
    ScheduleSpec,
)
from ratrain.describe.presets import cluster_preset, model_preset
from ratrain.describe.strict import FrozenMap
from ratrain.plan.case.case import case_of
from ratrain.program.kind import Kind, Lane
from ratrain.simulate.long import simulate_proved
from ratrain.simulate.simulate import Simulation

MEGABITS = (50, 100, 300, 1000)
TOKENS = 128


@dataclass(frozen=True)
class Stepped:
    """What the simulator says of one method, and what the formula does."""

    step_s: float
    formula_s: float
    gathers: int
    reductions: int
    peak_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[4, 8, 16])
    asked = parser.parse_args()
    heads = ("level 3", "pe-zero", "kept", "gain", "formula", "gathers", "peak 3", "peak pe")
    print("ranks  M  Mbit/s {:>9}{:>9}{:>9}{:>7}{:>9}{:>10}{:>8}{:>9}".format(*heads))
    for ranks in asked.ranks:
        for micro_batches in asked.micro_batches:
            for megabits in MEGABITS:
                level3, pe_zero, kept = (
                    _stepped(name, ranks, micro_batches, megabits)
                    for name in ("zero3-heavy", "pe-zero", "ratrain")
                )
                print(
                    f"{ranks:5}{micro_batches:3}{megabits:8} {level3.step_s:9.2f}"
                    f"{pe_zero.step_s:9.2f}{kept.step_s:9.2f}"
                    f"{level3.step_s / pe_zero.step_s:6.2f}x"
                    f"{level3.formula_s / pe_zero.formula_s:8.2f}x"
                    f"{level3.gathers:6} / {pe_zero.gathers}"
                    f"{level3.peak_bytes / 1e6:8.0f}{pe_zero.peak_bytes / 1e6:9.0f}",
                    flush=True,
                )


def _stepped(schedule: str, ranks: int, micro_batches: int, megabits: int) -> Stepped:
    case = case_of(_job(schedule, ranks, micro_batches, megabits))
    simulation = simulate_proved(case.proved, case.costs)
    table, units = simulation.program.table, len(simulation.program.table.states.units.rank)
    gathers, reductions = (
        int(table.is_any(*kinds).sum())
        for kinds in ((Kind.Gather_F, Kind.Gather_B, Kind.PrefetchW), (Kind.GradSync,))
    )
    return Stepped(
        simulation.step_time_s,
        _formula_s(simulation),
        gathers // units,
        reductions // units,
        simulation.bound_bytes,
    )


def _formula_s(simulation: Simulation) -> float:
    """The longer of a rank's compute and the bytes of its gathers and reductions at the link's
    rate: latencies, and what must wait for what, are not in it."""
    table, costs = simulation.program.table, simulation.costs
    first = table.rank == 0
    compute_s = costs.fixed_s[first & (table.lane == Lane.COMPUTE)].sum()
    moved = first & ((table.lane == Lane.REDUCE) | (table.lane == Lane.GATHER))
    moved &= costs.volume_bytes > 0
    link_s = (costs.volume_bytes[moved] / simulation.rates[costs.link[moved]]).sum()
    return float(max(compute_s, link_s))


def _job(schedule: str, ranks: int, micro_batches: int, megabits: int) -> JobSpec:
    """The regime `wide` of the runtime's benchmarks, on emulated devices of the preset cpu-lab."""
    model = replace(
        model_preset("small-llama"),
        hidden=288,
        layers=5,
        heads=4,
        kv_heads=2,
        head_dim=72,
        ffn=768,
        vocab=9000,
    )
    cluster = cluster_preset("cpu-lab")
    room = replace(cluster.links["room"], bandwidth_bytes_per_s=megabits * 1e6 / 8)
    return JobSpec(
        ModelChoice(model, TOKENS),
        ClusterChoice(replace(cluster, links=FrozenMap({**cluster.links, "room": room})), ranks),
        Batch(ranks * micro_batches),
        LayoutSpec(1, data=ranks),
        ScheduleSpec(schedule, dtype="fp32"),
    )


if __name__ == "__main__":
    main()
