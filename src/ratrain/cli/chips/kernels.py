"""`ratrain kernels`: tile programs of a chip's cores, listed, run, timed, drawn, scored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import MOST_SEED, PATH, Whole
from ratrain.cli.terminal.progress import progress
from ratrain.errors import ProgramError, SpecError

if TYPE_CHECKING:
    from ratrain.kernels import Difference, Figure, Machine, Scored, TileKernel

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")


def _of_kernel(command: Callable[..., None]) -> Callable[..., None]:
    """The options that choose sizes and cores."""
    size = click.option(
        "--size", "changes", multiple=True, metavar="NAME=N", help="A size, e.g. m=4096."
    )
    machine = click.option(
        "--machine", metavar="NAME", help="ft-m7032 or mt-3000. [default: the kernel's]"
    )
    cores = click.option("--cores", type=Whole(1, 64), help="Cores that compute. [default: all]")
    return size(machine(cores(command)))


@click.group()
def command() -> None:
    """Write, prove, run and time kernels of a chip's cores.

    A kernel is a program over tiles in the memories of a cluster of DSP cores (FT-M7032,
    MT-3000). It is proved to fit and to be in order, computed for its values, and put on a
    clock of the machine's rates. No device is needed, and none was used.

    \b
    Examples (each takes --json):
      ratrain kernels list
      ratrain kernels run attention
      ratrain kernels time gemm-f16 --size n=5120
      ratrain kernels text rmsnorm --size rows=8 --size width=64 --cores 2
      ratrain kernels picture swiglu --size rows=64 --cores 4 -o swiglu.svg
      ratrain kernels score
    """


@command.command("list")
@JSON
def list_(as_json: bool) -> None:
    """List the kernels: what each computes, its machine and its sizes.

    \b
    Example:
      ratrain kernels list
    """
    from ratrain.kernels import KERNELS

    known = [KERNELS[name] for name in KERNELS]
    if as_json:
        rows = [
            {"name": k.name, "about": k.about, "machine": k.machine, "sizes": dict(k.timed)}
            for k in known
        ]
        print_json("kernels list", {"kernels": rows})
        return
    for k in known:
        click.echo(f"{k.name:20} {k.about}")
        sizes = ", ".join(f"{name}={value}" for name, value in k.timed.items())
        click.echo(f"{'':20} {k.machine}: {sizes}")


@command.command()
@click.argument("kernel")
@_of_kernel
@click.option("--seed", type=Whole(0, MOST_SEED), default=0, show_default=True, help="Of inputs.")
@JSON
def run(
    kernel: str,
    changes: tuple[str, ...],
    machine: str | None,
    cores: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Compute KERNEL on random inputs, and compare its outputs with FP64.

    Small sizes unless --size says others. An output further from FP64 than the kernel allows is an
    error. Products sum in the machine's order and types; elementwise work is computed in FP32.

    \b
    Example:
      ratrain kernels run attention
    """
    from ratrain.kernels import differences

    declared, on, sizes = _chosen(kernel, changes, machine, cores, small=True)
    with progress("computing"):
        rows = differences(declared, on, sizes, seed)
    if as_json:
        body = [
            {"tensor": r.tensor, "ulps": r.ulps, "allowed_ulps": r.allowed, "within": r.within}
            for r in rows
        ]
        print_json("kernels run", {**_about(declared, on, sizes), "outputs": body})
    else:
        click.echo(_headline(declared, on, sizes))
        click.echo("\n".join(_difference(declared, row) for row in rows))
    wrong = [row.tensor for row in rows if not row.within]
    if wrong:
        raise ProgramError(
            f"{', '.join(wrong)} of {kernel} differs from FP64 by more than it allows",
            fix="look for tiles that are not filled, and for sums in too small a type",
        )


