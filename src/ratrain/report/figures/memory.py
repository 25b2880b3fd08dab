"""Memory: every rank's proved bound against its budget, and one step over time."""

from __future__ import annotations

from collections.abc import Sequence

from ratrain.report.contents import Memory, MemoryRow
from ratrain.report.figures.frame import chart, legend, section, size
from ratrain.report.figures.plan import memory_bar
from ratrain.report.groups import MemoryGroup, grouped, shown_groups
from ratrain.report.html import Markup, Styles, details, join, table, tag
from ratrain.timeline.picture import chosen_ranks

RANKS = 24


def memory_section(memory: Memory, number: int, styles: Styles) -> Markup:
    """One tier; `number` counts them, the device's own being 0."""
    keys = {key for row in memory.rows for key in grouped(row.families)}
    keys |= {key for curve in memory.curves for key in curve.groups}
    groups = shown_groups(keys)
    ranks = set(chosen_ranks((row.rank for row in memory.rows), RANKS))
    drawn = [row for row in memory.rows if row.rank in ranks]
    left_out = len(memory.rows) - len(drawn)
    return section(
        f"memory{number or ''}",
        "Memory" if memory.tier.lower() == "memory" else f"Memory ({memory.tier})",
        "Bars: what each rank is proven to need at most, by group of states, against its budget "
        f"(the whole width).{_marked(memory.rows)}{_processes(memory.rows)}",
        legend(
            [
                *((f"m-{group.key}", group.name) for group in groups),
                *_mark_legend(memory.rows),
            ]
        ),
        tag("div", (_row(row, styles) for row in drawn), class_="bars"),
        tag(
            "p",
            f"{len(drawn)} of {len(memory.rows)} ranks are drawn; the table has all of them.",
            class_="note",
        )
        if left_out
        else None,
        _over_time(memory, number),
        details("Memory as a table", _table(memory.rows), _families(memory.rows, groups)),
    )


def _processes(rows: Sequence[MemoryRow]) -> str:
    """What a process is, where rows are of processes."""
    if not rows or not rows[0].label.startswith("process"):
        return ""
    return " A process is a rank of the plan in one replica: identical replicas share its ranks."


def _marked(rows: Sequence[MemoryRow]) -> str:
    """What the marks in the bars are."""
    marks = [name for _, name in _mark_legend(rows)]
    return f" Marks: the {marks[0]}." if marks else ""


def _mark_legend(rows: Sequence[MemoryRow]) -> list[tuple[str, str]]:
    if any(row.allocated_bytes is not None for row in rows):
        return [("mark-seen", "most that was allocated")]
    if any(row.peak_predicted_bytes is not None for row in rows):
        return [("mark-seen", "peak in the simulation")]
    return []


def _row(row: MemoryRow, styles: Styles) -> Markup:
    whole_bytes = max(row.bound_bytes, row.budget_bytes or 0, row.allocated_bytes or 0) or 1
    peak_bytes = (
        row.allocated_bytes if row.allocated_bytes is not None else row.peak_predicted_bytes
    )
    mark = None
    if peak_bytes is not None:
        mark = tag(
            "i",
            class_=f"mark-seen {styles.left(peak_bytes / whole_bytes)}",
            title=f"{_mark_legend([row])[0][1]}: {size(peak_bytes)}",
        )
    over_budget = row.budget_bytes is not None and row.bound_bytes > row.budget_bytes
    return tag(
        "div",
        tag("span", row.label, class_="label"),
        tag(
            "div",
            memory_bar(grouped(row.families), row.bound_bytes, whole_bytes, styles),
            mark,
            class_="track",
        ),
        tag(
            "span",
            size(row.bound_bytes) + (f" of {size(row.budget_bytes)}" if row.budget_bytes else ""),
            class_="value bad" if over_budget else "value",
        ),
        class_="labelled",
    )


def _over_time(memory: Memory, number: int) -> Markup | None:
    if not memory.curves:
        return None
    ranks = sorted({curve.rank for curve in memory.curves})
    sources = list(dict.fromkeys(curve.source for curve in memory.curves))
    return join(
        tag("h3", "Over one step"),
        tag(
            "p",
            tag(
                "label",
                "rank ",
                tag(
                    "select",
                    (tag("option", f"{rank}", value=f"{rank}") for rank in ranks),
                    class_="memory-rank",
                    data_tier=f"{number}",
                ),
            ),
            class_="controls",
        ),
        tag(
            "div",
            (
                chart(
                    f"memory-{number}-{source}",
                    f"Memory over one step, {source}",
                    heading=source.capitalize(),
                )
                for source in sources
            ),
            class_="pair",
        ),
    )


def _table(rows: Sequence[MemoryRow]) -> Markup:
    return table(
        (
            "Rank",
            "Proven at most",
            "Budget",
            "Peak predicted",
            "Peak in the ledger",
            "Peak allocated",
            "Whole process",
        ),
        (
            (
                row.label,
                size(row.bound_bytes),
                size(row.budget_bytes),
                size(row.peak_predicted_bytes),
                size(row.ledger_bytes),
                size(row.allocated_bytes),
                size(row.resident_bytes),
            )
            for row in rows
        ),
        caption="Memory of each rank",
    )


def _families(rows: Sequence[MemoryRow], groups: Sequence[MemoryGroup]) -> Markup:
    names = [
        (group.name, family)
        for group in groups
        for family in sorted({family for row in rows for family in row.families})
        if grouped({family: 1}).get(group.key)
    ]
    return table(
        ("Rank", *(f"{group}: {family}" for group, family in names)),
        ((row.label, *(size(row.families.get(family, 0)) for _, family in names)) for row in rows),
        caption="The proven bound by family of states",
    )
