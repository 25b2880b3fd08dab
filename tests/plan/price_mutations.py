"""Plants random mistakes in the functions that price, and says which the quick price tests catch.

    python tests/plan/price_mutations.py --seed 1 --count 200

A mistake is one change of one expression: a factor (a number doubled, a product halved), a sign
(+ and -, * and /, max and min), a missing term (of a sum, of a product). It is planted as the
module is imported, in a process of its own: no file is changed. The tests run until one fails.
`--survivors` lists only what no test caught. A mistake costs 3 to 12 s of processor time.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.abc
import importlib.machinery
import io
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parents[2]
SOURCE = HERE / "src"
PRICED = (
    "cost/algorithms.py",
    "cost/blocks.py",
    "cost/collectives.py",
    "cost/compute.py",
    "cost/gemm.py",
    "cost/attention.py",
    "cost/gpu_layer.py",
    "cost/measured.py",
    "plan/layout/tiers.py",
    "plan/layout/links.py",
    "plan/layout/times.py",
    "plan/price/bill.py",
    "plan/price/durations.py",
    "plan/price/estimate.py",
    "plan/price/fitted.py",
    "plan/price/held.py",
    "plan/price/kind_speed.py",
    "plan/price/loops.py",
    "plan/price/reductions.py",
    "plan/price/stage_seconds.py",
    "plan/price/places.py",
    "plan/price/trial.py",
    "plan/case/kinds.py",
    "plan/draft/clock.py",
    "plan/draft/draft.py",
    "plan/draft/parts.py",
    "plan/draft/stage_ops.py",
    "plan/draft/stages.py",
    "simulate/costs.py",
)
TESTS = (
    "tests/plan/test_pinned_prices.py",
    "tests/cost",
    "tests/plan/test_prices_by_hand.py",
    "tests/plan/test_tied_sums.py",
    "tests/plan/test_boundary_sends.py",
    "tests/plan/test_durations.py",
    "tests/plan/test_price_properties.py",
    "tests/plan/test_least_time.py",
    "tests/plan/test_uneven_costs.py",
    "tests/plan/test_collectives.py",
    "tests/plan/test_measured_blocks.py",
    "tests/plan/test_wire_types.py",
    "tests/plan/test_sequence_parallel.py",
    "tests/plan/test_buckets.py",
    "tests/plan/test_driving.py",
    "tests/plan/test_what_if.py",
    "tests/plan/test_uneven_plans.py",
    "tests/plan/test_bill.py",
    "tests/plan/test_draft_bills.py",
    "tests/plan/test_draft_estimates.py",
    "tests/plan/test_estimate.py",
    "tests/plan/test_slow_messages.py",
    "tests/plan/test_unequal_clock.py",
)
"""The quick tests about prices, those that catch most in the least time first."""


@dataclass(frozen=True)
class Mistake:
    """A change of the `number`-th node of a module that such a change is for."""

    file: str
    number: int
    line: int
    what: str


class _Planter(ast.NodeTransformer):
    """Counts the places of a module where a mistake can be, and plants one of them."""

    def __init__(self, planted: int | None = None) -> None:
        self.planted, self.places = planted, list[tuple[int, str]]()
        self._in_function = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._in_function += 1
        node.body = [self.visit(statement) for statement in node.body]
        self._in_function -= 1
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        node.value = self.visit(node.value)
        return node  # an index is no price

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not self._in_function or _is_text(node) or isinstance(node.op, ast.BitOr | ast.BitAnd):
            return node
        changes = {
            ast.Add: ("-", ast.Sub),
            ast.Sub: ("+", ast.Add),
            ast.Mult: ("/", ast.Div),
            ast.Div: ("*", ast.Mult),
        }
        name = type(node.op)
        if name not in changes:
            return node
        sign, other = changes[name]
        if self._is_it(node, f"{ast.unparse(node)}: {sign} in its place"):
            return ast.copy_location(ast.BinOp(node.left, other(), node.right), node)
        if self._is_it(node, f"{ast.unparse(node)}: its first term alone"):
            return node.left
        if name in (ast.Add, ast.Mult) and self._is_it(
            node, f"{ast.unparse(node)}: its last term alone"
        ):
            return node.right
        if name in (ast.Mult, ast.Div) and self._is_it(node, f"{ast.unparse(node)}: half of it"):
            return ast.copy_location(ast.BinOp(node, ast.Mult(), ast.Constant(0.5)), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = ast.unparse(node.func)
        swapped = {
            "max": "min",
            "min": "max",
            "np.maximum": "np.minimum",
            "np.minimum": "np.maximum",
        }
        if (
            self._in_function
            and name in swapped
            and self._is_it(node, f"{ast.unparse(node)}: {swapped[name]} in its place")
        ):
            node.func = ast.parse(swapped[name], mode="eval").body
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value = node.value
        if not isinstance(value, int | float) or isinstance(value, bool) or value in (0, 1):
            return node
        if self._is_it(node, f"{value} doubled"):
            return ast.copy_location(ast.Constant(value * 2), node)
        return node

    def _is_it(self, node: ast.expr, what: str) -> bool:
        self.places.append((node.lineno, what))
        return self.planted == len(self.places) - 1


def _is_text(node: ast.BinOp) -> bool:
    """Whether a sum is of strings, lists or tuples, as far as its text says."""
    parts = [node.left, node.right]
    texts = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
    return any(
        isinstance(part, texts) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in parts
    )


def mistakes() -> list[Mistake]:
    """Every mistake that can be planted."""
    every: list[Mistake] = []
    for file in PRICED:
        planter = _Planter()
        planter.visit(ast.parse((SOURCE / "ratrain" / file).read_text()))
        every += [Mistake(file, n, line, what) for n, (line, what) in enumerate(planter.places)]
    return every


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module with a mistake in it."""

    def __init__(self, mistake: Mistake) -> None:
        self._mistake = mistake
        self._path = SOURCE / "ratrain" / mistake.file
        self._name = f"ratrain.{mistake.file.removesuffix('.py').replace('/', '.')}"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=str(self._path))

    def exec_module(self, module: ModuleType) -> None:
        tree = ast.parse(self._path.read_text())
        planted = ast.fix_missing_locations(_Planter(self._mistake.number).visit(tree))
        module.__file__ = str(self._path)
        exec(compile(planted, str(self._path), "exec"), module.__dict__)


