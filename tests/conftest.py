"""Random tests: the same examples in every CI run, new ones in every run by hand.

No deadlines anywhere: how long an example takes says what else the machine does, not whether it
is right. Torch computes on one thread in every process: tests' tensors are small, and threads that
wait for each other took two thirds of the processors.
"""

from __future__ import annotations

import os
import signal
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("by-hand", deadline=None)
settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "by-hand")

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in `make test &`: children inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["matrix_share"]

# Containers tell Python to keep no bytecode: then every worker of every run would compile the tests
# anew, 15 seconds of a processor each. What tests import later is left as the machine has it.
KEEPS_NO_BYTECODE = sys.dont_write_bytecode
sys.dont_write_bytecode = False


def pytest_collection_finish() -> None:
    """All tests are imported: from here on bytecode is kept where the machine keeps it."""
    sys.dont_write_bytecode = KEEPS_NO_BYTECODE


# Where there is no GPU, Triton's interpreter computes the kernels for them. Triton reads this when
# it is imported, which other libraries do too.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

ROOT = Path(__file__).parents[1]


def stale_modules() -> list[str]:
    """Compiled modules whose source is newer: Python would import the old ones."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        sources = [ROOT / m for m in tomllib.load(file)["tool"]["ratrain"]["compiled-modules"]]
    return [
        str(source.relative_to(ROOT))
        for source in sources
        for built in source.parent.glob(f"{source.stem}.cpython-*.so")
        if built.stat().st_mtime < source.stat().st_mtime
    ]


def pytest_sessionstart() -> None:
    """Refuse to test what is not what the sources say."""
    if stale := stale_modules():
        pytest.exit(
            f"{', '.join(stale)} changed since it was compiled: run `make .venv/ready-to-test`", 2
        )
