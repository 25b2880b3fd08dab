"""What a lab's relay carries and how far off its latency is: python benchmarks/lab_latency.py

Root. Two hosts on two sites, one link at a time; each measured four times, as `ratrain lab check`
measures once. Prints the load of the machine beside every row: a busy one says little.
"""

from __future__ import annotations

import os
from itertools import product

from ratrain.describe.cluster import ClusterSpec
from ratrain.describe.strict import load
from ratrain.lab import Lab
from ratrain.lab.probes import MeasuredLink, measure_link
from ratrain.readers.toml import parse_toml

LATENCIES, BANDWIDTHS, REPEATS = ("1ms", "10ms"), ("10Gbit/s", "1Gbit/s", "100Mbit/s"), 4
CLUSTER = """
name = "far"
source = "made up"
[[device]]
name = "d"
launch = "10us"
launch_source = "made up"
memory_efficiency = 0.8
memory_efficiency_source = "made up"
lab = {{ cpus = 0.5, overhead = "50MB" }}
tiers = [{{ name = "RAM", capacity = "100MB", bandwidth = "10GB/s", source = "made up" }}]
rates = [{{ dtype = "fp32", peak = "100GFLOP/s", gemm = "50GFLOP/s", source = "made up" }}]
[[host]]
name = "here"
device = "d"
devices = 1
count = 1
site = "here"
[[host]]
name = "there"
device = "d"
devices = 1
count = 1
site = "there"
[links.world]
latency = "{latency}"
bandwidth = "{bandwidth}"
source = "made up"
"""


def measured(latency: str, bandwidth: str) -> list[MeasuredLink]:
    """One link, several times."""
    text = CLUSTER.format(latency=latency, bandwidth=bandwidth)
    with Lab(load(ClusterSpec, *parse_toml(text, "far.toml")), 2) as lab:
        here, there = lab.ports
        return [measure_link(lab, here, there) for _ in range(REPEATS)]


def main() -> None:
    """A row for each link."""
    print(f"{'link':18}{'Mbit/s':>17}{'one way, ms':>18}{'load':>7}")
    for latency, bandwidth in product(LATENCIES, BANDWIDTHS):
        links = measured(latency, bandwidth)
        rates = [link.found_bytes_per_s * 8e-6 for link in links]
        times = [link.found_latency_s * 1e3 for link in links]
        print(
            f"{latency + ', ' + bandwidth:18}{min(rates):>8,.0f} to {max(rates):<5,.0f}"
            f"{min(times):>9.2f} to {max(times):<6.2f}{os.getloadavg()[0]:>6.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
