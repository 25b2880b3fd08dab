"""Loss and throughput, step by step."""

from __future__ import annotations

from ratrain.report.contents import Progress
from ratrain.report.figures.frame import chart, section, size, time
from ratrain.report.html import Markup, details, table, tag

_ROWS = 200


def progress_section(progress: Progress) -> Markup:
    starts = ", ".join(f"{step:,}" for step in progress.starts)
    charts = [
        ("progress-loss", "Loss"),
        ("progress-time", "Step time"),
        ("progress-rate", "Tokens per second"),
    ]
    if any(size_bytes is not None for size_bytes in progress.allocated_bytes):
        charts.append(("progress-memory", "Allocated memory, fullest rank"))
    return section(
        "progress",
        "Loss and throughput",
        f"{progress.steps:,} steps of {progress.tokens:,} tokens."
        + (f" Restarted at step {starts} (dashed lines)." if starts else ""),
        tag(
            "div",
            (
                chart(kind, f"{name} by step", heading=name, zoom=number == 0)
                for number, (kind, name) in enumerate(charts)
            ),
            class_="pair",
        ),
        details("Steps as a table", _table(progress)),
    )


def _table(progress: Progress) -> Markup:
    count = len(progress.step)
    interval = -(-count // _ROWS)
    places = [at for at in range(count) if at % interval == 0 or at == count - 1]
    caption = "Every step" if interval == 1 and count == progress.steps else "Some of the steps"
    return table(
        ("Step", "Loss", "Step time", "Tokens/s", "Allocated"),
        (
            (
                f"{progress.step[at]:,}",
                "not a number" if (loss := progress.loss[at]) is None else f"{loss:.4f}",
                time(progress.step_time_s[at]),
                f"{progress.tokens_per_s[at]:,.0f}",
                size(progress.allocated_bytes[at]),
            )
            for at in places
        ),
        caption=f"{caption}; metrics.jsonl has all",
    )
