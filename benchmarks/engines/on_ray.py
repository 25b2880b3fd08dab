"""Runs on a real Ray of two nodes on this machine (pip install 'ray[train]'), in seconds from
`ray.init` to the first step's line of metrics.

    python benchmarks/engines/on_ray.py [--starts 3]

- by core placement groups, as `ratrain launch ray` does: four ranks on nodes of two kinds;
- by Ray Train, as `ratrain.ray_trainer` does: four ranks on nodes of one.
"""

from __future__ import annotations

import argparse
import compileall
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "engines"), str(ROOT / "src")]

from engine_jobs import prepared, steps_done, wait_until, write_job  # noqa: E402
from ray_rig import ENVIRONMENT, ray_of_two  # noqa: E402

import ratrain  # noqa: E402
from ratrain.engines.ray import connect, ray_module  # noqa: E402
from ratrain.runtime.run.launchable import launchable_run  # noqa: E402
from ratrain.runtime.run.on_ray import run_on_ray  # noqa: E402
from ratrain.runtime.run_folder import RunFolder  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=3)
    options = parser.parse_args()
    compileall.compile_dir(ROOT / "src", quiet=1)  # as an installation does
    ray_module()  # what it takes to import is not Ray's start
    os.environ.update({**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)})
    with tempfile.TemporaryDirectory(prefix="ratrain-ray-") as made:
        folder = Path(made)
        with ray_of_two(folder) as address:
            for number in range(options.starts):
                for name, kinds, starts in (
                    ("core", ("old", "new"), _by_groups),
                    ("Ray Train", ("one",), _by_train),
                ):
                    where = folder / f"{name[:4]}-{number}"
                    run = prepared(write_job(where, steps=3, kinds=kinds), where / "run")
                    init_s, step_s = timed(run, address, starts)
                    print(
                        f"{name}: ray.init {init_s:.1f}, the first step {step_s:.1f}; load average "
                        f"{os.getloadavg()[0]:.1f}",
                        flush=True,
                    )


def timed(run: RunFolder, address: str, starts: Callable[[RunFolder], None]) -> tuple[float, float]:
    """From before `ray.init` to its end, and to the first step."""
    steps: list[float] = []

    def watch() -> None:
        wait_until(lambda: steps_done(run) > 0, "the first step", 300)
        steps.append(time.monotonic())

    watching = threading.Thread(target=watch, daemon=True)
    began_s = time.monotonic()
    connect(address)
    there_s = time.monotonic()
    watching.start()
    starts(run)
    watching.join()
    ray_module().shutdown()
    return there_s - began_s, steps[0] - began_s


def _by_groups(run: RunFolder) -> None:
    status = run_on_ray(launchable_run(run, sys.executable), 0, print, lambda _: _never())
    assert status == 0, status


def _by_train(run: RunFolder) -> None:
    train: Any = __import__("ray.train", fromlist=["RunConfig"])
    kept = train.RunConfig(name="run", storage_path=str(run.path.parent / "kept"))
    ratrain.ray_trainer(run.path, run_config=kept).fit()


def _never() -> Any:
    raise AssertionError("no host is lost")


if __name__ == "__main__":
    main()