@command.command("time")
@click.argument("kernel", required=False)
@_of_kernel
@JSON
def time_(
    kernel: str | None,
    changes: tuple[str, ...],
    machine: str | None,
    cores: int | None,
    as_json: bool,
) -> None:
    """Time KERNEL on its machine, beside a bound; without a name, all kernels.

    The bound: the FLOPs that the result needs at the vector units' peak, or every tensor once over
    DDR, whichever takes longer.

    \b
    Example:
      ratrain kernels time gemm-f16 --size n=5120
    """
    from ratrain.kernels import KERNELS, figure_of

    if kernel is None and changes:
        raise SpecError("--size without a kernel", place="--size", fix="name the kernel first")
    figures: list[Figure] = []
    for name in [kernel] if kernel else list(KERNELS):
        declared, on, sizes = _chosen(name, changes, machine, cores, small=False)
        with progress(f"timing {name}"):
            figures.append(figure_of(declared, on, sizes))
    if as_json:
        print_json("kernels time", {"kernels": [_figure_json(figure) for figure in figures]})
    else:
        click.echo("\n".join(_figures(figures)))


@command.command()
@click.argument("kernel")
@_of_kernel
@JSON
def text(
    kernel: str,
    changes: tuple[str, ...],
    machine: str | None,
    cores: int | None,
    as_json: bool,
) -> None:
    """Print KERNEL's program: every op of every core and channel, and the tiles' versions.

    \b
    Example:
      ratrain kernels text rmsnorm --size rows=8 --size width=64 --cores 2
    """
    from ratrain.kernels import program_text, written

    declared, on, sizes = _chosen(kernel, changes, machine, cores, small=True)
    program = written(declared.writing(sizes), on, None)
    if as_json:
        ops = [
            {"core": op.core, "lane": program.lane_names[op.lane], "word": op.word}
            for op in program.ops
        ]
        print_json("kernels text", {**_about(declared, on, sizes), "ops": ops})
    else:
        click.echo(program_text(program), nl=False)


