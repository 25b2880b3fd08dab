"""Many random orders of operators, in runs of everything that is registered: `make soak`.

    python tests/runtime/soak_deferred.py [--orders 1000] [--first 0] [--only NAME]

Each order is a whole run of a setting on the device that finds missing order: it must give the bits
of the CPU and no report. Orders go round the settings; `--first N --orders 1` runs order N again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from crew import Crew
from training import Result, train

sys.path.append(str(Path(__file__).parents[1] / "program"))

from deferred_runs import RANKS, SETTINGS, make_first, run_put_off


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=1000, help="how many [1000]")
    parser.add_argument("--first", type=int, default=0, help="number of the first one [0]")
    parser.add_argument("--only", choices=list(SETTINGS), help="one setting alone")
    options = parser.parse_args()
    names = [options.only] if options.only else list(SETTINGS)
    usual: dict[str, Result] = {}
    went, began_s = Counter[str](), time.monotonic()
    with Crew(RANKS) as crew, tempfile.TemporaryDirectory() as kept:
        crew.ask(RANKS, make_first)
        for order in range(options.first, options.first + options.orders):
            name = names[order % len(names)]
            folder = Path(kept) / str(order)
            try:
                if name not in usual:
                    usual[name] = train(crew, SETTINGS[name], Path(kept) / name)
                result = run_put_off(crew, SETTINGS[name], folder, order)
                wrong = result.differences(usual[name])
                wrong += ["norms"] if result.norms != usual[name].norms else []
                wrong += ["validation"] if result.validated != usual[name].validated else []
            except Exception as error:
                wrong = [str(error)]
            went["wrong" if wrong else "same bits"] += 1
            if wrong:
                print(f"order {order}, {name}: {'; '.join(wrong)}", flush=True)
            elif sum(went.values()) % 50 == 0:
                print(f"{dict(went)} in {time.monotonic() - began_s:.0f} s", flush=True)
    print(f"{len(names)} settings, orders: {dict(went)}, {time.monotonic() - began_s:.0f} s")
    sys.exit(1 if went["wrong"] else 0)


if __name__ == "__main__":
    main()
