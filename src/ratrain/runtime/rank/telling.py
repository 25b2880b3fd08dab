"""What ranks tell of an episode: its steps, in metrics and log, and what they have recorded."""

from __future__ import annotations

import json

from ratrain.readers.writing import write_whole
from ratrain.runtime.kept_metrics import set_damage_aside
from ratrain.runtime.rank.attempt import Attempt
from ratrain.runtime.rank.checked import RankCheck
from ratrain.runtime.rank.context import RankContext, note
from ratrain.runtime.rank.control import Round
from ratrain.runtime.rank.live import LiveStates
from ratrain.runtime.rank.metrics import MetricsLog, StepRows
from ratrain.runtime.rank.rows import Row
from ratrain.runtime.rank.stragglers import Stragglers
from ratrain.runtime.rank.trackers import own_trackers
from ratrain.runtime.rank.trainer import RankRun


class Telling:
    """Of the steps of an episode: in the metrics, which rank 0 writes, and in the log."""

    def __init__(self, context: RankContext, began_s: float) -> None:
        self._context, self._first = context, context.seat.world_rank == 0
        self._rows = StepRows(
            context.job, context.program.setup.budget_bytes, began_s, context.spec.episode
        )
        self._stragglers = Stragglers(context.membership.place)
        self._metrics: MetricsLog | None = None
        self._attempt: Attempt | None = None
        if self._first:
            self._attempt = Attempt(context.folder.path / "owner")
            if context.claim.is_mine:  # else the launcher did it
                note(context, set_damage_aside(context.folder))
            self._metrics = MetricsLog(context.folder, own_trackers(context.folder.path))

    def on_round(self, step: int, reports: Round) -> None:
        """Takes a round of control."""
        self._context.claim.require_seen()
        self._require_newest()
        if self._first:
            note(self._context, self._stragglers.of_round(step, reports))
        if self._metrics is not None or self._context.log.prints:
            self.keep(self._rows.row(step, reports))

    def require_owned(self) -> None:
        """Raises where the run's folder is another launch's by now, or other ranks'."""
        self._context.claim.require()
        self._require_newest()

    def _require_newest(self) -> None:
        if self._attempt is not None:
            self._attempt.require()

    def keep(self, row: Row) -> None:
        if self._metrics is not None:
            self._metrics.write(row)
        self._context.log.show(row)

    def of_survivors(self, live: LiveStates) -> None:
        """Adds the steps that were done when a rank was lost, where nobody had told of them: what
        the survivors report of them. Lanes are at most two steps ahead of what was told."""
        if self._metrics is None:
            return
        told = max((row["step"] for row in self._context.folder.metrics_lines()), default=-1)
        for step, reports in sorted(live.reports.items()):
            if step > told:
                words = f"step {step}: its loss is that of the ranks that were not lost"
                note(self._context, [words])
                self._metrics.write(self._rows.row(step, reports))

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()


def tell_end(context: RankContext, run: RankRun, check: RankCheck | None) -> None:
    """Leaves what this rank has measured in the run's folder."""
    body = {
        **run.records(),
        "memory": run.memory(),
        "experts": run.experts(),
        "settled": run.settling.as_json(),
    }
    write_whole(context.folder.rank_file(context.seat.world_rank, "records"), json.dumps(body))
    if check is not None:
        check.write()
