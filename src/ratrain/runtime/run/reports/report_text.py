"""A run's report in lines of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ratrain.describe.lines import wrapped
from ratrain.describe.units import format_bytes, format_time
from ratrain.program.families import GROUPS
from ratrain.program.text.family_groups import grouped
from ratrain.runtime.rank.progress import shown_text
from ratrain.runtime.run.episodes import episode_words
from ratrain.runtime.run.reports.experts import expert_text
from ratrain.runtime.run.reports.goodput import PARTS
from ratrain.runtime.run.reports.kind_names import kind_names
from ratrain.runtime.run.reports.moved import moved_text
from ratrain.runtime.run.reports.settled import settled_text

_NAME_COLUMNS = 34
_SHOWN_RANKS = 16
_BOTH = "predicted_s", "measured_s"
NOTABLE = 0.1
"""What a time is of the step, at least, to be shown by itself: a ratio of less says nothing."""


def report_text(report: dict[str, Any]) -> list[str]:
    """What `report_of` found, for people."""
    parts = _verdict(report), _head(report), _times(report), _memory(report), _places(report)
    verdict, head, *rest = map(list, parts)
    return [*verdict, *head, *(line for part in rest for line in ("", *part))]


def _verdict(report: dict[str, Any]) -> Iterator[str]:
    """Whether the step took what was predicted, and whether memory stayed in its budget."""
    step = report["step_time_s"]
    if step["measured"] is None:
        return
    said = f"a step took {format_time(step['measured'])}"
    if step["ratio"] is not None:
        said += f", {against(step['ratio'])}"
    rows = [row for row in report["memory"] if row["budget_bytes"] is not None]
    over = [row["rank"] for row in rows if (row["allocated_peak_bytes"] or 0) > row["budget_bytes"]]
    if over:
        said += f"; over its memory budget: rank {', '.join(map(str, over[:8]))}"
    elif rows and all(row["allocated_peak_bytes"] is not None for row in rows):
        said += "; every rank stayed in its memory budget"
    yield from wrapped(f"verdict: {said}")


def against(ratio: float) -> str:
    """ "3 % less than predicted"."""
    percent = 100 * (ratio - 1)
    if abs(percent) < 1:
        return "as predicted"
    return f"{abs(percent):.0f} % {'more' if percent > 0 else 'less'} than predicted"


def _head(report: dict[str, Any]) -> Iterator[str]:
    steps, loss = report["steps"], report["loss"]
    progress = f"{steps['done']} of {steps['end']} steps"
    if loss is None:
        yield f"{progress}: nothing was measured"
        return
    precision = "" if report["precision"] == "fp32" else f"; {report['precision']}"
    added = report.get("sum_order") and f"; gradients added in the order {report['sum_order']}"
    head = f"{progress}; loss {loss['first']:.4f} -> {loss['last']:.4f}{precision}{added or ''}"
    yield from wrapped(head)
    source = report.get("from")
    if source is not None:
        data = "text read anew" if source["data_restarted"] else "place in the text kept"
        yield from wrapped(f"began from step {source['step']} of {source['run']}, {data}")
    if report.get("episodes"):
        yield from wrapped(f"programs: {episode_words(report['episodes'])}")
    if report["skipped_updates"]:
        yield from wrapped(
            f"{report['skipped_updates']:,} updates (each of one rank's part of a layer, embedding "
            "or head) were skipped because a gradient overflowed; if there are many, lower [train] "
            "loss_scale"
        )
    validation = report["validation"]
    if validation is not None:
        last, best = validation["last"], validation["best"]
        yield (
            f"validation loss {last['loss']:.4f} after step {last['step']}; best "
            f"{best['loss']:.4f} after step {best['step']}"
        )
        if validation.get("drift") is not None:
            yield (
                "of the mean of all weights that are averaged, from which each is "
                f"{100 * validation['drift']:.2g} % away"
            )
    yield from settled_text(report.get("settled"))
    yield from _samples(report)
    yield from _goodput(report)


def _samples(report: dict[str, Any]) -> Iterator[str]:
    """The last samples, a line each."""
    samples = report.get("samples")
    if samples is None:
        return
    took = format_time(samples["took_s"])
    yield f"samples after step {samples['step']}; all of the run's took {took}"
    for sample in samples["texts"]:
        yield shown_text(f'  "{sample["prompt"]}" goes on "{sample["text"]}"', 80)


def _goodput(report: dict[str, Any]) -> Iterator[str]:
    """Where the time since the first start went, where it is known."""
    goodput = report.get("goodput")
    if goodput is None:
        return
    times = [(goodput[key], words) for key, words in PARTS.items()]
    parts = [f"{words} {format_time(time_s)}" for time_s, words in times if time_s >= 0.05]
    starts = f"first of {goodput['starts']} starts" if goodput["starts"] > 1 else "start"
    yield from wrapped(
        f"goodput {100 * goodput['fraction']:.1f} %: steps {format_time(goodput['steps_s'])} of "
        f"{format_time(goodput['total_s'])} since the {starts}"
        + (f"; {', '.join(parts)}" if parts else "")
    )


def _times(report: dict[str, Any]) -> Iterator[str]:
    step, counted = report["step_time_s"], report["steps"]["counted"]
    if counted is None:
        return
    yield f"{'':{_NAME_COLUMNS}}{'predicted':>12}{'measured':>12}{'ratio':>8}"
    yield _row("step", step["predicted"], step["measured"], step["ratio"])
    names = kind_names(report["facts"])
    least_s = NOTABLE * max(step["predicted"] or 0.0, step["measured"] or 0.0)
    small = [kind for kind in report["kinds"] if longest_s(kind) < least_s]
    for kind in report["kinds"]:
        if kind not in small:
            yield _row(
                "  " + names[kind["kind"]], kind["predicted_s"], kind["measured_s"], kind["ratio"]
            )
    if any(map(longest_s, small)):
        predicted_s, measured_s = (_sum(small, key) for key in _BOTH)
        yield _row("  the rest, each under a tenth", predicted_s, measured_s, None)
    counted_steps = _counted(step, report["period"], *counted)
    yield from wrapped(f"{report['tokens_per_s']:,.0f} tokens/s. {counted_steps}")
    yield f"The indented rows are means over ranks{_of_step(report['kinds_step'])}."
    if step["predicted"] is None:
        yield "No prediction: the run was not calibrated."
    yield from expert_text(report)


def longest_s(kind: dict[str, Any]) -> float:
    """The longer of a kind's two times."""
    return max(kind[key] or 0.0 for key in _BOTH)


