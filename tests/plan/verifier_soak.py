"""Many random unequal plans through the verifier, and faults planted in each of their programs:

    python tests/plan/verifier_soak.py [--plans 10000] [--first 0]

Three in four have replicas that differ, one in four has stages of several members. Each is refused
with a place and a fix, or its program is proved. In each program that is sound a cell is dropped, a
rank is left out of a reduction, a member with a share of zero is forgotten, and two peers reduce in
opposite order, wherever it has such; a member's share is taken away from its plan file. Every fault
must be named by a finding of its rule. The exit status is 1 where one was missed, an error had no
place, or a plan took more than a minute.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import FrameType
from typing import Any

from planted import FAULTS
from random_plans import random_plan
from test_plan_members import random_members

from ratrain.errors import SpecError
from ratrain.plan.case.case import Case
from ratrain.plan.file.form import parse_plan
from ratrain.plan.file.reading import plan_of_file
from ratrain.program.program import Program
from ratrain.program.verify import Rule, verify

LONGEST_S = 60
SHARE = "share taken away from a member"


class Wrong(AssertionError):
    """What must not be."""


class TooLong(Exception):
    """A plan took more than `LONGEST_S`."""


def table_of(seed: int) -> dict[str, Any]:
    """The plan file of a number."""
    return random_members(Random(seed)) if seed % 4 == 3 else random_plan(Random(seed))


def case_of(table: dict[str, Any]) -> Case | None:
    """A plan file made ready; None where it is refused as it should be."""
    try:
        return Case(plan_of_file(parse_plan(json.dumps(table), "p.json"), "p.json"))
    except SpecError as error:
        if not error.place.startswith("p.json") or not error.fix:
            raise Wrong(f"refused without a place and a fix: {error}") from error
        return None


def check(seed: int) -> Counter[str]:
    """Proves one random plan and breaks it in every way; says what became of it."""
    rng, table = Random(-seed), table_of(seed)
    case = case_of(table)
    if case is None:
        return Counter(["refused"])
    others = [f for f in case.proved.verdict.findings if f.rule is not Rule.OVER_BUDGET]
    if others:
        raise Wrong(f"not sound: {others[0].message}")
    seen = Counter(["proved"])
    seen.update(_planted(case.program, rng))
    if _take_share(table, rng):
        if case_of(table) is not None:
            raise Wrong(f"not discovered: {SHARE}")
        seen[SHARE] += 1
    return seen


def _planted(program: Program, rng: Random) -> Iterator[str]:
    """The names of the faults that were planted, all of them discovered."""
    for name, plant in FAULTS.items():
        fault = plant(program, rng)
        if fault is None:
            continue
        rules = {finding.rule for finding in verify(fault.program).findings}
        if not rules & fault.rules:
            expected = ", ".join(sorted(fault.rules))
            raise Wrong(f"{name}: {expected} expected, not {', '.join(sorted(rules)) or 'nothing'}")
        yield name


def _take_share(table: dict[str, Any], rng: Random) -> bool:
    """Lets a member of a stage of several serve nothing; whether one serves anything."""
    members = [
        member
        for replica in table["replicas"]
        for stage in replica["stages"]
        for member in stage.get("members", ())
        if member["serves"] != "none" and len(stage["members"]) > 1
    ]
    if not members:
        return False
    rng.choice(members)["serves"] = "none"
    return True


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raises `TooLong` where the body takes longer."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plans", type=int, default=10_000, help="how many [10000]")
    parser.add_argument("--first", type=int, default=0, help="number of the first one [0]")
    options = parser.parse_args()
    seen: Counter[str] = Counter()
    longest_s, began_s = 0.0, time.process_time()
    for number, seed in enumerate(range(options.first, options.first + options.plans), start=1):
        before_s = time.process_time()
        try:
            with at_most(LONGEST_S):
                seen += check(seed)
        except TooLong:
            seen["wrong"] += 1
            print(f"plan {seed}: takes more than {LONGEST_S} s", flush=True)
        except Exception:
            seen["wrong"] += 1
            print(f"plan {seed}:\n{traceback.format_exc()}", flush=True)
        longest_s = max(longest_s, time.process_time() - before_s)
        if number % 1000 == 0 or number == options.plans:
            counts = ", ".join(f"{count:,} {what}" for what, count in seen.most_common())
            spent_s = time.process_time() - began_s
            print(f"{number:,} plans, {spent_s:,.0f} s of processor time: {counts}", flush=True)
    print(f"the slowest took {longest_s:.1f} s; {seen['wrong']} went wrong")
    sys.exit(1 if seen["wrong"] else 0)


if __name__ == "__main__":
    main()
