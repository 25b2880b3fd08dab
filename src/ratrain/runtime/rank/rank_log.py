"""What ranks print on stderr where `ratrain train` does not show the run.

Of each host the first rank prints, of an engine that shows all hosts as one text rank 0: who is
there, where the run begins, a line every few seconds with rate and time left, what was saved, how
it ended. A rank that fails by itself always says so.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from ratrain.describe.units import clock_of
from ratrain.engines.places import Place
from ratrain.errors import RatrainError
from ratrain.runtime.environment import FOLLOWED, MERGED
from ratrain.runtime.failures import CAUSE, Failure, first_told, worded
from ratrain.runtime.rank.progress import ProgressMeter, plain_line, sample_line, validation_line
from ratrain.runtime.rank.rows import Row, is_added, is_validation
from ratrain.runtime.run_folder import RunFolder

EVERY_S = 3.0
_HEARSAY_S = 2.0
"""How long a rank that lost another one looks for that one's message."""
_LINGER_S = 5.0
"""The delay before a rank ends that leaves reporting to the first on its host: torchrun would end
that one at once. It may hear of the loss from rank 0 alone, which looks for words itself before."""


class RankLog:
    """One rank's. `prints`: whether it is the one that reports on the run."""

    def __init__(self, place: Place) -> None:
        self.rank = place.rank  # the engine's, until this rank has its seat
        self._followed = bool(os.environ.get(FOLLOWED))
        # whether it is read as one text
        self.for_all_hosts = place.merges or MERGED in os.environ
        self._first = not (place.rank if place.local_rank is None else place.local_rank)
        self._meter: ProgressMeter | None = None
        self._last_s = 0.0

    @property
    def prints(self) -> bool:
        return self._first and not self._followed and not (self.for_all_hosts and self.rank)

    def set_first_on_host(self, first_on_host: bool) -> None:
        """From now on it is known whether this rank is the first on its host."""
        self._first = first_on_host

    def say(self, line: str) -> None:
        if self.prints:
            _print(line)

    def begin(self, first_step: int, end_step: int, best: tuple[int, float] | None = None) -> None:
        """The steps begin; `best`: the step and loss of the best validation before."""
        start = f"from step {first_step}" if first_step else "from the start"
        self.say(f"training {start} to step {end_step}")
        self._meter = ProgressMeter(end_step, best)
        self._last_s = -EVERY_S  # so that the first step is shown

    def show(self, row: Row) -> None:
        """A step's figures, where it is time for a line."""
        if not self.prints or self._meter is None:
            return
        progress = self._meter.take(row)
        if progress is None:
            return
        if is_validation(row):
            _print(validation_line(progress))
        elif is_added(row):
            _print(sample_line(progress))
        elif self._is_time() or progress.step == progress.end_step:
            _print(plain_line(progress))

    def counting(self, activity: str) -> Callable[[int, int], None]:
        """Takes the bytes done and the bytes in all."""
        self._last_s = began_s = time.monotonic()

        def report(done: int, total: int) -> None:
            if not self.prints or not done or not self._is_time():
                return
            took_s = time.monotonic() - began_s
            _print(
                f"{activity}: {done / total:.0%}, {done / took_s / 1e6:.1f} MB/s, "
                f"left {clock_of(took_s * (total - done) / done)}"
            )

        return report

    def fail(self, folder: RunFolder, error: BaseException) -> None:
        """Why this rank ends, where that is news; of a rank that only lost another one, the first
        on the host says it, with the other's own words where these are found."""
        failure = worded(error, self.rank)
        if self._followed:
            return
        if failure.order != CAUSE and not self._first:
            time.sleep(_LINGER_S)
            return
        if failure.order != CAUSE:
            failure = first_told(folder, _HEARSAY_S) or failure
        _print(f"error: {_words(failure)}")

    def _is_time(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._last_s < EVERY_S:
            return False
        self._last_s = now_s
        return True


def _words(failure: Failure) -> str:
    names_rank = f"rank {failure.rank}" in f"{failure.place} {failure.what}"
    rank_prefix = "" if names_rank else f"rank {failure.rank}: "
    return str(RatrainError(rank_prefix + failure.what, place=failure.place, fix=failure.fix))


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