def _sum(kinds: list[dict[str, Any]], key: str) -> float | None:
    times = [kind[key] for kind in kinds if kind[key] is not None]
    return sum(times) if times else None


def _counted(step: dict[str, Any], period: dict[str, Any], first: int, last: int) -> str:
    """Which steps stand for the run."""
    if period["steps"] > 1:
        what = f"median of periods of {period['steps']} steps, each the mean of its steps, from"
        if not period["whole"]:
            what = f"mean of less than a period of {period['steps']} steps,"
        predicted, measured = (period[f"slowest_{of}_s"] for of in ("predicted", "measured"))
        return (
            f"Step: {what} {first} to {last}. The slowest step of a period: predicted "
            f"{_time(predicted)}, measured {_time(measured)}."
        )
    if first == last:
        return f"Step {first} alone: {format_time(step['measured'])}."
    return (
        f"Step: median of steps {first} to {last} "
        f"({format_time(step['fastest'])} to {format_time(step['slowest'])})."
    )


def _of_step(typical: dict[str, Any] | None) -> str:
    """Which step the times of kinds are from."""
    if typical is None:
        return ""
    last, steps = typical["step"], typical["steps"]
    time = format_time(typical["step_time_s"])
    if steps == 1:
        return f", in step {last} ({time})"
    return f" and steps {last - steps + 1} to {last} ({time})"


