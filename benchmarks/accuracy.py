"""Prints how accurate the cost model is on every published table, and how long it takes to say.

python benchmarks/accuracy.py
"""

from __future__ import annotations

import platform
import time

from ratrain.validate.report import HEADER, TABLES, lines, reports


def main() -> None:
    print(f"Python {platform.python_version()}, {platform.machine()}")
    print(HEADER)
    for name in TABLES:
        began = time.perf_counter()
        (report,) = reports((name,))
        took_s = time.perf_counter() - began
        print("\n".join(lines(report)))
        print(f"  {len(report.pairs) / took_s:,.1f} rows/s")


if __name__ == "__main__":
    main()
