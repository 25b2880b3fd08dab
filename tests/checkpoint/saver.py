"""A process that saves checkpoints until it is killed: `python saver.py RUN FIRST_STEP [CALLS]`.

It prints each step once it is committed and pruned to two. With CALLS it kills itself with
SIGKILL before its CALLS-th change of the file system, and ends with status 0 if it saved three
steps before that.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from checkpoint_made import save

from ratrain.checkpoint.listing import prune

CHANGES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "ctypes.dlsym")
KEEP = 2


def save_steps(run: Path, first: int, count: int, units: dict[str, int]) -> None:
    for step in range(first, first + count):
        save(run, step, units=units)
        prune(run, KEEP)
        print(step, flush=True)


def killed_before(call: int, run: Path, first: int) -> bool:
    """Forks a child that saves three steps and dies before its `call`-th change; did it die?"""
    child = os.fork()
    if child == 0:
        left = call

        def count(event: str, _: tuple[object, ...]) -> None:
            nonlocal left
            if event in CHANGES:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        save_steps(run, first, 3, {"e": 64, "0": 100})
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    save_steps(Path(sys.argv[1]), int(sys.argv[2]), 1 << 30, {"e": 300_000, "0": 200_000})
