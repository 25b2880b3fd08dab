"""Periods of averages in words: time against how long a unit drifts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ratrain.describe.job import ScheduleSpec
from ratrain.describe.lines import wrapped
from ratrain.describe.units import format_time
from ratrain.plan.search.periods import HIDDEN, Period, chosen_words


def periods_text(found: Sequence[Period], schedule: ScheduleSpec) -> Iterator[str]:
    """In lines of at most 80 columns: those in the plan's own wire, and of its own length in
    others; first what was chosen, where the job leaves that open."""
    if not found:
        return
    own, wire = schedule.average_every, schedule.average_wire
    asked = schedule.average_exposed
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
    least = _shortest_hidden(found, HIDDEN if asked is None else asked)
    others = [f"{steps} in {other}" for other, steps in least.items() if other != wire]
    also = f"; {', '.join(others)}" if others else ""
    if wire in least:
        yield from wrapped(
            f"The shortest of these of which at most {_percent(asked)} is exposed: "
            f"average_every = {least[wire]}{also}. The plan's own is marked *."
        )
    whole = next((each for each in found if each.wire == "fp32"), None)
    if schedule.averages_by_turns and whole is not None:
        yield from wrapped(
            "A run ends with a last average of all weights, in fp32, so that one model is saved: "
            f"{format_time(whole.sent_s * whole.steps)} on that line."
        )


def _percent(asked: float | None) -> str:
    return f"{100 * (HIDDEN if asked is None else asked):g} %"


def _shortest_hidden(found: Sequence[Period], exposed: float) -> dict[str, int]:
    """By wire the steps of the shortest period of which no more is exposed."""
    least: dict[str, int] = {}
    for period in found:
        if period.hides(exposed):
            least.setdefault(period.wire, period.steps)
    return least


def periods_json(found: Sequence[Period]) -> list[dict[str, Any]]:
    return [vars(period) | {"limit_s": period.limit_s} for period in found]
