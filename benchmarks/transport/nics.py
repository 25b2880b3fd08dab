"""Two NICs as one, against iperf3, in a network namespace (root): `nics.py`.

Makes veth pairs shaped by tbf, measures iperf3 on all of them at once, then one large write.
Needs root, iperf3 and the test dependencies; runs from a checkout, installed or not.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(ROOT / "tests" / "transport"))

from test_transport_faults import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    TestNamespaces,
    wires,
)


def iperf3_mbit(space: str, hosts: list[str]) -> float:
    """The sum over all wires at once, three seconds."""
    inside = ["ip", "netns", "exec", space, "iperf3", "-s", "-1", "-p", "5999", "-B"]
    servers = [subprocess.Popen([*inside, h], stdout=subprocess.DEVNULL) for h in hosts]
    time.sleep(0.3)
    ask = ["iperf3", "-p", "5999", "-t", "3", "-J", "-c"]
    clients = [subprocess.Popen([*ask, h], stdout=subprocess.PIPE) for h in hosts]
    ends = [json.loads(c.communicate()[0])["end"] for c in clients]
    for server in servers:
        server.wait()
    return sum(e["sum_received"]["bits_per_second"] for e in ends) / 1e6


if __name__ == "__main__":
    if os.geteuid() != 0 or shutil.which("iperf3") is None:
        sys.exit("nics.py needs root (network namespaces) and iperf3")
    os.environ["PYTHONPATH"] = str(ROOT / "src")  # for the far process
    for rates in ((1000, 1000), (1000, 250)):
        with wires(*rates) as (space, hosts):
            limit = iperf3_mbit(space, hosts)
        for _ in range(3):
            ours = TestNamespaces().rate_mbit(rates, 256 << 20, 2)
            print(f"{rates} Mbit/s: iperf3 {limit:.0f}, ours {ours:.0f}, {ours / limit:.3f}")
