"""A run's attempts on a Ray cluster, each from the latest checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ratrain.engines.groups import Launchable
from ratrain.engines.ray import NoRoom, RayRun, ended
from ratrain.engines.statuses import START_AGAIN
from ratrain.errors import SAVED_NOT_FINISHED
from ratrain.runtime.rank.stop import passed_on
from ratrain.runtime.run.host_ranks import worst_status

Replan = Callable[[Sequence[int]], Launchable]
"""The run, planned anew without some of its hosts, by number."""


def run_on_ray(run: Launchable, restarts: int, say: Callable[[str], None], replan: Replan) -> int:
    """Runs all ranks to their end, again after a failure or on other nodes once one has announced
    its end; the exit status. A request to stop goes to the ranks, which save."""
    attempt = left = 0
    while True:
        try:
            attempt_run = RayRun(run, attempt, say)
        except NoRoom as error:
            run = replan(error.hosts)
            continue
        attempt += 1
        try:
            with passed_on(attempt_run.ask_to_stop):
                status = worst_status(ended(attempt_run))
        finally:
            attempt_run.close()
        moves = attempt_run.leaves and not attempt_run.asked and status == SAVED_NOT_FINISHED
        if moves:
            continue
        if status not in START_AGAIN or left == restarts:
            return status
        left += 1
        say(f"ranks ended with {status}; starting them again ({left} of {restarts})")