def _row(name: str, predicted: float | None, measured: float | None, ratio: float | None) -> str:
    ratio_text = f"{ratio:.2f}" if ratio is not None and ratio < 1000 else "-"
    return f"{name:{_NAME_COLUMNS}}{_time(predicted):>12}{_time(measured):>12}{ratio_text:>8}"


def _time(time_s: float | None) -> str:
    return "-" if time_s is None else format_time(time_s)


def _memory(report: dict[str, Any]) -> Iterator[str]:
    rows = report["memory"]
    yield f"{'memory':10}{'proven':>12}{'ledger':>12}{'allocated':>12}{'budget':>12}"
    for row in rows[:_SHOWN_RANKS]:
        yield f"{'rank ' + str(row['rank']):10}" + "".join(
            f"{_size(row[key]):>12}"
            for key in ("bound_bytes", "ledger_peak_bytes", "allocated_peak_bytes", "budget_bytes")
        )
    if len(rows) > _SHOWN_RANKS:
        yield f"... {len(rows) - _SHOWN_RANKS} more ranks in report.json"
    worst = max(rows, key=lambda row: row["bound_bytes"])
    items = sorted(grouped(worst["bound_items"]).items(), key=lambda item: -item[1])
    parts = ", ".join(f"{GROUPS[key]} {format_bytes(size)}" for key, size in items)
    yield from wrapped(f"rank {worst['rank']} at its peak: {parts}")
    yield from _computed_on(rows)
    yield from _uncounted(rows)
    yield from _products(rows)
    yield from _beyond_the_proof(rows)
    yield from moved_text(report)


def _computed_on(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What ranks computed on, where it was not the same on all."""
    ranks = dict[str, list[int]]()
    for row in rows:
        ranks.setdefault(row["computes_on"], []).append(row["rank"])
    if len(ranks) > 1:
        parts = (
            f"rank {', '.join(map(str, some[:_SHOWN_RANKS]))} on {on or 'what is not known'}"
            for on, some in ranks.items()
        )
        yield from wrapped("computed: " + "; ".join(parts))


def _uncounted(rows: list[dict[str, Any]]) -> Iterator[str]:
    """That the budget was not held, where nothing stood before the allocator."""
    if all(row["allocated_peak_bytes"] is None for row in rows):
        yield from wrapped(
            "what ranks allocated was not counted, and so was not held to the budget: the library "
            "that does both was not loaded. It is built where there is a C compiler (`pip install "
            "-e .` again); what kept it from loading is in logs/"
        )


def _products(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What the library that multiplies matrices took beside all that."""
    worst = max(rows, key=lambda row: row["product_peak_bytes"] or 0)
    if worst["product_peak_bytes"]:
        yield from wrapped(
            f"beside that, matrix products took up to {format_bytes(worst['product_peak_bytes'])} "
            f"for themselves (rank {worst['rank']}), which is in no proof and in no budget"
        )


def _beyond_the_proof(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What a process allocated beyond the bound: nothing of ours does."""
    beyond = {row["rank"]: (row["allocated_peak_bytes"] or 0) - row["bound_bytes"] for row in rows}
    rank = max(beyond, key=lambda each: beyond[each])
    if beyond[rank] > 0:
        yield from wrapped(
            f"rank {rank} allocated {format_bytes(beyond[rank])} more than is proved: a library "
            "of this machine takes memory that no proof counts "
            "(docs/explanation/runtime.md, The budget). Please report it, with report.json"
        )


def _size(size_bytes: float | None) -> str:
    return "-" if size_bytes is None else format_bytes(size_bytes)


def _places(report: dict[str, Any]) -> Iterator[str]:
    saved = [checkpoint for checkpoint in report["checkpoints"] if checkpoint["complete"]]
    best_step = report["validation"]["best"]["step"] if report["validation"] else None
    listed = ", ".join(
        f"step {checkpoint['step']} ({_size(checkpoint['size_bytes'])}"
        + (", best)" if checkpoint["step"] == best_step else ")")
        for checkpoint in saved
    )
    yield from wrapped(f"checkpoints  {listed or 'none'}", " " * 13)
    yield f"run          {report['run']}"