@command.command()
@click.argument("kernel")
@_of_kernel
@click.option("-o", "out", type=PATH, required=True, help="The SVG file to write.")
@click.option("--trace", type=PATH, help="Write a trace that Perfetto opens, too.")
@JSON
def picture(
    kernel: str,
    changes: tuple[str, ...],
    machine: str | None,
    cores: int | None,
    out: Path,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Draw KERNEL on the clock: each core's vector unit, and its DMA channels under it.

    \b
    Example:
      ratrain kernels picture swiglu --size rows=64 --cores 4 -o swiglu.svg
    """
    from ratrain.kernels import timeline_of, written
    from ratrain.readers.writing import write_whole
    from ratrain.timeline.perfetto import perfetto_traces
    from ratrain.timeline.picture import Panel, svg

    declared, on, sizes = _chosen(kernel, changes, machine, cores, small=True)
    with progress("drawing"):
        timeline = timeline_of(written(declared.writing(sizes), on, None))
        write_whole(out, svg([Panel(_headline(declared, on, sizes), timeline)]))
        if trace is not None:
            write_whole(trace, perfetto_traces({_headline(declared, on, sizes): timeline}))
    if as_json:
        print_json("kernels picture", {**_about(declared, on, sizes), "file": str(out)})
    else:
        click.echo(f"wrote {out}")


@command.command()
@click.argument("rows", type=PATH, required=False)
@click.option("--all", "every", is_flag=True, help="Show every row.")
@JSON
def score(rows: Path | None, every: bool, as_json: bool) -> None:
    """Set published measurements of products on the FT-M7032 beside the clock's.

    ROWS is a CSV file with the columns of src/ratrain/kernels/data/ft-m7032.csv, which is taken
    where none is named.

    \b
    Example:
      ratrain kernels score --all
    """
    from ratrain.describe.lines import wrapped
    from ratrain.kernels import read_rows, scored

    with progress("timing the measured products"):
        read = read_rows(rows)
        found = list(scored(read))
    timed = {s.row.name for s in found}
    left_out = [row.name for row in read if row.name not in timed]
    if as_json:
        body = [
            {
                "id": s.row.name,
                "group": s.row.group,
                "measured": s.row.value,
                "ours": s.ours,
                "error": s.error,
            }
            for s in found
        ]
        print_json("kernels score", {"rows": body, "not_scored": left_out})
        return
    click.echo("\n".join(_scores(found, every)))
    if left_out:
        said = f"not scored, for want of a kernel or a size: {', '.join(left_out)}"
        click.echo("\n".join(wrapped(said)))


# ---- what was chosen ----------------------------------------------------------------------


def _chosen(
    kernel: str,
    changes: tuple[str, ...],
    machine: str | None,
    cores: int | None,
    *,
    small: bool,
) -> tuple[TileKernel, Machine, dict[str, int]]:
    from ratrain.kernels import MACHINES, kernel_named

    declared = kernel_named(kernel)
    name = machine or declared.machine
    if name not in MACHINES:
        fix = f"machines: {', '.join(MACHINES)}"
        raise SpecError(f"no machine is named {name}", place="--machine", fix=fix)
    on = MACHINES[name]
    sizes = declared.sized(declared.small if small else declared.timed, _sizes(changes))
    return declared, on.with_cores(cores) if cores else on, sizes


def _sizes(changes: tuple[str, ...]) -> dict[str, int]:
    from ratrain.readers.numbers import whole

    sizes: dict[str, int] = {}
    for change in changes:
        name, _, value = change.partition("=")
        try:
            sizes[name] = whole(value, high=10**9)
        except ValueError as error:
            raise SpecError(
                f"{change!r} is no size: {error}", place="--size", fix="write NAME=N, as m=4096"
            ) from None
    return sizes


def _about(declared: TileKernel, machine: Machine, sizes: dict[str, int]) -> dict[str, Any]:
    return {
        "kernel": declared.name,
        "machine": machine.name,
        "cores": machine.cores,
        "sizes": sizes,
    }


def _headline(declared: TileKernel, machine: Machine, sizes: dict[str, int]) -> str:
    from ratrain.describe.units import counted

    shown = ", ".join(f"{name}={value}" for name, value in sizes.items())
    return f"{declared.name} on {counted(machine.cores, 'core')} of {machine.name}: {shown}"


# ---- what is printed ----------------------------------------------------------------------


def _difference(declared: TileKernel, row: Difference) -> str:
    unit = f" of {declared.ulps_dtype}" if declared.ulps_dtype else ""
    said = "" if row.within else "  TOO FAR"
    return f"  {row.tensor:12} {row.ulps:8.2f} ulps{unit}, {row.allowed:g} allowed{said}"


def _figure_json(f: Figure) -> dict[str, Any]:
    return {
        "kernel": f.kernel,
        "machine": f.machine,
        "cores": f.cores,
        "sizes": dict(f.sizes),
        "time_s": f.timed.time_s,
        "flops": f.flops,
        "flops_per_s": f.flops_per_s,
        "of_peak": f.compute_bound_s / f.timed.time_s,
        "ddr_bytes": f.timed.ddr_bytes,
        "bound_s": f.bound_s,
        "bound_by": f.bound_by,
        "published": f.published,
    }


def _figures(figures: list[Figure]) -> Iterator[str]:
    from ratrain.describe.lines import wrapped
    from ratrain.describe.units import format_flops_rate, format_time

    yield f"{'kernel':19}{'time':>10}{'rate':>14}{'of peak':>8}{'bound':>9} {'bound by':13}of it"
    for f in figures:
        rate = format_flops_rate(f.flops_per_s) if f.flops else "-"
        peak = f"{f.compute_bound_s / f.timed.time_s:.1%}" if f.flops else "-"
        yield (
            f"{f.kernel:19}{format_time(f.timed.time_s):>10}{rate:>14}{peak:>8}"
            f"{format_time(f.bound_s):>9} {f.bound_by:13}{f.of_bound:.1%}"
        )
    for f in figures:
        if f.published:
            yield from wrapped(f"published of {f.kernel}: {f.published}")


def _scores(found: list[Scored], every: bool) -> Iterator[str]:
    groups: dict[str, list[Scored]] = {}
    for s in found:
        groups.setdefault(s.row.group, []).append(s)
    yield f"{'':42}{'rows':>5}{'mean':>9}  worst"
    for name, rows in groups.items():
        worst = max(rows, key=lambda s: abs(s.error))
        mean = sum(abs(s.error) for s in rows) / len(rows)
        yield f"{name:42}{len(rows):>5}{mean:>9.2%}  {worst.error:+.2%} ({worst.row.name})"
        if every:
            for s in rows:
                yield f"  {s.row.name:6}{s.row.value:>12.2f}{s.ours:>12.2f}{s.error:>+9.2%}"
