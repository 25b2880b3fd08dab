"""`ratrain noc sweep` and `ratrain noc collective`: what the simulator measures."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratrain.cli.chips.noc_options import (
    JSON,
    one_of,
    parse_loads,
    parse_shape,
    parse_size,
    power_of_two,
    router,
    router_options,
    write,
)
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import MOST_SEED, PATH, Real, Whole
from ratrain.cli.terminal.progress import progress
from ratrain.errors import SpecError

if TYPE_CHECKING:
    from ratrain.chip.noc.collectives import Algorithm, Kind, Outcome, Request
    from ratrain.chip.noc.mesh import Run


@click.command()
@click.option("--mesh", default="8x8", show_default=True, help="columns x rows")
@click.option(
    "--pattern",
    type=click.Choice(["uniform", "transpose", "hotspot"]),
    default="uniform",
    show_default=True,
    help="where packets go",
)
@click.option(
    "--packet-flits",
    type=Whole(1, 4096),
    metavar="N",
    default=1,
    show_default=True,
    help="flits per packet",
)
@click.option(
    "--hotspot-share",
    type=Real(0, 1),
    metavar="X",
    default=0.1,
    show_default=True,
    help="fraction of packets sent to the hot node",
)
@click.option(
    "--loads",
    default="0.05:0.4:0.05",
    show_default=True,
    help="flits per node and cycle: a list or first:last:step",
)
@click.option(
    "--window",
    type=Whole(1, 10_000_000),
    metavar="N",
    default=8000,
    show_default=True,
    help="cycles measured per load",
)
@click.option(
    "--seed", type=Whole(0, MOST_SEED), default=0, show_default=True, help="seed of the traffic"
)
@router_options
@click.option("--svg", type=PATH, help="draw the curve (SVG)")
@click.option("--heat", type=PATH, help="draw the last load's link heat map (SVG)")
@JSON
def sweep(
    mesh: str,
    pattern: str,
    packet_flits: int,
    hotspot_share: float,
    loads: str,
    window: int,
    seed: int,
    fifo: int,
    vcs: int,
    link_stages: int,
    fork: str,
    svg: Path | None,
    heat: Path | None,
    as_json: bool,
) -> None:
    """Measure latency and throughput as the offered load grows.

    \b
    Example: ratrain noc sweep --mesh 8x8 --loads 0.1,0.2,0.3 --svg curve.svg
    """
    from ratrain.chip.noc import picture, traffic
    from ratrain.chip.noc.spec import MeshSpec

    columns, rows = parse_shape(mesh)
    spec = MeshSpec(columns, rows, router=router(fifo, vcs, link_stages, fork))
    kind = traffic.Traffic(one_of(traffic.PATTERNS, pattern), packet_flits, hotspot_share, seed)
    offered = parse_loads(loads)
    ordinal, total = count(1), len(offered) + 1  # the last one is saturation
    with progress("simulating", "loads") as report:
        report(0, total)
        points = traffic.sweep(
            spec, kind, offered, window=window, each=lambda _: report(next(ordinal), total)
        )
        full = traffic.saturation(spec, kind, window=window)
    if svg:
        line = [(p.offered, p.mean_latency_cycles) for p in points]
        name = f"{mesh} {pattern}, {packet_flits}-flit packets"
        write(svg, picture.curve_svg({name: line}, "Latency over load"))
    last = points[-1].link_flits[0] / window
    if heat:
        write(heat, picture.heat_svg(spec, last, f"{pattern} at {offered[-1]} flits/node/cycle"))
    if as_json:
        fields = (
            "offered accepted mean_latency_cycles p99_latency_cycles arrived_share busiest_link"
        )
        rows_out = [{f: getattr(p, f) for f in fields.split()} for p in points]
        speed = sum(p.cycles for p in points) / max(1e-9, sum(p.cpu_s for p in points))
        print_json(
            "noc sweep",
            {
                "points": rows_out,
                "saturation": full.accepted,
                "cycles_per_cpu_second": round(speed),
            },
        )
        return
    click.echo(f"{mesh} mesh, {pattern} traffic, {packet_flits}-flit packets; flits/node/cycle\n")
    click.echo(f"{'offered':>8}{'accepted':>10}{'latency':>10}{'p99':>8}{'busiest link':>14}")
    for p in points:
        mark = "  saturated" if p.saturated else ""
        click.echo(
            f"{p.offered:8.3f}{p.accepted:10.4f}{p.mean_latency_cycles:10.1f}"
            f"{p.p99_latency_cycles:8.0f}{p.busiest_link:14.3f}{mark}"
        )
    click.echo(
        f"\nsaturation: {full.accepted:.4f} accepted when every node always has more to send"
    )
    click.echo(f"\nlink load at {offered[-1]}, percent of the busier direction:\n")
    click.echo(picture.heat_text(spec, last))


@click.command()
@click.argument(
    "kind",
    type=click.Choice(
        ["multicast", "reduce", "barrier", "all-gather", "reduce-scatter", "all-reduce"]
    ),
)
@click.option("--shape", default="4x4", show_default=True, help="clusters, columns x rows")
@click.option("--size", default="4KiB", show_default=True, help="bytes per cluster")
@click.option(
    "--algorithm",
    default="all",
    show_default=True,
    help="hw, tree, seq (pipelined chain), naive or all",
)
@click.option(
    "--batches",
    type=Whole(1, 4096),
    metavar="N",
    default=4,
    show_default=True,
    help="pieces that software pipelines",
)
@click.option("--op", default="add", show_default=True, help="add, mul, min, max, umin, umax")
@click.option("--format", "form", default="fp64", show_default=True, help="fp64 .. fp8, int64 ..")
@click.option(
    "--unit",
    type=click.Choice(["rtl080", "kinput", "ideal"]),
    default="rtl080",
    show_default=True,
    help="reduction unit: 2 inputs, k inputs in turn, or all at once",
)
@click.option("--no-dca", is_flag=True, help="routers do no arithmetic")
@click.option("--from-memory", is_flag=True, help="multicast from the memory tile")
@router_options
@click.option("--heat", type=PATH, help="draw a link heat map (SVG)")
@click.option("--steps", type=PATH, help="write a page to step through it (HTML)")
@JSON
def collective(
    kind: str,
    shape: str,
    size: str,
    algorithm: str,
    batches: int,
    op: str,
    form: str,
    unit: str,
    no_dca: bool,
    from_memory: bool,
    fifo: int,
    vcs: int,
    link_stages: int,
    fork: str,
    heat: Path | None,
    steps: Path | None,
    as_json: bool,
) -> None:
    """Run one collective, in hardware and in software.

    On the simulated chip, flits carry values; the results are compared with numpy's, bit by bit.

    \b
    Example: ratrain noc collective multicast --shape 4x4 --size 8KiB \\
                 --algorithm hw --steps steps.html
    """
    from dataclasses import replace

    from ratrain.chip.noc import collectives, picture
    from ratrain.chip.noc.chip import ChipSpec
    from ratrain.chip.noc.opcodes import Format

    name: Kind = one_of(collectives.KINDS, kind)
    columns, rows = parse_shape(shape)
    names = {f.name.lower(): f for f in Format}
    if form not in names:
        raise SpecError(f"unknown format {form!r}", place="--format", fix="use " + ", ".join(names))
    spec = replace(
        router(fifo, vcs, link_stages, fork),
        reduction=unit,
        dca=not no_dca,
        reduction_latency_cycles=ChipSpec().router.reduction_latency_cycles,
    )
    chip = ChipSpec(power_of_two(columns), power_of_two(rows), router=spec)
    algorithms: tuple[Algorithm, ...] = (
        collectives.ALGORITHMS[name]
        if algorithm == "all"
        else (one_of(collectives.ALGORITHMS[name], algorithm),)
    )
    if no_dca and algorithm == "all" and name in ("reduce", "all-reduce", "reduce-scatter"):
        algorithms = tuple(a for a in algorithms if a != "hw")
    outcomes: list[Outcome] = []
    with progress("simulating", "algorithms") as report:
        report(0, len(algorithms))
        for chosen in algorithms:
            request = collectives.Request(
                name,
                chosen,
                parse_size(size),
                columns,
                rows,
                op=op,
                form=names[form],
                batches=batches,
                from_memory=from_memory,
            )
            outcomes.append(
                collectives.collective(chip, request, trace=bool(steps) and not outcomes)
            )
            report(len(outcomes), len(algorithms))
    if not outcomes:
        raise SpecError(
            f"{kind} needs the routers' arithmetic", place="--no-dca", fix="remove --no-dca"
        )
    first = outcomes[0]
    title = f"{kind} ({first.request.algorithm}) of {size} on {shape}, {first.cycles} cycles"
    if heat:
        loads = picture.link_loads(first.run, chip.mesh.plane("wide"))
        write(heat, picture.heat_svg(chip.mesh, loads, title))
    if steps:
        write(steps, picture.steps_html(first.run, title))
    if as_json:
        print_json("noc collective", {"outcomes": [_outcome_json(o) for o in outcomes]})
        return
    _print_outcomes(kind, shape, size, outcomes)
    wide = chip.mesh.plane("wide")
    if first.run.link_flits[wide].any():
        click.echo(f"\nload of the wide links ({first.request.algorithm}), percent:\n")
        click.echo(picture.heat_text(chip.mesh, picture.link_loads(first.run, wide)))


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    request: Request = outcome.request
    run: Run = outcome.run
    return {
        "kind": request.kind,
        "algorithm": request.algorithm,
        "size_bytes": 0 if request.kind == "barrier" else request.size_bytes,
        "shape": [request.columns, request.rows],
        "cycles": outcome.cycles,
        "payload_rate_bytes_per_cycle": (
            None if request.kind == "barrier" else outcome.payload_rate_bytes_per_cycle
        ),
        "clusters_checked": outcome.values_checked,
        "flits": run.ejected_flits,
        "combines": int(run.combines.sum()),
    }


def _print_outcomes(kind: str, shape: str, size: str, outcomes: list[Outcome]) -> None:
    from ratrain.describe.units import counted

    operation = kind if kind == "barrier" else f"{kind} of {size}"
    click.echo(f"{operation} on {shape} clusters\n")
    click.echo(f"{'algorithm':<11}{'cycles':>8}{'slower':>8}{'flits':>10}{'combines':>10}  values")
    best = min(o.cycles for o in outcomes)
    for o in outcomes:
        clusters = counted(o.values_checked, "cluster")
        checked = f"{clusters} equal to numpy" if o.values_checked else "-"
        click.echo(
            f"{o.request.algorithm:<11}{o.cycles:8}{o.cycles / best:7.2f}x"
            f"{o.run.ejected_flits:10}{int(o.run.combines.sum()):10}  {checked}"
        )
