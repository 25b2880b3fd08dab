"""One process of a run: `python -m ratrain.runtime.rank RUN_FOLDER`, started by a launcher.

The launcher (torch's elastic agent, `torchrun`) sets RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
First, with nothing imported that starts threads: the place in a lab, and the environment that
must stand before torch is loaded. Then the run. A failure is written to the run folder, in words.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

_READY = "RATRAIN_RANK_READY"
_PR_SET_PDEATHSIG = 1
_START = "use `ratrain train JOB`, or `torchrun ... -m ratrain.runtime.rank RUN_FOLDER`"


def main(folder: Path) -> None:
    """The whole life of a rank; ends the process."""
    rank = int(_variable("RANK"))
    if not (folder / "run.json").exists():
        sys.exit(f"{folder}: is no run's folder: there is no run.json\n  fix: {_START}")
    if os.environ.get(_READY) != str(os.getpid()):
        _end_with_launcher()
        _enter_lab(folder, rank)
        _begin_again(folder)
    from ratrain.runtime.rank.rank_run import run_rank

    os._exit(run_rank(folder, rank))


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value.isdigit():
        sys.exit(f"{name} is not set: a rank is started by a launcher\n  fix: {_START}")
    return value


def _end_with_launcher() -> None:
    """From now on this process ends when its launcher does, however that ends (Linux, prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _enter_lab(folder: Path, rank: int) -> None:
    """Goes into this rank's place, where the run has a lab."""
    places = folder / "places.json"
    if not places.exists():
        return
    from ratrain.lab.place import VARIABLE, enter, place_from_env

    place = place_from_env({VARIABLE: json.dumps(json.loads(places.read_text())[rank])})
    if place is not None:
        enter(place)
        os.environ["GLOO_SOCKET_IFNAME"] = place.interface


def _begin_again(folder: Path) -> None:
    """Starts this very process anew in the environment that torch needs from the beginning: its
    threads, an allocator that counts, and large blocks returned to the system when freed."""
    spec = json.loads((folder / "run.json").read_text())
    environment = dict(os.environ)
    environment[_READY] = str(os.getpid())
    environment["OMP_NUM_THREADS"] = str(spec["threads"])
    environment.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large pages: fewer faults a step
    # torch's own record of the last 2,000 transfers: megabytes that no budget knows of.
    environment.setdefault("TORCH_FR_BUFFER_SIZE", "0")
    environment.setdefault("MALLOC_MMAP_THRESHOLD_", str(4 << 20))
    environment.setdefault("MALLOC_TRIM_THRESHOLD_", str(64 << 20))
    preload = _allocator() if spec["allocator"] else None
    if preload is not None:
        before = environment.get("LD_PRELOAD", "")
        environment["LD_PRELOAD"] = f"{preload}:{before}" if before else str(preload)
    arguments = [sys.executable, "-m", "ratrain.runtime.rank", str(folder)]
    os.execve(sys.executable, arguments, environment)


def _allocator() -> Path | None:
    """The library of `allocator.c`, found without importing torch."""
    found = find_spec("ratrain.runtime.step")
    roots = list(found.submodule_search_locations or []) if found else []
    libraries = [path for root in roots for path in Path(root).glob("allocator_c.*.so")]
    return libraries[0] if libraries else None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
