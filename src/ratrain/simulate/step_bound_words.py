"""What no order of a step's work can beat, in sentences and as JSON."""

from __future__ import annotations

from typing import Any

from ratrain.describe.units import counted, format_time
from ratrain.program.kind import Kind, Lane
from ratrain.simulate.step_bound import ChainBound, Interval, StepBound, Work

_ENDINGS = {Kind.B: "backward", Kind.I: "input gradient", Kind.W: "weight gradient"}


def bound_sentence(bound: StepBound, step_s: float) -> str:
    """The bound, how near a step comes to it, and which work makes it."""
    head = f"no order of this work takes less than {format_time(bound.time_s)}"
    if step_s > bound.time_s > 0:
        head += f" ({100 * bound.time_s / step_s:.1f} % of this step)"
    return f"{head}: {bound_reason(bound)}"


def bound_reason(bound: StepBound) -> str:
    """Which work makes the bound."""
    chain, busiest = bound.chained, _work(bound.busiest)
    if chain is None or chain.time_s <= bound.busiest.time_s:
        return f"{busiest} in each step"
    return (
        f"from unit {chain.unit}'s first forward on rank {chain.rank} to the end of its last "
        f"{_ENDINGS[chain.ending]} at least {_lasts(chain.inside)}; from there to its first "
        "forward of the next step, which waits for its reduction, update and gather, at least "
        f"{_lasts(chain.outside)}. Without this chain: {busiest}"
    )


def _lasts(interval: Interval) -> str:
    """How long an interval lasts at least, and what is done in it."""
    why = "one op after the other" if interval.work is None else _work(interval.work)
    return f"{format_time(interval.time_s)} ({why})"


def _work(work: Work) -> str:
    """What a machine does: "rank 3 computes for 5.3 s"."""
    time, ranks = format_time(work.time_s), work.machine.ranks
    who = f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + _listed([str(r) for r in ranks])
    if work.machine.lane is Lane.COMPUTE:
        return f"{who} computes for {time}"
    kinds = _listed(list(dict.fromkeys(kind.words for kind in work.kinds)))
    of = "" if all(kind.is_message for kind in work.kinds) else f" of {counted(work.units, 'unit')}"
    where = "a link of" if work.machine.lane is None else "the lane of"
    return f"{kinds}{of} take {where} {who} {time}"


def _listed(words: list[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def bound_json(bound: StepBound | None) -> dict[str, Any] | None:
    """Every figure, with its unit in its key; null where nothing is known."""
    if bound is None:
        return None
    return {
        "step_time_s": bound.time_s,
        "busiest_time_s": bound.busiest.time_s,
        "busiest": _work(bound.busiest),
        "chain": None if bound.chained is None else _chain_json(bound.chained),
        "reason": bound_reason(bound),
    }


def _chain_json(chain: ChainBound) -> dict[str, Any]:
    return {
        "step_time_s": chain.time_s,
        "rank": chain.rank,
        "stage": chain.stage,
        "unit": chain.unit,
        "inside_s": chain.inside.time_s,
        "outside_s": chain.outside.time_s,
    }
