"""A run of `ratrain graph train`: its folder, its epochs, how it stops and goes on.

FOLDER/checkpoints/     parameters and optimizer states, whole or absent
FOLDER/metrics.jsonl    a line an epoch
FOLDER/report.json      what was planned and what was measured
FOLDER/timeline.json    the last epoch as it ran; predicted.json as the clock had it
FOLDER/tier/            what does not fit in memory, while it runs; unless [memory] names a disk
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any

from ratrain.errors import SpecError
from ratrain.graph.calibrate import measured_rates
from ratrain.graph.clock import clocked, timeline_of
from ratrain.graph.figures import OpTimes, op_times, plan_figures
from ratrain.graph.plan import Plan
from ratrain.graph.process import STOPS, begun
from ratrain.graph.saved import listed
from ratrain.graph.spec import GraphFile
from ratrain.graph.train import CHECKPOINTS, Epoch, Progress, Training, peak_memory_bytes
from ratrain.readers.files import exists
from ratrain.readers.json_lines import read_json_lines
from ratrain.readers.writing import write_whole
from ratrain.timeline.timeline import write_timeline

METRICS, REPORT, MEASURED, PREDICTED = (
    "metrics.jsonl",
    "report.json",
    "timeline.json",
    "predicted.json",
)


def disk_of(spec: GraphFile, base: Path, folder: Path) -> Path:
    """Where a run's data lie meanwhile."""
    return base / spec.memory.disk if spec.memory.disk else folder / "tier"


def check_folder(folder: Path, *, resume: bool) -> None:
    """A SpecError where a folder has a run that nobody asked to go on with."""
    if exists(folder) and not folder.is_dir():
        raise SpecError("is no folder", place=str(folder), fix="name another one: --run")
    if not resume and listed(folder / CHECKPOINTS):
        raise SpecError(
            "there is a run already",
            place=str(folder),
            fix="go on with it: --resume; or name another folder: --run",
        )


class Run:
    """One launch of a run. `plan`: once it has begun, timed with what this machine computes."""

    def __init__(self, spec: GraphFile, plan: Plan, training: Training, folder: Path) -> None:
        self._spec, self.plan, self._training, self._folder = spec, plan, training, folder
        self._metrics: list[dict[str, Any]] = []
        self.asked_to_stop = False
        self.done: list[Epoch] = []

    @property
    def epochs_done(self) -> int:
        return self._training.epochs

    def begin(self, *, resume: bool, progress: Progress | None = None) -> None:
        """Takes up the checkpoint, if any, and puts the features on the disk."""
        if resume:
            self._training.resume(self._folder)
            metrics = self._folder / METRICS
            if exists(metrics):
                kept = (table for table, _ in read_json_lines(metrics))
                self._metrics = [row for row in kept if row["epoch"] <= self.epochs_done]
        if self.epochs_done < self._spec.train.epochs:
            rates = measured_rates(self.plan.laid, self._training.dtype, self.plan.rates)
            self.plan = replace(self.plan, rates=rates)
            self._training.store_features(progress)

    def epochs(self, progress: Callable[[], Progress | None] = lambda: None) -> Iterator[Epoch]:
        """The epochs that are left, each followed by its checkpoint where one is due."""
        last = self._spec.train.epochs
        with self._stopped_by_signals():
            while self.epochs_done < last and not self.asked_to_stop:
                epoch = self._training.epoch(progress())
                due = epoch.number % self._spec.train.checkpoint_every == 0
                self._metrics.append({"epoch": epoch.number, **asdict(epoch)})
                lines = (json.dumps(row) for row in self._metrics)
                # First: of a run that is killed between both, a row too many is dropped when it
                # resumes, and one too few would be missing for ever.
                write_whole(self._folder / METRICS, "\n".join(lines) + "\n")
                if due or epoch.number == last or self.asked_to_stop:
                    self._training.save(self._folder)
                self.done.append(epoch)
                yield epoch

    @contextmanager
    def _stopped_by_signals(self) -> Generator[None]:
        """SIGTERM and SIGUSR1 end the run after the epoch that is under way."""

        def ask(_number: int, _frame: FrameType | None) -> None:
            self.asked_to_stop = True

        before = {number: signal.signal(number, ask) for number in STOPS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def report(self) -> dict[str, Any]:
        """What was planned and what was measured; written into the folder, with the timelines."""
        kinds: list[OpTimes] = []
        if self.done:
            columns = self.plan.columns
            predicted = timeline_of(columns, clocked(columns, self.plan.rates))
            measured = self._training.timeline()
            write_timeline(predicted, self._folder / PREDICTED)
            write_timeline(measured, self._folder / MEASURED)
            kinds = op_times(predicted, measured)
        rows = [asdict(row) for row in kinds]
        body = {**plan_figures(self.plan), "measured": self._measured(), "kinds": rows}
        write_whole(self._folder / REPORT, json.dumps(body, indent=2) + "\n")
        return body

    def _measured(self) -> dict[str, Any]:
        done = self.done
        times = sorted(epoch.time_s for epoch in done)
        return {
            "epochs": self.epochs_done,
            "loss": done[-1].loss if done else None,
            "learned_right_fraction": done[-1].learned_right if done else None,
            "others_right_fraction": done[-1].others_right if done else None,
            "epoch_s": times[len(times) // 2] if times else None,
            "slowest_epoch_s": times[-1] if times else None,
            "waited_s": sum(e.waited_s for e in done) / len(done) if done else None,
            "read_bytes": done[-1].read_bytes if done else None,
            "written_bytes": done[-1].written_bytes if done else None,
            "sent_bytes": done[-1].sent_bytes if done else None,
            "peak_bytes": max(peak_memory_bytes(), self._training.peak_bytes),
        }


def open_run(
    spec: GraphFile, plan: Plan, base: Path, folder: Path
) -> tuple[Run, Callable[[], None]]:
    """A run, and what closes it: all that it has on the disk goes, but for its folder's files."""
    crew = begun(spec, plan, disk_of(spec, base, folder), folder)
    return Run(spec, crew.plan, crew.training, folder), crew.close
