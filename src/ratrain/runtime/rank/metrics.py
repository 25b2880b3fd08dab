"""A line for each step in the run's metrics file, written by rank 0 from the control round, and one
more after a step that is validated."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence

from ratrain.describe.job import JobSpec
from ratrain.readers.files import unwritable
from ratrain.readers.json_lines import end_last_line
from ratrain.runtime.rank.control import RankReport, Round
from ratrain.runtime.rank.rows import Row, Tracker
from ratrain.runtime.rank.validation import Validated
from ratrain.runtime.run_files import RANK_EXPERTS
from ratrain.runtime.run_folder import RunFolder
from ratrain.runtime.step.optimizer import learning_rate

_RANK_FIELDS = (
    "step_time_s",
    "compute_s",
    "recovery_s",
    "stages_s",
    "reduce_s",
    "gather_s",
    "update_s",
    "ledger_peak_bytes",
    "allocated_peak_bytes",
    "resident_bytes",
    "sent_bytes",
)


class StepRows:
    """Makes a row of each control round. `began_s`: when this start, or episode, began."""

    def __init__(
        self, job: JobSpec, budget_bytes: int | None, began_s: float, episode: int = 0
    ) -> None:
        self._began_s = began_s
        self._job, self._budget_bytes, self._episode = job, budget_bytes, episode
        self._tokens = job.batch.sequences * job.model.sequence_length
        self._is_first = True

    def row(self, step: int, reports: Round) -> Row:
        """The row of a step."""
        step_time_s = max(report.step_time_s for report in reports)
        loss, counted = loss_of(reports), counted_of(reports)
        norms = [r.gradient_norm for r in reports if r.gradient_norm == r.gradient_norm]
        body: Row = {
            "step": step,
            "loss": loss,
            "loss_bits": loss.hex(),
            "learning_rate": learning_rate(self._job.train, step),
            "tokens": self._tokens,
            "counted_tokens": counted,
            "step_time_s": step_time_s,
            "tokens_per_s": self._tokens / step_time_s,
            "time_s": time.time(),
            "budget_bytes": self._budget_bytes,
            "ranks": [_rank_row(report) for report in reports],
        }
        if self._is_first:
            body["started_s"] = self._began_s
            self._is_first = False
        if self._episode:
            body["episode"] = self._episode
        if norms:
            # Clipping may end after a step's compute does, so a step reports the one before it.
            body["gradient_norm_before"] = norms[0]
        if self._job.train.overflow == "unit":
            body["skipped_updates_before"] = int(sum(report.skipped_updates for report in reports))
        return body


def validation_row(step: int, validated: Validated) -> Row:
    """What is added to the row of the step before `step`."""
    return {
        "step": step - 1,
        "validation_loss": validated.loss,
        "validation_loss_bits": validated.loss.hex(),
        "validation_tokens": validated.tokens,
        **({} if validated.drift is None else {"drift": validated.drift}),
        "time_s": time.time(),
    }


def samples_row(step: int, texts: Sequence[tuple[str, str]], took_s: float) -> Row:
    """What is added to the row of the step before `step`: prompts, and how the model went on."""
    return {
        "step": step - 1,
        "samples": [{"prompt": prompt, "text": text} for prompt, text in texts],
        "samples_s": took_s,
        "time_s": time.time(),
    }


class MetricsLog:
    """Appends to the metrics file; a line is written whole. `charts` get each row too."""

    def __init__(self, folder: RunFolder, charts: Sequence[Tracker] = ()) -> None:
        self._path = folder.metrics
        self._file = self._path.open("a", buffering=1, encoding="utf-8")
        end_last_line(self._path)
        self._charts = charts
        self._one_at_a_time = threading.Lock()

    def write(self, row: Row) -> None:
        """A step's line, or what is added to it; from any thread."""
        with self._one_at_a_time:
            try:
                self._file.write(json.dumps(row) + "\n")
            except OSError as error:
                raise unwritable(self._path, error) from error
            for chart in self._charts:
                chart.write(row)

    def close(self) -> None:
        """Closes the charts, which may keep back what they got last."""
        for chart in self._charts:
            chart.close()


def loss_of(reports: Round) -> float:
    """The step's loss: all replicas' sums, added in the order of ranks, over the tokens that
    count."""
    total = sum(r.loss_sum for r in reports if r.loss_sum == r.loss_sum)
    return total / max(1, counted_of(reports))


def counted_of(reports: Round) -> int:
    """Tokens of all replicas that count in the step."""
    return int(sum(r.counted for r in reports if r.counted == r.counted))


def _rank_row(report: RankReport) -> dict[str, float | None]:
    has_experts = report.expert_tokens == report.expert_tokens
    names = (*_RANK_FIELDS, *RANK_EXPERTS) if has_experts else _RANK_FIELDS
    values = {name: getattr(report, name) for name in names}
    return {name: value if value == value else None for name, value in values.items()}
