"""The timeline: one step, predicted over measured, op by op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ratrain.report.contents import Hop, TimelinePanel
from ratrain.report.figures.frame import UNKNOWN, capital, chart, legend, section, time
from ratrain.report.html import Markup, details, table, tag
from ratrain.timeline.palette import OP_CLASSES

_HOPS = 200
PERFETTO = "https://ui.perfetto.dev"


def timeline_section(panels: Sequence[TimelinePanel], trace_command: str) -> Markup:
    """The figure, its legend, tables of ops by kind and of the critical path."""
    keys = {
        kind.key
        for panel in panels
        for row in panel.rows
        for box in (*row.compute, *row.messages, *row.state)
        for kind, _ in box.shares
    }
    legend_entries = [(f"o-{kind.key}", kind.name) for kind in OP_CLASSES if kind.key in keys]
    return section(
        "timeline",
        "Timeline",
        "Each row is a rank: the wide bar computes, the first thin bar receives messages, the "
        "second does state work. Drag to zoom in, double-click to see all; hover for an op.",
        legend([*legend_entries, ("o-idle", "idle"), ("o-critical", "critical path")]),
        tag(
            "p",
            tag(
                "label",
                tag("input", type="checkbox", checked=True, id="critical"),
                " mark the critical path",
            ),
            class_="controls",
        ),
        (
            chart(
                f"timeline-{number}",
                f"Timeline of one step, {panel.title}",
                heading=f"{capital(panel.title)}: {panel.note}",
                zoom=number == 0,
            )
            for number, panel in enumerate(panels)
        ),
        tag(
            "p",
            ("Every op of every rank: ", tag("code", trace_command), " writes a trace to open in ")
            if trace_command
            else "A trace is opened in ",
            tag("a", "Perfetto", href=PERFETTO, rel="noreferrer"),
            ". ",
            tag("button", "Save what is drawn here as a trace", type="button", id="save-trace"),
            class_="note",
        ),
        details("Ops by kind as a table", _totals(panels)),
        (
            details(f"Critical path as a table, {panel.title}", _critical(panel.critical))
            for panel in panels
            if panel.critical
        ),
    )


def _totals(panels: Sequence[TimelinePanel]) -> Markup:
    names = {total.kind: total.name for panel in panels for total in panel.totals}
    by_kind = [{total.kind: total for total in panel.totals} for panel in panels]
    head: list[str] = ["Kind", "What it is"]
    for panel in panels:
        head += [f"Ops {panel.title}", f"Time {panel.title}"]

    def cells(kind: str) -> Iterable[str]:
        yield kind
        yield names[kind]
        for totals in by_kind:
            total = totals.get(kind)
            yield UNKNOWN if total is None else f"{total.ops:,}"
            yield UNKNOWN if total is None else time(total.time_s)

    return table(
        head,
        (cells(kind) for kind in names),
        caption="Ops of one step by kind, and their time added up over all ranks, drawn or not",
        text=(0, 1),
    )


def _critical(hops: Sequence[Hop]) -> Markup:
    """The path's longest stretches, in order of time."""
    longest = sorted(hops, key=lambda hop: hop.start_s - hop.end_s)[:_HOPS]
    shown = sorted(longest, key=lambda hop: hop.start_s)
    left_out = len(hops) - len(shown)
    caption = "The chain of ops that ends the step, each waiting for the one before"
    caption += f"; {left_out:,} shorter stretches are left out" if left_out else ""
    return table(
        ("Begins", "Takes", "Rank", "Lane", "Ops", "First", "Last"),
        (
            (
                time(hop.start_s),
                time(hop.end_s - hop.start_s),
                f"{hop.rank}",
                hop.lane,
                f"{hop.ops}",
                hop.first,
                hop.last,
            )
            for hop in shown
        ),
        caption=caption,
        text=(3, 5, 6),
    )
