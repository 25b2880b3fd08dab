"""What is asked of the lab benchmarks here, and where they say how far they are."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def parser_of(doc: str | None, names: Sequence[str]) -> argparse.ArgumentParser:
    """Which rows, and how often."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--row", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--list", action="store_true", help="print the rows' names")
    parser.add_argument("--json", type=Path, help="write all figures there")
    return parser


def say(line: str) -> None:
    """Says how far a benchmark is, beside its figures."""
    print(line, file=sys.stderr, flush=True)
