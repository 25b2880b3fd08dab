"""What `ratrain plan` prints: a search in words and as JSON; where plans of replicas that differ
are among what it found, these too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from math import inf, isinf
from typing import Any

from ratrain.describe.job import JobSpec, ScheduleSpec
from ratrain.describe.lines import WIDTH, wrapped
from ratrain.describe.units import counted, format_bytes, format_time
from ratrain.plan.case.case import Case
from ratrain.plan.case.words import ACTIVATIONS, left_out_words, order_name
from ratrain.plan.layout.plan import has_members
from ratrain.plan.price.kind_speed import LARGEST_MICRO_BATCH
from ratrain.plan.search.every_plan import NO_ALIKE, EveryPlan, alike_words
from ratrain.plan.search.layouts import Search
from ratrain.plan.search.limits import DEVICES
from ratrain.plan.search.moves import MoveTried
from ratrain.plan.search.periods import HIDDEN, Period, chosen_words
from ratrain.plan.search.tried import Tried
from ratrain.plan.search.unequal import UnequalSearch, has_too_many
from ratrain.program.bounds import PeakBound
from ratrain.program.setup import Setup
from ratrain.program.skeletons import SKELETONS


def _why_idle(search: Search) -> list[str]:
    """Why the best plan of identical replicas leaves devices idle."""
    if not search.best.plan.idle:
        return []
    devices = search.job.cluster.devices
    if not any(checked.group.layout.devices == devices for checked in search.checked):
        return wrapped(f"no layout of identical replicas uses all {devices:,} devices")
    if search.all_devices_s is None:
        return wrapped(f"no layout of identical replicas on all {devices:,} devices fits")
    slower = _more(search.all_devices_s, search.best)
    return wrapped(f"the fastest plan found that uses every device takes {slower}")


def _more(other_s: float, best: Tried) -> str:
    """Another step beside the best one: "1.21 s, 4.5 % more"."""
    return f"{format_time(other_s)}, {100 * (other_s / best.step_s - 1):.1f} % more"


def search_text(search: Search, top: int, fastest_s: float | None = None) -> list[str]:
    """The best plan, and the runner-ups beside it. `fastest_s`: the step of a faster plan of
    another search."""
    best = search.best
    assert best.proved is not None, "only proved plans are printed"
    peaks = peaks_in_words(best.proved.verdict.bounds, best.proved.short.setup)
    return [
        *Case(best.plan).headline(whole=True),
        *_why_idle(search),
        *wrapped(_step(best, peaks)),
        "",
        *table(search.tried, best.step_s if fastest_s is None else fastest_s, top),
        "",
        f"{search.checks:,} configurations checked against memory, {search.fitting:,} fit "
        f"({format_time(search.check_s)})",
        f"{search.simulated} simulated; quick estimates were off by "
        f"{100 * search.mean_gap:.1f} % on average; {format_time(search.total_s)} in all",
        *(part for line in left_out_words(search.job) for part in wrapped(line)),
    ]


def table(tried: Sequence[Tried], than_s: float, top: int) -> list[str]:
    """So many plans, the fastest first: what they are, and how much slower than a step; what reads
    the same once. The last column breaks where it is too long."""
    order_too = "order; " if any(order_name(row.plan.job.schedule) for row in tried) else ""
    columns = (
        ("step", True),
        ("slower", True),
        ("memory", True),
        ("micro\nbatch", True),
        ("sharding,\ngradients", False),
        (f"p: pipeline, d: data, t: tensor;\n{order_too}activations", False),
    )
    rows = dict.fromkeys(_row(row, than_s) for row in tried)
    return table_lines(columns, list(rows)[:top])


def _row(tried: Tried, than_s: float) -> tuple[str, ...]:
    """A plan in such a table."""
    plan = tried.plan
    where = "sharded" if plan.mode.sharded_gradients else "local"
    cuts = dict.fromkeys(replica.recovery for replica in plan.replicas)
    modes = Counter(ACTIVATIONS[mode][0] for modes in cuts for mode in modes)
    activations = ", ".join(f"{mode} on {counted(count, 'stage')}" for mode, count in modes.items())
    simulated = "" if not tried.refusals else "only simulated"
    parts = Case(plan).short_name, order_name(plan.job.schedule), activations, simulated
    return (
        format_time(tried.step_s),
        f"{round(100 * (tried.step_s / than_s - 1), 2) + 0.0:.2f} %",
        format_bytes(tried.bound_bytes),
        ", ".join(map(str, plan.sizes)),
        f"{plan.mode.sharding} {where}",
        "; ".join(filter(None, parts)),
    )


def table_lines(
    columns: Sequence[tuple[str, bool]],
    rows: Iterable[Sequence[str]],
    *,
    breaks: int = -1,
    indent: str = "",
) -> list[str]:
    """A table without lines, in plain letters, in lines of at most 80 columns, the same in a
    terminal and in a pipe. A column is (heading, whether it holds numbers); only the one that
    `breaks` goes over several lines where the table would be too wide."""
    from rich.console import Console
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
    for row in rows:
        made.add_row(*row)
    console = Console(width=WIDTH, file=StringIO(), color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(made, markup=False)
    return [f"{indent}{line.rstrip()}" for line in captured.get().splitlines()]


def simulated_json(simulated: Tried) -> dict[str, Any]:
    """A plan that was simulated, and why processes cannot run it."""
    return {
        "plan": Case(simulated.plan).plan_json(),
        "step_time_s": simulated.step_s,
        "estimate_s": simulated.estimate_s,
        "bound_bytes": simulated.bound_bytes,
        "refused": simulated.refusals,
    }


def search_json(search: Search, top: int) -> dict[str, Any]:
    """Every figure, with its unit in its key."""
    return {
        **_planned_json(search.job),
        "tokens_per_s": search.job.tokens / search.best.step_s,
        "all_devices_step_time_s": search.all_devices_s,
        "plans": [simulated_json(tried) for tried in search.tried[:top]],
        "checked": search.checks,
        "fitting": search.fitting,
        "simulated": search.simulated,
        "mean_gap": search.mean_gap,
        "check_time_s": search.check_s,
        "search_time_s": search.total_s,
    }


def _planned_json(job: JobSpec) -> dict[str, Any]:
    """What was planned."""
    return {
        "model": job.model.spec.name,
        "cluster": job.cluster.spec.name,
        "devices": job.cluster.devices,
        "budget_bytes": list(job.budgets),
    }


def peaks_in_words(bounds: Iterable[PeakBound], setup: Setup) -> str:
    """ "proven peak 45.4 MB per rank (budget 64 MB)", or a peak for each budget that ranks have."""
    peaks = dict[int | None, int]()
    for bound in bounds:
        budget = setup.budget_of(bound.rank)
        peaks[budget] = max(peaks.get(budget, 0), bound.total_bytes)
    if len(peaks) == 1:
        ((budget, peak),) = peaks.items()
        limit = f" (budget {format_bytes(budget)})" if budget else ""
        return f"proven peak {format_bytes(peak)} per rank{limit}"
    sizes = sorted(((budget or 0, peak) for budget, peak in peaks.items()), reverse=True)
    shown = (f"{format_bytes(peak)} of {format_bytes(budget)}" for budget, peak in sizes)
    return f"proven peaks {', '.join(shown)} (fullest rank of each budget)"


def every_text(plans: EveryPlan, top: int) -> list[str]:
    """The best plan first; then plans of alike replicas, and what is faster and cannot be trained
    yet."""
    lines = list(periods_text(plans.periods, plans.job.schedule))
    lines += ["", *_best(plans)] if lines else _best(plans)
    if plans.alike is not None:
        lines += search_text(plans.alike, top, plans.chosen.step_s)
    if plans.unequal is not None:
        lines += _beyond(plans)
    elif has_too_many(plans.job):
        lines += wrapped(
            f"all replicas are identical: others are searched for on up to {DEVICES} devices of "
            f"several kinds, and here are {plans.job.cluster.devices:,}"
        )
    return lines


def _best(plans: EveryPlan) -> list[str]:
    """The best plan, where its replicas differ."""
    best, alike = plans.best, plans.alike
    if best is None:
        return []
    lines = Case(best.plan).headline()
    lines += [_step(best), *(part for line in _refused(best) for part in wrapped(line))]
    lines += [*_unshared(plans, best), *_reordered(plans, best)]
    if alike is None:
        return [*lines, NO_ALIKE]
    return [*lines, "", *wrapped(f"Not chosen: {alike_words(best, alike)}:"), ""]


def _unshared(plans: EveryPlan, best: Tried) -> list[str]:
    """What the best plan gains by stages of several members, where it has them."""
    assert plans.unequal is not None, "the best plan is from this search"
    others = [plan for plan in plans.unequal.trainable if not has_members(plan.plan)]
    if not others or not has_members(best.plan):
        return []
    slower = _more(others[0].step_s, best)
    return wrapped(f"the fastest plan whose stages have one member each takes {slower}")


def _reordered(plans: EveryPlan, best: Tried) -> list[str]:
    """What the best plan gains by a compute order that the planner chose for it."""
    assert plans.unequal is not None, "the best plan is from this search"
    if best.plan.job.schedule.skeleton == plans.job.schedule.skeleton:
        return []
    other, other_s = "in 1F1B", _usual_s(plans)
    if SKELETONS[best.plan.strategy.skeleton].split_backward:
        other, other_s = "whose backward is not split", plans.unequal.whole_s
    if isinf(other_s):
        return []
    return wrapped(f"the fastest plan {other} takes {_more(other_s, best)}")


def _usual_s(plans: EveryPlan) -> float:
    """The step of the fastest plan in the job's own order; infinite where none is known."""
    alike = plans.alike.tried if plans.alike is not None else ()
    unequal = plans.unequal.trainable if plans.unequal is not None else ()
    asked = plans.job.schedule.skeleton
    usual = [tried for tried in (*alike, *unequal) if tried.plan.job.schedule.skeleton == asked]
    return min((tried.step_s for tried in usual), default=inf)


