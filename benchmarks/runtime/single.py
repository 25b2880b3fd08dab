"""One process: our units and executor against plain torch on the same model and tokens.

    python benchmarks/runtime/single.py [--repetitions 5] [--model balanced]

Ours must reach 0.97 of plain torch's tokens per second of processor time. Processor time of one
thread is compared, because other work on the machine stretches wall time; both are shown.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from cases import MODELS, Case
from field import field_of
from outcomes import Outcome, together

TARGET = 0.97


def measured(case: Case, repetitions: int) -> dict[str, Outcome]:
    """Both, in turns."""
    runs: dict[str, list[Outcome]] = {"plain": [], "ratrain": []}
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        field_of(case, Path(folder) / "case") as field,
    ):
        for _ in range(repetitions):
            for method, repeated in runs.items():
                repeated.append(field.run(method))
    return {method: together(repeated) for method, repeated in runs.items()}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--repetitions", type=int, default=5)
    asked.add_argument("--model", choices=MODELS, default="balanced")
    asked.add_argument("--steps", type=int, default=8)
    asked.add_argument("--recovery", action="store_true")
    chosen = asked.parse_args()
    case = Case(
        f"{chosen.model}, one process",
        model=chosen.model,
        pipeline=1,
        steps=chosen.steps,
        sequences=8,
        recovery=chosen.recovery,
    )
    outcomes = measured(case, chosen.repetitions)
    for method, outcome in outcomes.items():
        if outcome.failure:
            print(f"{method:8s} {outcome.failure}")
            continue
        print(
            f"{method:8s} {outcome.cpu_s:6.3f} s of processor time a step, {outcome.step_s:6.3f} s "
            f"({min(outcome.steps_s):.3f} - {max(outcome.steps_s):.3f}), "
            f"{case.tokens / outcome.cpu_s:6.0f} tokens/s, others {outcome.others_part:.0%}"
        )
    plain, ours = outcomes["plain"], outcomes["ratrain"]
    if plain.ended and ours.ended:
        largest = max(abs(a - b) for a, b in zip(plain.losses, ours.losses, strict=False))
        ratio = plain.cpu_s / ours.cpu_s
        print(f"ratio {ratio:.3f} (wanted: {TARGET}); losses differ by {largest:.1e} at most")
        walls = statistics.median(plain.steps_s) / statistics.median(ours.steps_s)
        print(f"of wall time {walls:.3f}; ")


if __name__ == "__main__":
    main()
