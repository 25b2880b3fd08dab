"""The small files of other planners in examples/convert, and command lines that convert them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples" / "convert"
PROFILES = ("A100_tp1_bs1", "A100_tp1_bs4", "A100_tp2_bs2", "A100_tp2_bs4")
COMMANDS: dict[str, list[str]] = {
    "grolar": [
        *("grolar", "--cluster", "grolar/cluster_info.json"),
        *("--plan", "grolar/training_config.json"),
        *("--profile", "grolar/model_latencies.json", "--model", "grolar/llama-1b.json"),
    ],
    "metis": [
        *("metis", "--hosts", "metis/hostfile", "--cluster", "metis/clusterfile.json"),
        *("--plan", "metis/results", "--model", "metis/llama-8.json"),
        *("--sequence", "1024", "--sequences", "128"),
        *(word for name in PROFILES for word in ("--profile", f"metis/DeviceType.{name}.json")),
    ],
    "sailor": [
        *("sailor", "--training", "sailor/training_config.json"),
        *("--cluster", "sailor/basic_cluster_config.json", "--plan", "sailor/plan.json"),
        *("--profile", "GH-96=sailor/profile.json", "--model", "opt-350m"),
    ],
}
"""Run in a folder that holds a copy of examples/convert; `-o FOLDER` is to be added."""


def edit(path: Path, change: Callable[[Any], None]) -> None:
    """Changes the table of a JSON file."""
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))
