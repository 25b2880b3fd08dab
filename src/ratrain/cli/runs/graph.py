"""`ratrain graph`: full-graph training of graph networks beyond memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratrain.cli.runs.run_report import write_run_page
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import MOST_STEPS, PATH, Whole
from ratrain.cli.terminal.progress import progress
from ratrain.errors import SAVED_NOT_FINISHED
from ratrain.graph.spec import MODE_NAMES

if TYPE_CHECKING:
    from ratrain.graph import GraphFile, Plan
    from ratrain.graph.compare import Compared
    from ratrain.graph.train import Epoch

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
EPOCHS = click.option(
    "--epochs", type=Whole(1, MOST_STEPS), metavar="N", help="Epochs. [default: the file's]"
)


@click.group()
def command() -> None:
    """Train a graph network on a graph that does not fit in memory.

    All nodes at once, exactly: no sampling, nothing stale. The nodes are cut into partitions;
    what does not fit in the budget waits on disk. GRAPH.toml names the graph, the network (GCN,
    GraphSAGE, GIN, GAT) and the budget.

    \b
    Examples (each takes --json):
      ratrain init example graph
      ratrain graph plan graph.toml
      ratrain graph train graph.toml
      ratrain graph train graph.toml --resume
      ratrain graph compare graph.toml --epochs 3
    """


@command.command()
@click.argument("file", type=PATH)
@JSON
def plan(file: Path, as_json: bool) -> None:
    """Cut the graph of FILE, and lay an epoch out in its budget: memory, disk, bytes moved.

    Every way of using memory is built as a program and counted exactly; the one that moves the
    fewest bytes is proved and taken. Nothing is trained.

    \b
    Example:
      ratrain graph plan graph.toml
    """
    spec, _, laid_plan = _planned(file, file.parent)
    del spec
    if as_json:
        from ratrain.graph.figures import plan_figures

        print_json("graph plan", plan_figures(laid_plan))
        return
    click.echo("\n".join(_plan_lines(laid_plan)))
    click.echo("layouts that were tried:")
    click.echo("\n".join(_tried(laid_plan)))


@command.command()
@click.argument("file", type=PATH)
@EPOCHS
@click.option("--run", "folder", type=PATH, help="Its folder. [default: runs/NAME-graph]")
@click.option("--resume", is_flag=True, help="Go on from the latest checkpoint, if there is one.")
@JSON
def train(file: Path, epochs: int | None, folder: Path | None, resume: bool, as_json: bool) -> None:
    """Train the network of FILE, and compare memory, bytes and time with the plan.

    A checkpoint is written every `checkpoint_every` epochs. A run that was killed resumes with
    --resume, and ends with the very same weights if budget and threads are the same. SIGTERM
    saves after the epoch under way.

    \b
    Example:
      ratrain graph train graph.toml --epochs 20
    """
    from ratrain.extras import require_package

    require_package("torch")
    folder = folder or Path("runs") / f"{file.stem}-graph"
    from ratrain.graph.run import check_folder, open_run

    check_folder(folder, resume=resume)
    spec, base, laid_plan = _planned(file, folder, epochs)
    if not as_json:
        click.echo("\n".join(_plan_lines(laid_plan)))
    run, close = open_run(spec, laid_plan, base, folder)
    del laid_plan  # with what other processes have of the graph
    try:
        with progress("features to the disk", "partitions") as report:
            run.begin(resume=resume, progress=report)
        if run.epochs_done and not as_json:
            click.echo(f"resumed after epoch {run.epochs_done} of {spec.train.epochs}")
        with progress("training", "epochs") as report:
            for epoch in run.epochs():
                report(epoch.number, spec.train.epochs)
                if not as_json:
                    click.echo(_epoch_line(epoch))
        body = run.report()
    finally:
        close()
    stopped = run.epochs_done < spec.train.epochs
    with progress("writing the page"):
        page = write_run_page(folder)
    if as_json:
        about = {"run": str(folder), "page": str(page) if page else None}
        print_json("graph train", {**about, "finished": not stopped, **body})
    else:
        click.echo("\n".join(_comparison(run.plan, body["measured"], body["kinds"])))
        click.echo(f"run  {folder}")
        if page is not None:
            click.echo(f"page {page}")
    if stopped:
        click.echo(f"saved after epoch {run.epochs_done}; resume with --resume", err=True)
        raise click.exceptions.Exit(SAVED_NOT_FINISHED)


@command.command()
@click.argument("file", type=PATH)
@EPOCHS
@click.option(
    "--mode",
    "modes",
    multiple=True,
    type=click.Choice(MODE_NAMES),
    help="Only this way of using memory; may be given several times.",
)
@JSON
def compare(file: Path, epochs: int | None, modes: tuple[Any, ...], as_json: bool) -> None:
    """Train FILE in memory as well, and compare gradients, bytes and times.

    Takes the memory that the whole graph takes. Three epochs unless --epochs says others: what an
    earlier epoch left behind would show in the second.

    \b
    Example:
      ratrain graph compare graph.toml
    """
    import tempfile

    from ratrain.extras import require_package

    require_package("torch")
    from ratrain.graph import lay_out, read_graph_file
    from ratrain.graph.compare import compared
    from ratrain.graph.program import ONE_SUM

    spec = read_graph_file(file)
    with progress("reading and cutting the graph"):
        laid = lay_out(spec, file.parent, whole=True)
    with tempfile.TemporaryDirectory(prefix=f"{file.stem}-compare-", dir=file.parent) as folder:
        rows: list[Compared] = []
        with progress("comparing", "modes") as report:
            several = spec.memory.processes > 1
            every: list[Any] = [mode for mode in MODE_NAMES if not (several and mode in ONE_SUM)]
            chosen = modes or tuple(every)
            for row in compared(spec, laid, file.parent, Path(folder), epochs or 3, chosen):
                rows.append(row)
                report(len(rows), len(chosen))
    if as_json:
        print_json("graph compare", {"precision": spec.train.precision, "modes": _compared(rows)})
        return
    click.echo("\n".join(_compared_lines(rows)))


# ---- what is planned ----------------------------------------------------------------------


def _planned(file: Path, folder: Path, epochs: int | None = None) -> tuple[GraphFile, Path, Plan]:
    from ratrain.graph import lay_out, planned, read_graph_file

    spec = read_graph_file(file)
    if epochs is not None:
        spec = replace(spec, train=replace(spec.train, epochs=epochs))
    with progress("reading and cutting the graph"):
        laid = lay_out(spec, file.parent)
    with progress("laying out an epoch"):
        disk = file.parent / spec.memory.disk if spec.memory.disk else folder
        return spec, file.parent, planned(laid, spec.memory, disk)


# ---- what is printed ----------------------------------------------------------------------


def _plan_lines(plan: Plan) -> Iterator[str]:
    from ratrain.describe.units import DAY_S, counted, format_bytes, format_time
    from ratrain.graph import MODES

    laid, layout = plan.laid, plan.program.layout
    yield (
        f"graph      {laid.nodes:,} nodes, {laid.edges:,} edges; "
        f"{counted(laid.shape.parts, 'partition')} by {laid.partitioner}"
    )
    yield f"{'':11}a partition needs {laid.expansion:.2f} times its own rows, in the mean"
    each = f", in each of {plan.processes} processes at most" if plan.processes > 1 else ""
    peak, budget = format_bytes(plan.peak_bytes), format_bytes(plan.budget_bytes)
    yield f"memory     {peak} of {budget}{each}"
    cells = layout.cells * layout.cell_bytes
    yield (
        f"{'':11}process and graph {format_bytes(laid.standing_bytes)}, sums "
        f"{format_bytes(laid.working_bytes(layout.group))}, rows {format_bytes(cells)}"
    )
    yield f"{'':11}in memory it would take {format_bytes(plan.in_memory_bytes)} or more"
    yield f"mode       {layout.mode}: {MODES[layout.mode]}"
    yield f"{'':11}{counted(layout.group, 'sum')} open at once"
    yield (
        f"an epoch   reads {format_bytes(plan.read_bytes)}, writes "
        f"{format_bytes(plan.written_bytes)}; {format_bytes(plan.disk_bytes)} of disk"
    )
    if plan.written_bytes:
        a_day = format_bytes(plan.written_bytes / plan.epoch_s * DAY_S)
        yield f"{'':11}{a_day} written a day, epoch after epoch"
    if plan.processes > 1:
        yield f"{'':11}{format_bytes(plan.sent_bytes)} go from process to process"
    yield f"{'':11}{format_time(plan.epoch_s)} predicted, with assumed rates of computing"
    yield "proved     every version read is the one written; memory holds what lies in it"


def _tried(plan: Plan) -> Iterator[str]:
    from ratrain.describe.units import format_bytes

    yield f"  {'mode':10}{'sums':>5}{'rows':>10}{'reads':>10}{'writes':>10}"
    for each in plan.candidates:
        layout = each.layout
        rows = format_bytes(layout.cells * layout.cell_bytes)
        if each.why:
            yield f"  {layout.mode:10}{layout.group:>5}{rows:>10}  does not fit"
        else:
            moved = f"{format_bytes(each.read_bytes):>10}{format_bytes(each.written_bytes):>10}"
            taken = "  <- taken" if layout == plan.program.layout else ""
            yield f"  {layout.mode:10}{layout.group:>5}{rows:>10}{moved}{taken}"


def _epoch_line(epoch: Epoch) -> str:
    from ratrain.describe.units import format_time

    others = "" if epoch.others_right is None else f"  others {epoch.others_right:.1%}"
    return (
        f"epoch {epoch.number:>4}  loss {epoch.loss:.6f}  learned {epoch.learned_right:.1%}"
        f"{others}  {format_time(epoch.time_s)}, {format_time(epoch.waited_s)} waiting"
    )


def _comparison(plan: Plan, measured: dict[str, Any], kinds: list[dict[str, Any]]) -> Iterator[str]:
    from ratrain.describe.units import format_bytes, format_time
    from ratrain.graph.figures import OpTimes

    if measured["epoch_s"] is None:
        yield "nothing is left to train"
        return
    yield f"{'':11}{'planned':>12}{'measured':>12}"
    epoch_s = measured["epoch_s"]
    yield f"{'epoch':11}{format_time(plan.epoch_s):>12}{format_time(epoch_s):>12}  median"
    moved = {"read": plan.read_bytes, "written": plan.written_bytes, "peak": plan.peak_bytes}
    if plan.processes > 1:
        moved["sent"] = plan.sent_bytes
    for name, size in moved.items():
        measured_bytes = format_bytes(measured[f"{name}_bytes"])
        yield f"{name:11}{format_bytes(size):>12}{measured_bytes:>12}"
    yield "planned with products and sums as timed here, at the disk rates of the file"
    least_s = epoch_s / 20
    rows = [row for each in kinds if (row := OpTimes(**each)).measured_s >= least_s]
    yield f"{'ops of the last epoch':23}{'planned':>12}{'measured':>12}"
    for row in rows:
        name = f"{row.ops:,} {row.kind}"
        yield f"  {name:21}{format_time(row.predicted_s):>12}{format_time(row.measured_s):>12}"
    if rows:
        worst = max(rows, key=lambda row: row.error)
        mean = sum(row.error for row in rows) / len(rows)
        yield f"off by {mean:.0%} in the mean of these kinds, {worst.kind} by {worst.error:.0%}"


def _compared(rows: list[Compared]) -> list[dict[str, Any]]:
    return [
        {
            "mode": row.mode,
            "problem": row.why or None,
            **(
                {}
                if row.why
                else {
                    "group": row.group,
                    "worst_gradient_error": row.worst_error,
                    "losses": list(row.losses),
                    "in_memory_losses": list(row.in_memory_losses),
                    "epoch_s": row.epoch_s,
                    "in_memory_epoch_s": row.in_memory_epoch_s,
                    "read_bytes": row.read_bytes,
                    "written_bytes": row.written_bytes,
                    "planned_read_bytes": row.planned_read_bytes,
                    "planned_written_bytes": row.planned_written_bytes,
                }
            ),
        }
        for row in rows
    ]


def _compared_lines(rows: list[Compared]) -> Iterator[str]:
    from ratrain.describe.lines import wrapped
    from ratrain.describe.units import format_bytes, format_time

    titles = f"{'epoch':>10}{'in memory':>11}{'read':>10}{'written':>10}"
    yield f"{'mode':10}{'gradient error':>15}{titles}"
    for row in rows:
        if row.why:
            yield f"{row.mode:10}does not fit"
            continue
        times = f"{format_time(row.epoch_s):>10}{format_time(row.in_memory_epoch_s):>11}"
        moved = f"{format_bytes(row.read_bytes):>10}{format_bytes(row.written_bytes):>10}"
        yield f"{row.mode:10}{row.worst_error:>15.1e}{times}{moved}"
    yield from wrapped(
        "gradient error: the worst of any parameter in any epoch, over its largest entry"
    )
