"""How long the largest jobs take, and how much memory: whole commands, start and imports included.

    python benchmarks/sizes.py            (some minutes)
    python benchmarks/sizes.py --runs 1 --json

Three jobs: many sequences, many layers and stages, and many sequences to prepare. A row is the
median wall and CPU time of one command in a process of its own, and the most memory it held.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from speed import machine

START = "import sys; sys.argv[0] = 'ratrain'; from ratrain.cli.main import main; main()"
WANTED_S, WANTED_BYTES = 5.0, 1_000_000_000

MANY_SEQUENCES = """\
[model]
name = "qwen2.5-32b"
sequence_length = 2048
[cluster]
name = "h100-dgx"
devices = 16
[batch]
sequences = 100000
micro_batch = 1
[layout]
pipeline = 16
data = 1
layers = "equal"
[schedule]
name = "ratrain"
"""
MANY_LAYERS = """\
[model]
name = "deep.json"
sequence_length = 1024
[cluster]
name = "h100-dgx"
devices = 64
[batch]
sequences = 1024
micro_batch = 1
[layout]
pipeline = 64
data = 1
[schedule]
name = "ratrain"
"""
DEEP_MODEL = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 1000,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 5632,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
}
TO_PREPARE = """\
[model]
name = "tiny-llama"
sequence_length = 128
[cluster]
name = "cpu-lab"
devices = 2
[batch]
sequences = 1000000
micro_batch = 1
[layout]
pipeline = 2
data = 1
[schedule]
name = "ratrain"
dtype = "fp32"
[train]
steps = 1
[data]
files = ["text.jsonl"]
"""


@dataclass(frozen=True)
class Row:
    """One command: its medians, the most memory of any run, and its exit status."""

    label: str
    wall_s: float
    cpu_s: float
    peak_bytes: int
    status: int

    @property
    def reached(self) -> bool:
        return self.wall_s < WANTED_S and self.peak_bytes < WANTED_BYTES and self.status == 0


def main() -> None:
    """Prints the machine and every row."""
    parser = argparse.ArgumentParser(description="How large jobs may be.")
    parser.add_argument("--runs", type=int, default=3, help="runs of each row (default 3)")
    parser.add_argument("--json", action="store_true", help="print JSON; keys name their unit")
    given = parser.parse_args()
    rows = [measured(label, command, given.runs) for label, command in commands()]
    if given.json:
        print(json.dumps({"machine": machine(), "rows": [asdict(row) for row in rows]}, indent=2))
        return
    print(machine())
    print(f"\n{'median of ' + str(given.runs) + ' runs':52}{'wall':>9}{'CPU':>9}{'peak':>9}")
    for row in rows:
        mark = "" if row.reached else "  over 5 s or 1 GB" if row.status == 0 else "  FAILED"
        times = f"{row.wall_s:7.2f} s{row.cpu_s:7.2f} s"
        print(f"{row.label:52}{times}{row.peak_bytes / 1e6:6.0f} MB{mark}")


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every row's label and command, while its files exist."""
    with TemporaryDirectory() as folder:
        here = Path(folder)
        many, deep, prepare = (here / f"{name}.toml" for name in ("many", "layers", "prepare"))
        many.write_text(MANY_SEQUENCES)
        deep.write_text(MANY_LAYERS)
        (here / "deep.json").write_text(json.dumps(DEEP_MODEL))
        prepare.write_text(TO_PREPARE)
        lines = (json.dumps({"text": f"line {number} " * 40}) for number in range(2000))
        (here / "text.jsonl").write_text("\n".join(lines))
        for verb in ("verify", "simulate"):
            yield f"{verb}, 32B on 16 stages, 100,000 sequences", [verb, str(many)]
        for verb in ("verify", "simulate"):
            label = f"{verb}, 1,000 layers on 64 stages, 1,024 sequences"
            yield label, [verb, str(deep)]
        run = ["train", str(prepare), "--prepare-only", "--run", str(here / "RUN")]
        yield "train --prepare-only, 1,000,000 sequences", run


def measured(label: str, command: list[str], runs: int) -> Row:
    """A command's row."""
    walls: list[float] = []
    cpus: list[float] = []
    peaks: list[int] = []
    status = 0
    for number in range(runs):
        words = [part.replace("RUN", f"run-{number}") for part in command]
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", START, *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, ended, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(ended)
        walls.append(time.perf_counter() - began)
        cpus.append(used.ru_utime + used.ru_stime)
        peaks.append(used.ru_maxrss * 1024)  # Linux counts it in KiB
        status = status or process.returncode
    return Row(label, median(walls), median(cpus), max(peaks), status)


if __name__ == "__main__":
    main()
