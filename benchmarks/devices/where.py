"""Where a step of one rank goes on a GPU: its kernels by time, how long the GPU stood idle, what
the rank's Python did meanwhile.

    python benchmarks/devices/where.py OUT.json

The job is `gpu.py`'s, trained by the runtime. A thread of the rank's process looks at its stacks,
and then torch's profiler at its kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import gpu

WATCH = """
import os, sys, threading, time
def watch():
    from pathlib import Path
    out, metrics = os.environ["WHERE_OUT"], Path(os.environ["WHERE_METRICS"])
    def steps():
        return metrics.read_text().count("step_time_s") if metrics.exists() else 0
    while steps() < 4:
        time.sleep(0.02)
    import collections, json, torch
    stacks = collections.Counter()
    until = time.time() + 1.5
    while time.time() < until:
        time.sleep(0.003)
        for number, frame in sys._current_frames().items():
            if number == threading.get_ident():
                continue
            lines = []
            while frame is not None and len(lines) < 5:
                code = frame.f_code
                lines.append(f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}")
                frame = frame.f_back
            stacks[" < ".join(lines)] += 1
    Path(out + ".stacks").write_text(json.dumps(stacks.most_common(60)))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        time.sleep(0.8)
    profile.export_chrome_trace(out)
if "ratrain.runtime.rank" in " ".join(sys.orig_argv):
    threading.Thread(target=watch, daemon=False).start()
"""


def calls(events: list[dict[str, Any]]) -> list[Any]:
    """The driver's calls by time."""
    by_name: dict[str, list[float]] = {}
    for event in events:
        if event.get("cat") in ("cuda_runtime", "cuda_driver"):
            by_name.setdefault(event["name"], []).append(event["dur"])
    rows = ((round(sum(d) / 1e3, 2), len(d), name) for name, d in by_name.items())
    return sorted(rows, reverse=True)[:20]


def kernels(every: list[dict[str, Any]]) -> dict[str, Any]:
    """Time by kernel over what was looked at, and how much of it some kernel ran."""
    events = [e for e in every if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    begin = min(event["ts"] for event in events)
    end = max(event["ts"] + event["dur"] for event in events)
    by_name: dict[str, list[float]] = {}
    for event in events:
        by_name.setdefault(event["name"][:100], []).append(event["dur"])
    gaps, last = [], begin
    before: dict[str, list[float]] = {}
    for event in sorted(events, key=lambda event: event["ts"]):
        gaps.append(max(0.0, event["ts"] - last))
        before.setdefault(event["name"][:60], []).append(gaps[-1])
        last = max(last, event["ts"] + event["dur"])
    rows = sorted(((sum(d), len(d), name) for name, d in by_name.items()), reverse=True)
    return {
        "looked_at_ms": (end - begin) / 1e3,
        "busy_ms": (end - begin - sum(gaps)) / 1e3,
        "gaps_ms": {
            f"over {low} us": sum(gap for gap in gaps if gap >= low) / 1e3 for low in (0, 5, 20, 50)
        },
        "gaps_over_20_us": sum(gap >= 20 for gap in gaps),
        "gaps_before": sorted(
            ((round(sum(d) / 1e3, 2), len(d), name) for name, d in before.items()), reverse=True
        )[:25],
        "kernels": [(round(total / 1e3, 2), count, name) for total, count, name in rows[:40]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    said = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(WATCH)
        trace = folder / "trace.json"
        os.environ.update(
            PYTHONPATH=f"{folder}:{os.environ.get('PYTHONPATH', '')}",
            WHERE_OUT=str(trace),
            WHERE_METRICS=str(folder / "alone" / "metrics.jsonl"),
        )
        job = gpu.written_job(folder, "alone", steps=14)
        row = gpu.trained(job)
        events = json.loads(trace.read_text())["traceEvents"]
        figures = {
            "step_s": gpu.step_s(row["rows"][-7:]),
            **kernels(events),
            "calls": calls(events),
        }
        figures["stacks"] = json.loads(Path(f"{trace}.stacks").read_text())
    said.out.write_text(json.dumps(figures, indent=1) + "\n")
    json.dump(figures, sys.stdout, indent=0)


if __name__ == "__main__":
    main()
