"""What binds, what would help, and every configuration that was looked at."""

from __future__ import annotations

from collections.abc import Sequence

from ratrain.report.contents import Advice, Candidates, PointKind
from ratrain.report.figures.frame import capital, chart, legend, notes, section, size, time
from ratrain.report.html import Markup, details, join, table, tag

_ROWS = 60
_STATES: dict[PointKind, str] = {
    "chosen": "this layout",
    "simulated": "simulated and proven to fit",
    "fits": "fits, time by closed formula",
    "misfit": "does not fit",
}


def advice_section(advice: Advice) -> Markup:
    """Measured first, then what the search of the job predicts of other layouts."""
    heading = f"Predicted from {advice.basis}" if advice.basis else "Predicted"
    predicted = [tag("strong", sentence(advice.binding))] if advice.binding else []
    predicted += [sentence(way) for way in advice.ways]
    return section(
        "advice",
        "What binds, and what would help",
        None,
        _list("Measured", [sentence(line) for line in advice.measured]),
        _list(heading, predicted),
        _list("By kind of device", [sentence(line) for line in advice.kinds]),
    )


def _list(heading: str, lines: Sequence[str | Markup]) -> Markup | None:
    if not lines:
        return None
    return join(tag("h3", heading), tag("ul", (tag("li", line) for line in lines), class_="ways"))


def sentence(text: str) -> str:
    return f"{capital(text)}."


def candidates_section(candidates: Candidates) -> Markup:
    kinds = {point.kind for point in candidates.points}
    return section(
        "candidates",
        "Other layouts of the job",
        f"Step time against memory of the fullest device{_budget(candidates)}. "
        f"{candidates.checked:,} configurations were checked, {candidates.fitting:,} fit, "
        f"{candidates.simulated} were simulated. Hover over a dot, or use the arrow keys, to see "
        "its configuration.",
        legend((f"p-{kind}", name) for kind, name in _STATES.items() if kind in kinds),
        chart("candidates", "Configurations by step time and memory"),
        notes(candidates.notes),
        details("Configurations as a table", _table(candidates)),
    )


def _budget(candidates: Candidates) -> str:
    """The budget in words, where the picture does not reach up to it."""
    if candidates.budget_is_near:
        return ""
    return f"; the budget of {size(candidates.budget_bytes)} is far above the top of the picture"


def _table(candidates: Candidates) -> Markup:
    return table(
        ("Configuration", "Step", "Memory", "State", "Details"),
        (
            (
                point.name,
                time(point.step_s),
                size(point.memory_bytes),
                _STATES[point.kind],
                "; ".join(point.details),
            )
            for point in candidates.points[:_ROWS]
        ),
        caption="This layout first, then those simulated, then the fastest of the others",
        text=(0, 3, 4),
    )
