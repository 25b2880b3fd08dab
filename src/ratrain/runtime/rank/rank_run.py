"""A rank's process: one episode after another, until the run has ended."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Protocol

from ratrain.engines.places import Place
from ratrain.errors import OF_ANOTHER, PeerDown, RatrainError
from ratrain.runtime.environment import COMMAND, Launch, launch_of
from ratrain.runtime.failures import status_of
from ratrain.runtime.host import process_began_s
from ratrain.runtime.rank.context import RankProcess, forget_failure
from ratrain.runtime.rank.episode import Episode
from ratrain.runtime.rank.folder_lock import FolderLock
from ratrain.runtime.rank.orders import BACK, Order, orders_of
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
        launch = launch_of(os.environ, folder.path)
        episodes = Episodes(process, partial(Episode, process))
        process.orders = orders_of(os.environ, episodes.called)
        finished = episodes.run(launch, process_began_s())
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


class AnEpisode(Protocol):
    """As the loop over episodes sees one (`episode.Episode`)."""

    def run(self) -> bool: ...

    def interrupt(self, error: BaseException) -> None: ...

    def called_back(self) -> bool: ...

    def close(self) -> None: ...


class ItsOrders(Protocol):
    """The line to its launcher (`orders.Orders`)."""

    def say(self, word: str) -> None: ...

    def next(self) -> Order | None: ...


class AProcess(Protocol):
    """A process that has episodes (`context.RankProcess`)."""

    @property
    def orders(self) -> ItsOrders | None: ...

    def tell(self, error: BaseException) -> None: ...

    def tell_loss(self, lost: BaseException) -> None: ...


class Episodes:
    """Those of a process. A rank whose peer is lost calls its lanes back, keeps what it holds, and
    begins the next episode where its launcher says, if that says anything. `make`: an episode of a
    number, somewhere, from a moment on."""

    def __init__(self, process: AProcess, make: Callable[[int, Launch, float], AnEpisode]) -> None:
        self._process, self._make = process, make
        self._episodes: dict[int, AnEpisode] = {}  # the one that runs
        self._called = -1  # the last one that the launcher has called this rank back from

    def run(self, launch: Launch, began_s: float) -> bool:
        """Whether the last step was done."""
        for number in count():
            episode = self._make(number, launch, began_s)
            self._episodes = {number: episode}
            try:
                if self._called == number:
                    self._interrupt(number)
                return episode.run()
            except OF_ANOTHER as error:
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
        self._process.tell_loss(lost)
        orders.say(BACK)
        order = orders.next()
        if order is None:
            raise lost
        return order.launch(launch)

    def called(self, number: int) -> None:
        """The launcher calls this rank back from an episode, which it may not have begun yet."""
        self._called = number
        self._interrupt(number)

    def _interrupt(self, number: int) -> None:
        episode = self._episodes.get(number)
        if episode is not None:
            episode.interrupt(PeerDown("this rank was called back: another one was lost"))
