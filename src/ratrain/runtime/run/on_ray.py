"""A run's attempts on a Ray cluster, each from the latest checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from ratrain.engines.groups import Launchable
from ratrain.engines.ray import RayRun, ended
from ratrain.engines.statuses import START_AGAIN
from ratrain.runtime.rank.stop import passed_on
from ratrain.runtime.run.host_ranks import worst_status


def run_on_ray(run: Launchable, restarts: int, say: Callable[[str], None]) -> int:
    """Runs all ranks to their end, again after a failure; the exit status. A request to stop goes
    to the ranks, which save."""
    for attempt in range(restarts + 1):
        attempt_run = RayRun(run, attempt, say)
        try:
            with passed_on(attempt_run.ask_to_stop):
                status = worst_status(ended(attempt_run))
        finally:
            attempt_run.close()
        if status not in START_AGAIN or attempt == restarts:
            return status
        say(f"ranks ended with {status}; starting them again ({attempt + 1} of {restarts})")
    raise AssertionError("the last attempt returns")
