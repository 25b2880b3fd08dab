"""How a share of a processor comes in a lab: python benchmarks/lab_pauses.py

Root. A process that never waits, on a device of each share: for how long it runs, and for how long
it is then paused. Prints the machine's load beside every row: a busy one pauses processes too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import fmean

from ratrain.describe.cluster import ClusterSpec
from ratrain.describe.strict import load
from ratrain.lab import Lab, place_to_env
from ratrain.lab.inside import inside
from ratrain.readers.toml import parse_toml

SHARES, SECONDS = (0.15, 0.3, 0.6), 4.0
PAUSE_S = 0.0008
"""What is at least this long between two looks at the clock is a pause."""
CLUSTER = """
name = "pauses"
source = "made up"
[[device]]
name = "d"
launch = "10us"
launch_source = "made up"
memory_efficiency = 0.8
memory_efficiency_source = "made up"
lab = {{ cpus = {share}, overhead = "50MB" }}
tiers = [{{ name = "RAM", capacity = "100MB", bandwidth = "10GB/s", source = "made up" }}]
rates = [{{ dtype = "fp32", peak = "100GFLOP/s", gemm = "50GFLOP/s", source = "made up" }}]
[[host]]
name = "here"
device = "d"
devices = 1
count = 1
[links.room]
latency = "200us"
bandwidth = "100Mbit/s"
source = "made up"
"""


def spin() -> None:
    """Looks at the clock again and again; prints the mean run and pause in seconds."""
    end_s = time.perf_counter() + SECONDS
    began_s = last_s = time.perf_counter()
    runs_s: list[float] = []
    pauses_s: list[float] = []
    while last_s < end_s:
        now_s = time.perf_counter()
        if now_s - last_s > PAUSE_S:
            runs_s.append(last_s - began_s)
            pauses_s.append(now_s - last_s)
            began_s = now_s
        last_s = now_s
    print(fmean(runs_s), fmean(pauses_s))


def main() -> None:
    """A row for each share."""
    print(f"{'processors':>10}{'runs, ms':>10}{'pauses, ms':>12}{'load':>7}")
    for share in SHARES:
        spec = load(ClusterSpec, *parse_toml(CLUSTER.format(share=share), "pauses.toml"))
        with Lab(spec, 1) as lab:
            done = subprocess.run(
                inside(sys.executable, __file__, "spin"),
                env={**os.environ, **place_to_env(lab.places[0])},
                capture_output=True,
                text=True,
                check=True,
            )
        run_s, pause_s = map(float, done.stdout.split())
        print(
            f"{share:>10g}{run_s * 1e3:>10.1f}{pause_s * 1e3:>12.1f}{os.getloadavg()[0]:>7.1f}",
            flush=True,
        )


if __name__ == "__main__":
    spin() if sys.argv[1:] == ["spin"] else main()