def _step(tried: Tried, peaks: str = "") -> str:
    """`peaks`: left out, the fullest rank's."""
    peaks = peaks or f"proven peak {format_bytes(tried.bound_bytes)} on the fullest rank"
    rate = f"{tried.plan.job.tokens / tried.step_s:,.1f} tokens/s"
    return f"step {format_time(tried.step_s)}, {rate}; {peaks}"


def _refused(plan: Tried) -> list[str]:
    return [f"`ratrain train` cannot run it: {reason}" for reason in plan.refusals]


def _beyond(plans: EveryPlan) -> list[str]:
    """What is faster still, and how fast any plan could be."""
    unequal, lines = plans.unequal, list[str]()
    assert unequal is not None
    faster = plans.faster
    if faster is not None:
        lines += ["", "Faster, but not trainable yet (--fastest FILE writes it):"]
        lines += [f"  {line}" for line in Case(faster.plan).headline()[1:]]
        lines += [f"  {_step(faster)}"]
        lines += [f"  {part}" for line in _refused(faster) for part in wrapped(line)]
    elif plans.best is None:
        lines += wrapped("no plan with unequal replicas or stages was faster")
    lines += wrapped(
        f"{unequal.drafts:,} plans with unequal replicas ranked and {unequal.shared:,} with stages "
        f"of several members, {unequal.simulated} simulated ({format_time(unequal.total_s)}); no "
        f"plan of these devices with micro-batches of up to {LARGEST_MICRO_BATCH} sequences can "
        f"take less than {format_time(unequal.least_s)}"
    )
    return lines


