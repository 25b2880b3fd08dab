"""One host's ranks of a run that has several hosts: started, asked to stop, waited for.

Each tells what it does on stderr, as under any launcher but `ratrain train`. The exit status is the
one that says most: a rank's own failure before that of losing another, before having been stopped.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress

from ratrain.engines.places import Place
from ratrain.errors import SAVED_NOT_FINISHED, SpecError, TransportError
from ratrain.runtime.environment import COMMAND, FOLLOWED, launch_of
from ratrain.runtime.rank.stop import passed_on
from ratrain.runtime.run.processes import RankEnd, RankProcesses, base_environment
from ratrain.runtime.run_folder import RunFolder

DEFAULT_PORT = 29500
"""At which rank 0 is met where nobody says otherwise."""
STOP, END = "stop", "end"
"""What `run_host_ranks` may be told on standard input, a line each; its end means `STOP`."""
BEAT, BEAT_EVERY_S = "\x16", 1.0
"""A line that says on stderr that the host is alive, and how often."""
_LOOK_EVERY_S = 0.1
_LAST_WORDS_S = 10.0
"""How long ranks may go on after one of them has failed: they find out, say so, and end."""


def run_host_ranks(
    folder: RunFolder,
    ranks: Sequence[int],
    world_size: int,
    rendezvous: tuple[str, int],
    *,
    follow_input: bool,
) -> int:
    """Runs some ranks of a run to their end; the exit status. `rendezvous`: the address and port at
    which rank 0 is met. `follow_input`: orders come on standard input."""
    environment = base_environment(world_size, *rendezvous)
    del environment[FOLLOWED]
    environment |= {COMMAND: "ratrain launch", "LOCAL_WORLD_SIZE": str(len(ranks))}
    with _relayed() as output:
        processes = RankProcesses(folder, ranks, environment, None, output=output)
        os.close(output)
        return worst_status(
            end.status for end in _ends(processes, follow_input) if not end.ended_here
        )


def run_share(folder: RunFolder, place: Place) -> int:
    """Runs the share of the ranks of a host where the engine starts one process a host; the exit
    status."""
    ranks = folder.read_spec().seats.world_size
    each, left = divmod(ranks, place.world_size)
    if left:
        raise SpecError(
            f"the run's {ranks} ranks cannot be divided equally among {place.world_size} hosts",
            place=place.engine,
            fix="use as many hosts as the plan has, or hosts of which each has as many ranks",
        )
    own = range(place.rank * each, (place.rank + 1) * each)
    launch = launch_of(os.environ, folder.path)
    where = launch.address, launch.port or DEFAULT_PORT
    return run_host_ranks(folder, own, ranks, where, follow_input=False)


def _ends(processes: RankProcesses, follow_input: bool) -> list[RankEnd]:
    """How each of them ended: by itself, or here, some time after another had failed."""
    failed_s: float | None = None
    try:
        with passed_on(processes.ask_to_stop):
            if follow_input:
                threading.Thread(target=_take_orders, daemon=True).start()
                threading.Thread(target=_beat, daemon=True).start()
            while processes.running:
                if processes.failed and failed_s is None:
                    failed_s = time.monotonic()
                if failed_s is not None and time.monotonic() - failed_s > _LAST_WORDS_S:
                    break
                time.sleep(_LOOK_EVERY_S)
        return processes.end()
    except BaseException:
        processes.kill()
        raise


def worst_status(statuses: Iterable[int]) -> int:
    """The one that says most of how a run ended; of a signal's, as shells have it."""
    shown = [status if status >= 0 else 128 - status for status in statuses]
    unlikely = (0, SAVED_NOT_FINISHED, TransportError.exit_code)
    return max(
        shown, key=lambda s: unlikely.index(s) if s in unlikely else len(unlikely), default=0
    )


@contextmanager
def _relayed() -> Generator[int]:
    """A file descriptor to write to, which the block closes; what comes is copied to stderr, as
    long as that has a reader: ranks must not fail because a connection has ended."""
    reading, writing = os.pipe()

    def copy() -> None:
        while data := os.read(reading, 1 << 16):
            with suppress(OSError):
                os.write(2, data)

    thread = threading.Thread(target=copy, name="relay", daemon=True)
    thread.start()
    yield writing
    thread.join()
    os.close(reading)


def _beat() -> None:
    """As long as anybody listens."""
    with suppress(OSError):
        while True:
            os.write(2, f"{BEAT}\n".encode())
            time.sleep(BEAT_EVERY_S)


def _take_orders() -> None:
    """Until the end of standard input, which comes with the loss of the connection to us."""
    asked = 0
    while True:
        order = sys.stdin.readline()
        wanted = 2 if order.strip() == END else 1
        while asked < wanted:
            asked += 1
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(_LOOK_EVERY_S)  # two signals at once would be one
        if not order:
            return
