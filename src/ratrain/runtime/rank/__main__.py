"""One process of a run: `python -P -m ratrain.runtime.rank RUN_FOLDER`, started by a launcher.

The launcher (`ratrain train`, or an engine: `engines/places.py`) says which rank it is. First, with
nothing imported that starts threads: the place in a lab, and the environment that must stand
before torch is loaded. Then the run. A failure is written to the run folder, in words.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from ratrain.cost.scratch import KERNELS
from ratrain.describe.amounts import Natural
from ratrain.describe.strict import load
from ratrain.engines.places import Place, place_of
from ratrain.errors import SpecError
from ratrain.profile.quota import processors
from ratrain.readers.json import read_json, read_json_table
from ratrain.runtime.environment import LAUNCHER
from ratrain.runtime.rank.preload import allocator_library, forget_held, preload
from ratrain.runtime.rank.stop import StopRequests

_READY = "RATRAIN_RANK_READY"
_PR_SET_PDEATHSIG = 1
_START = "use `ratrain train JOB`, or `torchrun ... -m ratrain.runtime.rank RUN_FOLDER`"


@dataclass(frozen=True)
class _Wanted:
    """What of run.json must be known before torch is loaded."""

    threads: Natural
    allocator: bool


def main(folder: Path) -> None:
    """The whole life of a rank; ends the process."""
    requests = StopRequests()
    requests.listen()
    settings = _wanted(folder)
    try:
        place = place_of(os.environ)
    except SpecError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    if settings is None and place.world_size == 1:
        sys.exit(f"{folder}: is not a run's folder: it has no run.json\n  fix: {_START}")
    if settings is not None and os.environ.get(_READY) != str(os.getpid()):
        _end_with_launcher()
        _enter_lab(folder, place.rank)
        _begin_again(folder, settings, place)
    forget_held(os.environ)
    gc.disable()  # what modules make stays: looking through it while they load took 0.3 s
    from ratrain.runtime.rank.rank_run import run_rank

    gc.freeze()
    gc.enable()
    os._exit(run_rank(folder, place, requests))


def _end_with_launcher() -> None:
    """From now on this process ends when its launcher does, however that ends (Linux, prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.environ.get(LAUNCHER, str(os.getppid())) != str(os.getppid()):
        sys.exit("the launcher has ended already")


def _enter_lab(folder: Path, rank: int) -> None:
    """Goes into this rank's place, where the run has a lab."""
    places = folder / "places.json"
    if not places.exists():
        return
    from ratrain.lab.place import VARIABLE, enter, place_from_env

    place = place_from_env({VARIABLE: json.dumps(read_json(places)[0][rank])})
    if place is not None:
        enter(place)


def _wanted(folder: Path) -> _Wanted | None:
    """What run.json says; None where it cannot be read, which the run then tells all ranks."""
    try:
        return load(_Wanted, *read_json_table(folder / "run.json"), strict=False)
    except SpecError:
        return None


def _begin_again(folder: Path, settings: _Wanted, place: Place) -> None:
    """Restarts this process in the environment that torch needs from the beginning."""
    environment = dict(os.environ) | {_READY: str(os.getpid())}
    set_for_torch(environment, place, settings.threads, allocator=settings.allocator)
    # -P: no file of the folder where a run was started counts as a module.
    arguments = [sys.executable, "-P", "-m", "ratrain.runtime.rank", str(folder)]
    os.execve(sys.executable, arguments, environment)


def set_for_torch(
    environment: dict[str, str], place: Place, threads: int, *, allocator: bool
) -> None:
    """A rank's threads, an allocator that counts, and large blocks returned to the system when
    freed; what the user has set stays."""
    shared = processors() // (place.ranks_here or place.world_size)
    environment["OMP_NUM_THREADS"] = str(threads or max(1, shared))
    # Threads of a product wait for each other: libgomp lets them spin 300,000 turns while one team
    # of them is in the process, and 100 once another lane has its own, behind the first step. So
    # 1,000 both times (the second is `active`'s): what is timed before the first step is what runs,
    # steps are faster, and where others have the processors nobody spins for long.
    if not environment.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        environment |= {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "1000"}
    environment.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KERNELS))  # as scratch counts
    environment.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large pages: fewer faults a step
    # MKL keeps the buffers of a product for the next one, 2 to 5 MB a thread on Intel processors:
    # in no proof. It is as fast without, where the C library keeps blocks of their size.
    environment.setdefault("MKL_DISABLE_FAST_MM", "1")
    environment.setdefault("MALLOC_MMAP_THRESHOLD_", str(16 << 20))
    environment.setdefault("MALLOC_TRIM_THRESHOLD_", str(64 << 20))
    library = allocator_library() if allocator else None
    if library is not None:
        preload(library, environment)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