def every_json(plans: EveryPlan, top: int) -> dict[str, Any]:
    """Every figure, with its unit in its key; the plan that is chosen first: the one that `ratrain
    plan` writes."""
    job, chosen = plans.job, plans.chosen
    rate = {"tokens_per_s": job.tokens / chosen.step_s}
    found = None if plans.alike is None else search_json(plans.alike, top)
    return {
        "chosen": {
            "identical_replicas": chosen.plan.is_layout,
            **rate,
            **simulated_json(chosen),
        },
        **(found or {**_planned_json(job), "plans": []}),
        **rate,
        "unequal": unequal_json(plans.unequal, top),
        "periods": periods_json(plans.periods),
    }


def unequal_json(unequal: UnequalSearch[Tried] | None, top: int) -> dict[str, Any] | None:
    """What the search for plans of stages or replicas that differ has found."""
    if unequal is None:
        return None
    return {
        "trainable": [simulated_json(plan) for plan in unequal.trainable[:top]],
        "only_simulated": [simulated_json(plan) for plan in unequal.others[:top]],
        "least_step_time_s": unequal.least_s,
        "ranked": unequal.drafts,
        "ranked_of_members": unequal.shared,
        "simulated": unequal.simulated,
        "search_time_s": unequal.total_s,
        "moves": list(map(move_json, unequal.moves)),
    }


