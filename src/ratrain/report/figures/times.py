"""Where the step's time went: stacked bars, predicted beside measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ratrain.report.contents import RankTime, Times
from ratrain.report.figures.frame import UNKNOWN, legend, notes, percent, section, time
from ratrain.report.html import Markup, Styles, details, table, tag
from ratrain.timeline.picture import chosen_ranks

BARS = 16


def times_section(times: Times, styles: Styles) -> Markup:
    timed = [kind for kind in times.kinds if kind.predicted_s or kind.measured_s]
    whole_s = _longest_s(times)
    bars = [
        bar
        for source, means, step_s in (
            (
                "predicted",
                {k.kind: k.predicted_s or 0.0 for k in times.kinds},
                times.step_predicted_s,
            ),
            ("measured", {k.kind: k.measured_s or 0.0 for k in times.kinds}, times.step_measured_s),
        )
        if step_s is not None and any(means.values())
        for bar in [_bar(f"mean, {source}", means, whole_s, times, styles)]
    ]
    return section(
        "times",
        "Where the step's time goes",
        "The compute lane of a rank over one step: working, or what it waits for.",
        legend((f"t-{kind.kind}", kind.name) for kind in timed),
        tag("div", bars, class_="bars"),
        tag("h3", "Rank by rank") if len(times.ranks) > 1 else None,
        tag("div", list(_rank_bars(times, whole_s, styles)), class_="bars")
        if len(times.ranks) > 1
        else None,
        notes(_notes(times)),
        details("Times as a table", _table(times), _rank_table(times)),
    )


def _notes(times: Times) -> Iterator[str]:
    yield from times.notes
    alike = len(_alike(times.ranks, _longest_s(times)))
    if alike < len(times.ranks):
        yield "Neighbouring ranks that differ by less than half a percent share a bar."
    if alike > BARS:
        yield f"{BARS} of {alike} bars are drawn; the table has all of them."


def _longest_s(times: Times) -> float:
    """What the width of a bar stands for: nothing drawn is longer."""
    sums = [
        sum(kinds.values())
        for rank in times.ranks
        for kinds in (rank.predicted_s, rank.measured_s)
        if kinds
    ]
    sums.append(sum(kind.predicted_s or 0.0 for kind in times.kinds))
    sums.append(sum(kind.measured_s or 0.0 for kind in times.kinds))
    sums += [s for s in (times.step_predicted_s, times.step_measured_s) if s is not None]
    return max(sums, default=1.0) or 1.0


def _bar(
    label: str, seconds: Mapping[str, float], whole_s: float, times: Times, styles: Styles
) -> Markup:
    names = {kind.kind: kind.name for kind in times.kinds}
    total_s = sum(seconds.values())
    return tag(
        "div",
        tag("span", label, class_="label"),
        tag(
            "div",
            (
                tag(
                    "i",
                    class_=f"t-{kind} {styles.width(seconds[kind] / whole_s)}",
                    title=f"{names[kind]} {time(seconds[kind])}, "
                    f"{percent(seconds[kind] / (total_s or 1.0))}",
                )
                for kind in names
                if seconds.get(kind, 0.0) > 0
            ),
            class_="bar",
        ),
        tag("span", time(total_s), class_="value"),
        class_="labelled",
    )


def _rank_bars(times: Times, whole_s: float, styles: Styles) -> Iterator[Markup]:
    alike = _alike(times.ranks, whole_s)
    shown = set(chosen_ranks(range(len(alike)), BARS))
    for number, ranks in enumerate(alike):
        if number not in shown:
            continue
        first, last = ranks[0], ranks[-1]
        name = f"ranks {first.rank}-{last.rank}" if len(ranks) > 1 else f"rank {first.rank}"
        has_both = bool(first.predicted_s) and bool(first.measured_s)
        for source, seconds in (("predicted", first.predicted_s), ("measured", first.measured_s)):
            if seconds:
                label = f"{name}, {source}" if has_both else name
                yield _bar(label, seconds, whole_s, times, styles)


def _alike(ranks: Sequence[RankTime], whole_s: float) -> list[list[RankTime]]:
    """Neighbours whose bars would look the same, put together."""
    groups: list[list[RankTime]] = []
    for rank in ranks:
        if groups and _same(groups[-1][0], rank, whole_s):
            groups[-1].append(rank)
        else:
            groups.append([rank])
    return groups


def _same(first: RankTime, other: RankTime, whole_s: float) -> bool:
    pairs = ((first.predicted_s, other.predicted_s), (first.measured_s, other.measured_s))
    return all(
        a.keys() == b.keys() and all(abs(a[kind] - b[kind]) < 0.005 * whole_s for kind in a)
        for a, b in pairs
    )


def _table(times: Times) -> Markup:
    rows = [("step", times.step_predicted_s, times.step_measured_s)]
    rows += [(kind.name, kind.predicted_s, kind.measured_s) for kind in times.kinds]
    return table(
        ("Mean over ranks", "Predicted", "Measured", "Measured / predicted"),
        (
            (name, time(predicted), time(measured), _ratio(predicted, measured))
            for name, predicted, measured in rows
        ),
        caption="Where the step's time goes",
    )


def _ratio(predicted_s: float | None, measured_s: float | None) -> str:
    if not predicted_s or predicted_s < 1e-9 or measured_s is None:
        return UNKNOWN
    return f"{measured_s / predicted_s:.2f}"


def _rank_table(times: Times) -> Markup:
    kinds = [kind for kind in times.kinds if kind.predicted_s or kind.measured_s]
    rows = [
        (f"{rank.rank} {source}", seconds)
        for rank in times.ranks
        for source, seconds in (("predicted", rank.predicted_s), ("measured", rank.measured_s))
        if seconds
    ]
    return table(
        ("Rank", *(kind.name for kind in kinds)),
        ((name, *(time(seconds.get(kind.kind)) for kind in kinds)) for name, seconds in rows),
        caption="The same for each rank",
    )
