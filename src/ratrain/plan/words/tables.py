"""A search in words and as JSON: what `ratrain plan` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

from ratrain.describe.cluster import Device
from ratrain.describe.lines import WIDTH, wrapped
from ratrain.describe.ranges import STAGES, write_kinds, write_list, write_ranges
from ratrain.describe.units import counted, format_bytes, format_time
from ratrain.plan.case.case import recovery_words
from ratrain.plan.case.measured_blocks import left_out_words, measured_words
from ratrain.plan.layout.candidate import Candidate
from ratrain.plan.layout.further_orders import order_name, order_words
from ratrain.plan.layout.sizes import gradients_in, travels
from ratrain.plan.search.layouts import Search, Tried
from ratrain.program.bounds import PeakBound
from ratrain.program.families import DEVICE
from ratrain.program.replicas import Recovery
from ratrain.program.setup import Setup

if TYPE_CHECKING:
    from rich.table import Table


def degrees(candidate: Candidate) -> str:
    """ "p 16 x d 16 x t 1": pipeline, data, tensor; "t 4+s" with sequence parallelism; virtual
    stages where there are any."""
    layout = candidate.layout
    divided = "+s" if layout.sequence_parallel else ""
    virtual = f" x v {layout.virtual}" if layout.virtual > 1 else ""
    return f"p {layout.pipeline} x d {layout.data} x t {layout.tensor}{divided}{virtual}"


def plan_name(candidate: Candidate) -> str:
    """ "p 1 x d 4 x t 1, micro-batch 2", and the compute order where another one was chosen."""
    order = order_name(candidate.job.schedule)
    name = f"{degrees(candidate)}, micro-batch {candidate.job.batch.micro_batch}"
    return f"{name}, order {order}" if order else name


def headline(candidate: Candidate) -> list[str]:
    """A configuration in lines of at most 80 columns."""
    where = "sharded" if candidate.mode.sharded_gradients else "local"
    lines = [
        f"pipeline {candidate.layout.pipeline} x data {candidate.layout.data} x tensor "
        f"{candidate.layout.tensor}"
        + (f", {candidate.layout.virtual} stages per rank" if candidate.layout.virtual > 1 else ""),
        f"micro-batches of {candidate.job.batch.micro_batch}, {candidate.micro_batches} per "
        f"replica",
        f"layers per stage: {write_list(candidate.layers, STAGES)}",
        *order_words(candidate.job.schedule, candidate.strategy),
        f"activations: {recovery_words(candidate.recovery)}",
        f"sharding level {candidate.mode.sharding}, gradients "
        f"{where}{gradients_in(candidate.job.schedule)}",
    ]
    if candidate.layout.sequence_parallel:
        lines.insert(1, "sequence parallelism: each tensor group splits its sequences")
    if any(mode.value == "forward" for mode in candidate.recovery):
        lines[-1] += f", recovery buffer {candidate.buffer}"
    if candidate.reversed_kinds:
        lines.append("device kinds in reversed order: the last hosts hold the first stages")
    lines += idle_words(candidate.idle)
    lines += travels(candidate.job)
    lines += measured_words(candidate.job, candidate.layout)
    return [part for line in lines for part in wrapped(line)]


def idle_words(idle: Sequence[Device]) -> list[str]:
    """Which devices a plan leaves idle, as a line of a headline; none where it uses all."""
    if not idle:
        return []
    numbers, kinds = write_ranges([d.index for d in idle]), write_kinds([d.kind.name for d in idle])
    return [f"idle: {counted(len(idle), 'device')}, {numbers} ({kinds})"]


def _why_idle(search: Search) -> list[str]:
    """Why the best plan of identical replicas leaves devices idle."""
    if not search.best.candidate.idle:
        return []
    devices = search.job.cluster.devices
    if not any(checked.group.layout.devices == devices for checked in search.checked):
        return wrapped(f"no layout of identical replicas uses all {devices:,} devices")
    if search.all_devices_s is None:
        return wrapped(f"no layout of identical replicas on all {devices:,} devices fits")
    more = 100 * (search.all_devices_s / search.best.step_s - 1)
    return wrapped(
        f"the fastest plan found that uses every device takes {format_time(search.all_devices_s)}, "
        f"{more:.1f} % more"
    )


ACTIVATIONS = {
    Recovery.NONE: "kept",
    Recovery.SELECTIVE: "scores recomputed",
    Recovery.BACKWARD: "recomputed",
    Recovery.FORWARD: "recomputed",
}
"""What becomes of a stage's activations, for a table; the headline says when."""


def _peaks(tried: Tried) -> str:
    """The proven peak of the fullest rank, of each budget where devices differ."""
    assert tried.proved is not None, "only proved plans are printed"
    return peaks_in_words(tried.proved.verdict.bounds, tried.proved.short.setup)


def search_text(search: Search, top: int) -> list[str]:
    """The best plan, and the runner-ups beside it."""
    best, job = search.best, search.job
    tokens = job.batch.sequences * job.model.sequence_length
    head = f"{job.model.spec.name} on {job.cluster.devices} x {job.cluster.spec.name}"
    return [
        *wrapped(
            f"{head}, {job.schedule.name}: {job.batch.sequences} sequences of "
            f"{job.model.sequence_length} tokens"
        ),
        "",
        *headline(best.candidate),
        *_why_idle(search),
        *wrapped(
            f"step {format_time(best.step_s)}, {tokens / best.step_s:,.1f} tokens/s; {_peaks(best)}"
        ),
        "",
        *table(search.tried[:top]),
        "",
        f"{search.checks:,} configurations checked against memory, {search.fitting:,} fit "
        f"({format_time(search.check_s)})",
        f"{search.simulated} simulated; quick estimates were off by "
        f"{100 * search.mean_gap:.1f} % on average; {format_time(search.total_s)} in all",
        *(part for line in left_out_words(job) for part in wrapped(line)),
    ]