def move_json(move: MoveTried) -> dict[str, Any]:
    """What a move would make of a plan."""
    return {
        "move": move.name,
        "changes": move.words,
        "drafts": move.drafts,
        "best_step_time_s": move.best_s,
        "step_time_s": move.step_s,
    }


def periods_text(found: Sequence[Period], schedule: ScheduleSpec) -> Iterator[str]:
    """In lines of at most 80 columns: those in the plan's own wire, and of its own length in
    others; first what was chosen, where the job leaves that open."""
    if not found:
        return
    own, wire = schedule.average_every, schedule.average_wire
    most = HIDDEN if schedule.average_exposed is None else schedule.average_exposed
    chosen = chosen_words(found, schedule)
    yield from wrapped(f"{chosen[:1].upper()}{chosen[1:]}.") if chosen else ()
    yield from wrapped(
        "Averages, as simulated, of what fits: the longer a period, the longer replicas drift "
        "apart, and the less a step waits. Limit: a step's compute, or what its averages take on "
        "their line."
    )
    heads = "  ".join(f"{head:>9}" for head in ("step", "exposed", "compute", "line"))
    yield f"  {'steps':>5}  wire  {heads}  limit/step"
    for each in found:
        if each.wire == wire or each.steps == own:
            mark = " *" if (each.steps, each.wire) == (own, wire) else ""
            times = (each.step_s, each.exposed_s, each.alone_s, each.sent_s)
            cells = "  ".join(f"{format_time(time_s):>9}" for time_s in times)
            yield f"  {each.steps:>5}  {each.wire}  {cells}  {each.limit_s / each.step_s:.2f}{mark}"
    least: dict[str, int] = {}  # by wire the steps of the shortest of which no more is exposed
    for each in found:
        if each.hides(most):
            least.setdefault(each.wire, each.steps)
    others = [f"{steps} in {other}" for other, steps in least.items() if other != wire]
    also = f"; {', '.join(others)}" if others else ""
    if wire in least:
        yield from wrapped(
            f"The shortest of these of which at most {100 * most:g} % is exposed: "
            f"average_every = {least[wire]}{also}. The plan's own is marked *."
        )
    whole = next((each for each in found if each.wire == "fp32"), None)
    if schedule.averages_by_turns and whole is not None:
        yield from wrapped(
            "A run ends with a last average of all weights, in fp32, so that one model is saved: "
            f"{format_time(whole.sent_s * whole.steps)} on that line."
        )


def periods_json(found: Sequence[Period]) -> list[dict[str, Any]]:
    return [vars(period) | {"limit_s": period.limit_s} for period in found]
