"""Loss and throughput, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from ratrain.report.contents import Progress
from ratrain.report.figures.frame import capital, chart, legend, number, section, size, time
from ratrain.report.html import Markup, details, table, tag

_ROWS = 200


def progress_section(progress: Progress) -> Markup:
    step, things = progress.words
    charts = [
        ("progress-loss", "Loss"),
        ("progress-time", f"{capital(step)} time"),
        ("progress-rate", f"{capital(things)} per second"),
    ]
    if any(size_bytes is not None for size_bytes in progress.allocated_bytes):
        charts.append(("progress-memory", "Allocated memory, fullest rank"))
    return section(
        "progress",
        "Loss and throughput",
        f"{progress.steps:,} {step}s of {progress.tokens:,} {things}.{_starts(progress.starts)}",
        legend((("o-forward", "loss"), ("o-recovery", "validation loss")))
        if progress.is_validated
        else None,
        tag(
            "div",
            (
                chart(kind, f"{name} by {step}", heading=name, zoom=number == 0)
                for number, (kind, name) in enumerate(charts)
            ),
            class_="pair",
        ),
        details(f"{capital(step)}s as a table", _table(progress)),
    )


def _starts(starts: Sequence[int]) -> str:
    """After which steps the run was started again, or " Begun again" where none was saved."""
    resumed = [f"{first - 1:,}" for first in starts if first > 1]
    words = f" Resumed after step {', '.join(resumed)} (dashed)." if resumed else ""
    return words + (" Begun again at step 1 (dashed)." if 1 in starts else "")


def _table(progress: Progress) -> Markup:
    count = len(progress.step)
    interval = -(-count // _ROWS)
    validated = progress.is_validated
    places = [at for at in range(count) if at % interval == 0 or at == count - 1]
    step, things = map(capital, progress.words)
    columns = f"{step} time", f"{things}/s", "Allocated"
    whole = interval == 1 and count == progress.steps
    caption = f"Every {progress.words[0]}" if whole else f"Some of the {progress.words[0]}s"
    return table(
        (step, "Loss", *(("Validation loss",) if validated else ()), *columns),
        (
            (
                f"{progress.step[at]:,}",
                "not a number" if (loss := progress.loss[at]) is None else f"{loss:.4f}",
                *((number(progress.validation[at]),) if validated else ()),
                time(progress.step_time_s[at]),
                f"{progress.tokens_per_s[at]:,.0f}",
                size(progress.allocated_bytes[at]),
            )
            for at in places
        ),
        caption=f"{caption}; metrics.jsonl has all of them",
    )