def is_caught(mistake: Mistake | None, tests: Sequence[str], limit_s: int) -> tuple[bool, str]:
    """Whether a test fails with the mistake (None: with none), and which or why. A mistake that
    makes the tests run for too long is caught: nobody would wait for them."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.write(writing, _tested(mistake, tests).encode()[:4000])
        os._exit(0)
    os.close(writing)
    ends = time.monotonic() + limit_s
    while time.monotonic() < ends:
        if os.waitpid(child, os.WNOHANG)[0]:
            break
        time.sleep(0.02)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        return True, f"no end after {limit_s} s"
    said = os.read(reading, 4000).decode(errors="replace")
    os.close(reading)
    return said != "passed", said or "the process died"


def _tested(mistake: Mistake | None, tests: Sequence[str]) -> str:
    """ "passed", or the first test that failed."""
    import pytest

    if mistake is not None:
        sys.meta_path.insert(0, _Finder(mistake))
    os.chdir(HERE)
    said = io.StringIO()
    options = ("-x", "-q", "-m", "not slow and not matrix", "-p", "no:cacheprovider", "--no-header")
    with redirect_stdout(said), redirect_stderr(said):
        status = pytest.main([*options, "--hypothesis-seed=0", "--tb=no", *tests])
    if status == 0:
        return "passed"
    failed = [line for line in said.getvalue().splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else f"pytest ended with {int(status)}: {said.getvalue()[-300:]}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument(
        "--tests", nargs="*", default=TESTS, help="files of tests, fewer are faster"
    )
    parser.add_argument("--limit", type=int, default=300, help="seconds of one mistake's tests")
    parser.add_argument("--minutes", type=float, default=60, help="stop after so many in all")
    parser.add_argument("--survivors", action="store_true", help="list what was not caught")
    return parser.parse_args()


def _run(chosen: Sequence[Mistake], options: argparse.Namespace) -> Iterator[tuple[Mistake, bool]]:
    began = time.monotonic()
    for number, mistake in enumerate(chosen, 1):
        if time.monotonic() - began > 60 * options.minutes:
            print(f"{options.minutes:g} minutes are over", file=sys.stderr)
            return
        caught, said = is_caught(mistake, options.tests, options.limit)
        mark = "caught  " if caught else "SURVIVED"
        if not caught or not options.survivors:
            print(f"{number:4} {mark} {mistake.file}:{mistake.line} {mistake.what}")
            print(f"     {said}", flush=True)
        yield mistake, caught


def main() -> int:
    options = _options()
    sys.path.insert(0, str(SOURCE))
    for module in ("hypothesis.strategies", "numpy", "pytest"):
        importlib.import_module(module)  # once, for all that are forked
    caught, said = is_caught(None, options.tests, options.limit)
    if caught:
        print(f"the tests fail without any mistake: {said}", file=sys.stderr)
        return 2
    every = mistakes()
    chosen = random.Random(options.seed).sample(every, min(options.count, len(every)))
    outcomes = list(_run(chosen, options))
    found = sum(caught for _, caught in outcomes)
    share = found / max(len(outcomes), 1)
    print(
        f"{found} of {len(outcomes)} mistakes caught ({share:.1%}); {len(every):,} can be planted"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
