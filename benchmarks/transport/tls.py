"""What TLS costs: `sock` in clear and under TLS, taking turns in one run.

python benchmarks/transport/tls.py [ROUNDS]
"""

from __future__ import annotations

import os
import statistics
import sys

from ours import Pair

SIZES = (65536, 262144, 1 << 20, 16 << 20)
TOTAL_BYTES = 256 << 20


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    pairs = {kind: Pair(kind) for kind in ("sock", "tls")}
    values: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds + 1):  # the first one warms up
        for kind, pair in pairs.items():
            values.setdefault(("1 KiB one way, us", kind), []).append(pair.one_way_us(1024, 1000))
            for size in SIZES:
                rate = pair.gb_per_s(size, TOTAL_BYTES)
                values.setdefault((f"{size >> 10} KiB, GB/s", kind), []).append(rate)
            pages = pair.pages_per_s(4096) / 1e6
            values.setdefault(("4 KiB random pages, million/s", kind), []).append(pages)
    print(f"load {os.getloadavg()[0]:.1f}; medians of {rounds} rounds")
    for measure in dict.fromkeys(measure for measure, _ in values):
        middle = [statistics.median(values[measure, kind][1:]) for kind in pairs]
        print(f"| {measure} | {middle[0]:.3g} | {middle[1]:.3g} | {middle[1] / middle[0]:.2f} |")
    for pair in pairs.values():
        pair.close()


if __name__ == "__main__":
    main()