def table(tried: Sequence[Tried]) -> list[str]:
    """Plans, best first: what they are, and how much slower than the first. The last column
    breaks where it is too long."""
    orders = [order_name(row.candidate.job.schedule) for row in tried]
    order_too = "order; " if any(orders) else ""
    rows = plain_table(
        ("step", True),
        ("slower", True),
        ("memory", True),
        ("micro\nbatch", True),
        ("sharding,\ngradients", False),
        (f"pipeline (p) x data (d) x tensor (t);\n{order_too}activations", False),
    )
    for row, order in zip(tried, orders, strict=True):
        plan = row.candidate
        where = "sharded" if plan.mode.sharded_gradients else "local"
        modes = Counter(ACTIVATIONS[mode] for mode in plan.recovery)
        activations = ", ".join(
            f"{mode} on {counted(count, 'stage')}" for mode, count in modes.items()
        )
        rows.add_row(
            format_time(row.step_s),
            f"{100 * (row.step_s / tried[0].step_s - 1):.2f} %",
            format_bytes(row.bound_bytes),
            f"{plan.job.batch.micro_batch}",
            f"{plan.mode.sharding} {where}",
            "; ".join(part for part in (degrees(plan), order, activations) if part),
        )
    return rendered(rows)


def plain_table(*columns: tuple[str, bool], breaks: int = -1) -> Table:
    """A table without lines, in plain letters. A column is (heading, whether it holds numbers);
    only the one that `breaks` goes over several lines where the table would be too wide."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, (heading, numbers) in enumerate(columns):
        made.add_column(
            heading,
            justify="right" if numbers else "left",
            no_wrap=number != breaks % len(columns),
            overflow="fold",
            header_style="",
        )
    return made


def rendered(made: Table) -> list[str]:
    """A table in lines of at most 80 columns, the same in a terminal and in a pipe."""
    from rich.console import Console

    console = Console(width=WIDTH, file=StringIO(), color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(made, markup=False)
    return [line.rstrip() for line in captured.get().splitlines()]


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    layout = candidate.layout
    return {
        "pipeline": layout.pipeline,
        "data": layout.data,
        "tensor": layout.tensor,
        "virtual": layout.virtual,
        "sequence_parallel": layout.sequence_parallel,
        "layers_per_stage": list(candidate.layers),
        "micro_batch": candidate.job.batch.micro_batch,
        "micro_batches": candidate.micro_batches,
        "order": candidate.strategy.skeleton,
        "recovery": [mode.value for mode in candidate.recovery],
        "recovery_buffer": candidate.buffer,
        "sharding": candidate.mode.sharding,
        "gradients": "sharded" if candidate.mode.sharded_gradients else "local",
        "dtype": candidate.job.schedule.dtype,
        "dtypes": dict(candidate.job.dtypes),
        "gradient_dtype": candidate.job.schedule.gradient_dtype,
        "gradient_wire": candidate.job.schedule.gradients_travel_in,
        "boundary_wire": candidate.job.schedule.boundaries_travel_in,
        "error_feedback": candidate.job.schedule.error_feedback,
        "reversed_kinds": candidate.reversed_kinds,
        "idle_devices": [device.index for device in candidate.idle],
        "measured_times": measured_words(candidate.job, layout),
    }


def tried_json(tried: Tried) -> dict[str, Any]:
    return {
        "plan": candidate_json(tried.candidate),
        "step_time_s": tried.step_s,
        "estimate_s": tried.estimate_s,
        "bound_bytes": tried.bound_bytes,
    }


def search_json(search: Search, top: int) -> dict[str, Any]:
    """Every figure, with its unit in its key."""
    job = search.job
    tokens = job.batch.sequences * job.model.sequence_length
    return {
        "model": job.model.spec.name,
        "cluster": job.cluster.spec.name,
        "devices": job.cluster.devices,
        "budget_bytes": list(job.budgets),
        "tokens_per_s": tokens / search.best.step_s,
        "all_devices_step_time_s": search.all_devices_s,
        "plans": [tried_json(tried) for tried in search.tried[:top]],
        "checked": search.checks,
        "fitting": search.fitting,
        "simulated": search.simulated,
        "mean_gap": search.mean_gap,
        "check_time_s": search.check_s,
        "search_time_s": search.total_s,
    }


def peaks_in_words(bounds: Iterable[PeakBound], setup: Setup) -> str:
    """ "proven peak 45.4 MB per rank (budget 64 MB)", or a peak for each budget that ranks have."""
    peaks = dict[int | None, int]()
    for bound in bounds:
        if bound.tier != DEVICE:
            continue
        budget = setup.budget_of(bound.rank)
        peaks[budget] = max(peaks.get(budget, 0), bound.total_bytes)
    if len(peaks) == 1:
        ((budget, peak),) = peaks.items()
        limit = f" (budget {format_bytes(budget)})" if budget else ""
        return f"proven peak {format_bytes(peak)} per rank{limit}"
    sizes = sorted(((budget or 0, peak) for budget, peak in peaks.items()), reverse=True)
    shown = (f"{format_bytes(peak)} of {format_bytes(budget)}" for budget, peak in sizes)
    return f"proven peaks {', '.join(shown)} (fullest rank of each budget)"
