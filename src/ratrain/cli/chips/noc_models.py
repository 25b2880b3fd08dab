"""`ratrain noc gemm` and `ratrain noc reproduce`: the models and what was published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ratrain.cli.chips.noc_options import JSON, one_of, parse_shape
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import Real
from ratrain.cli.terminal.progress import progress

if TYPE_CHECKING:
    from ratrain.chip.noc.costs import CollectiveCost
    from ratrain.chip.noc.energy import EnergyPoint
    from ratrain.chip.noc.gemm import Basis, Dataflow, GemmPoint
    from ratrain.chip.noc.reproduce import Figure


@click.command()
@click.argument("dataflow", type=click.Choice(["summa", "fcl"]))
@click.option(
    "--basis",
    type=click.Choice(["published", "arxiv", "rtl", "all"]),
    default="all",
    show_default=True,
    help="whose assumptions to use",
)
@click.option(
    "--simulate",
    type=click.Choice(["4", "8", "16", "32"]),
    help="also simulate a mesh of this size, with real tiles",
)
@JSON
def gemm(dataflow: str, basis: str, simulate: str | None, as_json: bool) -> None:
    """Model matrix multiplication on 4x4 to 256x256 clusters.

    summa multicasts tiles; fcl (fused concat-linear) reduces partial results; each is
    modelled with software and with hardware collectives.

    \b
    Example: ratrain noc gemm summa --basis rtl --simulate 8
    """
    from ratrain.chip.noc import gemm as models

    flow: Dataflow = "summa" if dataflow == "summa" else "fcl"
    bases: tuple[Basis, ...] = tuple(models.BASES)
    if basis != "all":
        chosen: Basis = one_of(bases, basis)
        bases = (chosen,)
    tables: dict[Basis, list[GemmPoint]] = {b: models.sweep(flow, b) for b in bases}
    runs = _simulate_gemm(flow, int(simulate)) if simulate else []
    if as_json:
        print_json(
            "noc gemm",
            {
                "dataflow": flow,
                "models": {b: [_gemm_json(p) for p in points] for b, points in tables.items()},
                "simulated": runs,
            },
        )
        return
    for b, points in tables.items():
        click.echo(f"{flow}, {b}: {models.BASES[b]}")
        click.echo(
            f"{'mesh':>9}{'compute':>9}{'load':>7}{'software':>10}{'hardware':>10}"
            f"{'speed-up':>10}{'busy':>7}{'energy':>8}"
        )
        for p in points:
            click.echo(
                f"{f'{p.mesh}x{p.mesh}':>9}{p.compute_cycles:9.0f}{p.load_cycles:7.0f}"
                f"{p.software_cycles:10.0f}{p.hardware_cycles:10.0f}{p.speedup:10.2f}"
                f"{100 * p.utilisation:6.0f}%{_energy(p).ratio:8.3f}"
            )
        click.echo()
    click.echo("energy: software / hardware, for one iteration of the whole mesh\n")
    if flow == "summa" and len(tables) > 1:
        click.echo("compute-bound with hardware collectives up to:")
        for b, points in tables.items():
            size = models.compute_bound_until(points)
            click.echo(f"  {b:<10}{size}x{size}")
        click.echo(
            "The published models charge the hardware 1 cycle per hop, the software a fixed\n"
            "barrier. The routers take 2 cycles each way, so both get slower with distance."
        )
    for result in runs:
        click.echo(
            f"simulated {result['mesh']}x{result['mesh']} {result['name']:<20}"
            f"{result['cycles']:>7.0f} cycles"
            f"{100 * result['busy']:4.0f}% busy, {result['clusters_checked']} checked"
        )


def _gemm_json(point: GemmPoint) -> dict[str, Any]:
    return {
        "mesh": point.mesh,
        "compute_cycles": point.compute_cycles,
        "load_cycles": point.load_cycles,
        "software_cycles": point.software_cycles,
        "hardware_cycles": point.hardware_cycles,
        "speedup": point.speedup,
        "utilisation": point.utilisation,
        "software_pj": _energy(point).software_pj,
        "hardware_pj": _energy(point).hardware_pj,
    }


def _energy(point: GemmPoint) -> EnergyPoint:
    from ratrain.chip.noc.chip import ChipSpec
    from ratrain.chip.noc.energy import energy
    from ratrain.chip.noc.gemm import tile_edge

    return energy(point.dataflow, point.mesh, edge=tile_edge(point.basis, ChipSpec()))


def _simulate_gemm(flow: Dataflow, size: int) -> list[dict[str, Any]]:
    from ratrain.chip.noc import gemm_simulation as simulation
    from ratrain.chip.noc.chip import ChipSpec

    chip = ChipSpec(size, size)
    ways = [(hardware, buffers) for hardware in (False, True) for buffers in (2, 3)]
    if flow == "fcl":
        ways = [(False, 0), (True, 0)]
    results: list[dict[str, Any]] = []
    with progress("simulating", "runs") as report:
        report(0, len(ways))
        for hardware, buffers in ways:
            name = "hardware" if hardware else "software"
            if flow == "fcl":
                run = simulation.simulate_fcl(chip, hardware=hardware)
            else:
                name += f", {buffers} buffers"
                run = simulation.simulate_summa(chip, hardware=hardware, buffers=buffers)
            results.append(
                {
                    "name": name,
                    "mesh": size,
                    "cycles": run.cycles,
                    "busy": run.utilisation,
                    "clusters_checked": run.clusters_checked,
                }
            )
            report(len(results), len(ways))
    return results


@click.command()
@click.option("--models-only", is_flag=True, help="skip the simulator (needs no compiler)")
@JSON
def reproduce(models_only: bool, as_json: bool) -> None:
    """Compare every published figure with ours.

    \b
    Example: ratrain noc reproduce --json
    """
    from dataclasses import asdict

    from ratrain.chip.noc import area
    from ratrain.chip.noc.reproduce import SIMULATED_FIGURES, model_figures, simulated_figures

    figures = model_figures()
    if not models_only:
        with progress("simulating", "figures") as report:
            report(0, SIMULATED_FIGURES)
            for count, figure in enumerate(simulated_figures(), start=1):
                figures.append(figure)
                report(count, SIMULATED_FIGURES)
    if as_json:
        print_json(
            "noc reproduce",
            {
                "figures": [_figure_json(f) for f in figures],
                "router_area": [asdict(row) for row in area.router_area()],
            },
        )
        return
    click.echo(f"{'':<48}{'published':>10}{'ours':>9}{'':>9}")
    for figure in figures:
        _print_figure(figure)
    misses = sum(not f.matches for f in figures)
    click.echo(f"\n{len(figures) - misses} of {len(figures)} agree to the published digits;")
    click.echo("each of the others says why it differs.")
    click.echo("\nrouter area, kGE (arXiv v2):")
    for row in area.router_area():
        click.echo(
            f"  {row.feature:<34}{row.kge:8.1f}{100 * row.overhead:7.1f} %  {row.confidence}"
        )


def _print_figure(figure: Figure) -> None:
    published = "-" if figure.published is None else f"{figure.published:g}"
    mark = "" if figure.matches else "  differs"
    if figure.difference is not None and not figure.matches:
        mark = f"  {100 * figure.difference:+.1f} %"
    click.echo(f"{figure.quantity:<48}{published:>10}{figure.ours:9.3f}{mark}")
    click.echo(f"    {figure.source}, {figure.how}")
    if figure.note:
        click.echo(_wrapped(figure.note))


def _wrapped(text: str) -> str:
    import textwrap

    return textwrap.fill(text, 78, initial_indent="    ", subsequent_indent="    ")


def _figure_json(figure: Figure) -> dict[str, Any]:
    return {
        "quantity": figure.quantity,
        "source": figure.source,
        "published": figure.published,
        "ours": figure.ours,
        "how": figure.how,
        "difference": figure.difference,
        "matches": figure.matches,
        "note": figure.note,
    }


# ---- costs ----


@click.command()
@click.option(
    "--chip",
    "mesh",
    metavar="CxR",
    help="Print the file of a chip of so many columns and rows of devices, which a device of a "
    "cluster file may name.",
)
@click.option("--clock", type=Real(0.001, 100), default=1.0, show_default=True, help="In GHz.")
@JSON
def costs(mesh: str | None, clock: float, as_json: bool) -> None:
    """Print the fitted costs of the collectives.

    cycles = L (alpha + beta beats + hop distance), with L = 1 in hardware and the number of
    levels of a software tree. Measured on the simulated chip.

    \b
    Examples:
      ratrain noc costs --json
      ratrain noc costs --chip 4x1 --clock 1.2
    """
    from dataclasses import asdict

    from ratrain.chip.noc.costs import collective_costs

    table = collective_costs()
    chip = None if mesh is None else _mesh_file(table, mesh, clock)
    if chip is not None and not as_json:
        click.echo(chip)
        return
    if as_json:
        print_json(
            "noc costs",
            {
                "costs": [{**asdict(c), "form": c.form.name.lower()} for c in table],
                **({} if chip is None else {"chip": chip}),
            },
        )
        return
    click.echo(
        f"{'collective':<19}{'format':<8}{'contention':<18}{'alpha':>7}{'beta':>7}{'hop':>6}"
    )
    for c in table:
        click.echo(
            f"{c.kind + ' ' + c.algorithm:<19}{c.form.name.lower():<8}{c.contention:<18}"
            f"{c.alpha_cycles:7.1f}{c.beta_cycles_per_beat:7.2f}{c.hop_cycles:6.1f}"
            f"  +-{100 * c.worst_error:.0f} %"
        )
    click.echo("\nfp64 rows: cycle-exact routers, calibrated endpoints;")
    click.echo("fp32 and fp16: latency derived from the FPU's.")


def _mesh_file(table: list[CollectiveCost], mesh: str, clock_ghz: float) -> str:
    columns, rows = parse_shape(mesh)
    lines = [
        f"columns = {columns}",
        f"rows = {rows}",
        f"clock_ghz = {clock_ghz:g}",
        'has = "hardware"  # or "software": trees of messages',
        'source = "ratrain noc costs: fitted to a simulated mesh, 1 to 4 KiB"',
    ]
    return chip_file(table, lines, {"hw": "hardware", "tree": "software"})


def chip_file(table: list[CollectiveCost], head: list[str], names: Mapping[str, str]) -> str:
    """The file that says what a chip's sums take. `names`: of algorithms there, of those that it
    has."""
    from ratrain.chip.noc.opcodes import Format

    lines = [*head]
    for cost in table:
        is_alone = cost.contention == "alone" and cost.form is Format.FP64
        if not is_alone or cost.kind == "barrier" or cost.algorithm not in names:
            continue
        lines += [
            "",
            "[[collective]]",
            f'kind = "{cost.kind}"',
            f'by = "{names[cost.algorithm]}"',
            f"alpha_cycles = {cost.alpha_cycles:g}",
            f"beta_cycles = {cost.beta_cycles_per_beat:g}",
            f"hop_cycles = {cost.hop_cycles:g}",
        ]
    return "\n".join(lines)
