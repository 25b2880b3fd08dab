"""A rank's process: one episode after another, until the run has ended."""

from __future__ import annotations

import os
import time
import traceback
from itertools import count
from pathlib import Path

from ratrain.engines.places import Place
from ratrain.errors import DeadlineExceeded, PeerDown, RatrainError
from ratrain.runtime.environment import COMMAND, Launch, launch_of
from ratrain.runtime.failures import status_of, tell
from ratrain.runtime.host import process_began_s
from ratrain.runtime.rank.context import RankProcess, forget_failure
from ratrain.runtime.rank.episode import Episode
from ratrain.runtime.rank.folder_lock import FolderLock
from ratrain.runtime.rank.orders import BACK, orders_of
from ratrain.runtime.rank.rank_log import RankLog
from ratrain.runtime.rank.stop import StopRequests, status_when_stopped
from ratrain.runtime.run_folder import RunFolder


def run_rank(path: Path, place: Place, requests: StopRequests) -> int:
    """Runs the rank of a process; the exit status. What went wrong is in the folder's failure file.
    `requests` to stop come from signals."""
    folder = RunFolder(path)
    lock = FolderLock(folder, place.rank, os.environ.get(COMMAND) or place.words)
    log = RankLog(place)
    process = RankProcess(folder, lock, log, requests)
    if lock.settled:
        forget_failure(folder, place.rank)
    try:
        requests.tell(lambda: log.prints)
        finished = _Episodes(process).run()
        requests.ignore()
        return 0 if finished else status_when_stopped(os.environ)
    except Exception as error:
        requests.end_at_once()
        if not isinstance(error, RatrainError):
            traceback.print_exc()
        process.tell(error)
        log.fail(folder, error)
        return status_of(error)
    finally:
        lock.close()


class _Episodes:
    """Those of a process. A rank whose peer is lost calls its lanes back, keeps what it holds, and
    begins the next episode where its launcher says, if that says anything."""

    def __init__(self, process: RankProcess) -> None:
        self._process = process
        self._episode: Episode | None = None
        process.orders = orders_of(os.environ, self._called)

    def run(self) -> bool:
        """Whether the last step was done."""
        launch, began_s = launch_of(os.environ, self._process.folder.path), process_began_s()
        for number in count():
            episode = self._episode = Episode(self._process, number, launch, began_s)
            try:
                return episode.run()
            except (PeerDown, DeadlineExceeded) as error:
                lost, began_s = error, time.time()
                if not episode.called_back():
                    raise
                error.__traceback__ = error.__context__ = None  # frames hold the episode's tensors
            except Exception as error:
                self._process.tell(error)  # before the others find this rank gone
                raise
            finally:
                episode.close()
            launch = self._next(launch, lost)
        raise AssertionError("the last episode returns")

    def _next(self, launch: Launch, lost: RatrainError) -> Launch:
        """Where the next episode begins, after a loss."""
        orders = self._process.orders
        if orders is None:
            raise lost
        tell(self._process.folder, self._process.log.rank, lost)
        orders.say(BACK)
        order = orders.next()
        if order is None:
            raise lost
        return order.launch(launch)

    def _called(self) -> None:
        if self._episode is not None:
            self._episode.interrupt(
                PeerDown(f"rank {self._process.log.rank} was called back: another rank was lost")
            )
