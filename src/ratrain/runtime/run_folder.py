"""A run's folder: what the launcher resolved, what ranks measured, what was saved.

job.toml        the job as it was given
program.txt     the program that every rank executes
run.json        versions, layout, where each rank sits, what was predicted
metrics.jsonl   one line a step
predicted.json  the timeline of the simulator; measured.json: of the ranks
report.json     prediction against measurement, memory, weights' checksums
checkpoints/    complete ones only
notes.txt       what went otherwise than expected: damaged checkpoints passed over
logs/           what each rank printed
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from ratrain.errors import SpecError
from ratrain.program.program import Program
from ratrain.program.text import read_text, write_text
from ratrain.runtime.seats import Seats
from ratrain.timeline.timeline import write_whole

FORMAT = "ratrain run 1"


@dataclass(frozen=True)
class RunSpec:
    """What a rank needs to know besides the job and the program."""

    job_path: str  # absolute: relative names in the job are relative to it
    pipeline: int
    data: int
    replica_class: tuple[int, ...]
    first_rank: tuple[int, ...]
    micro_batch: int
    dtype: str
    threads: int  # of torch, a rank
    end_step: int
    record_steps: int = 4  # the last steps whose every op is recorded
    calibrate: bool = True
    allocator: bool = True  # count what the process allocates, and hold it to the budget
    tensor: int = 1

    @property
    def seats(self) -> Seats:
        return Seats(self.pipeline, self.data, self.replica_class, self.first_rank, self.tensor)


@dataclass(frozen=True)
class RunFolder:
    """Names of the files of a run."""

    path: Path

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def report(self) -> Path:
        return self.path / "report.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def stop_request(self) -> Path:
        """Exists when somebody asked the run to stop behind the current step."""
        return self.path / "stop-requested"

    @property
    def program(self) -> Path:
        return self.path / "program.txt"

    @property
    def predicted(self) -> Path:
        return self.path / "predicted.json"

    @property
    def measured(self) -> Path:
        return self.path / "measured.json"

    @property
    def notes(self) -> Path:
        """Lines for the user about what went otherwise than expected."""
        return self.path / "notes.txt"

    def add_note(self, line: str) -> None:
        with self.notes.open("a") as file:
            file.write(line + "\n")

    def rank_file(self, rank: int, what: str) -> Path:
        """A file of one rank's: `what` is "records", "failure", ..."""
        return self.path / "ranks" / f"{what}-{rank:05d}.json"

    def write_spec(self, spec: RunSpec, program: Program) -> None:
        """Makes the folder, with all that ranks read."""
        try:
            for folder in (self.path, self.logs, self.path / "ranks", self.checkpoints):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpecError(
                f"cannot be made: {error.strerror}",
                place=str(self.path),
                fix="name a folder with --run that you may write to",
            ) from error
        write_whole(self.program, write_text(program))
        write_whole(
            self.path / "run.json", json.dumps({"format": FORMAT, **asdict(spec)}, indent=2)
        )

    def read_spec(self) -> RunSpec:
        body = self.read_json(self.path / "run.json")
        if body.pop("format", None) != FORMAT:
            raise self._another_version()
        try:
            for key in ("replica_class", "first_rank"):
                body[key] = tuple(body[key])
            return RunSpec(**body)
        except (KeyError, TypeError) as error:
            raise self._another_version() from error

    def _another_version(self) -> SpecError:
        return SpecError(
            "is not a run of this version",
            place=str(self.path),
            fix="start a new run; a checkpoint's weights can be carried over with `ratrain export`",
        )

    def read_program(self) -> Program:
        return read_text(self.program.read_text(), str(self.program))

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of the metrics; a step that was done again after a restart counts once, as it
        went last. A half-written last line is left out."""
        found: dict[int, dict[str, Any]] = {}
        for line in self.metrics.read_text().splitlines() if self.metrics.exists() else []:
            try:
                row = cast("dict[str, Any]", json.loads(line))
            except ValueError:
                continue
            found[int(row["step"])] = row
        return [found[step] for step in sorted(found)]

    @staticmethod
    def read_json(path: Path) -> dict[str, Any]:
        """A file of the folder; a `SpecError` names what is wrong with it."""
        try:
            return cast("dict[str, Any]", json.loads(path.read_text()))
        except OSError as error:
            raise SpecError(
                f"cannot be read: {error.strerror}", place=str(path), fix="name a run's folder"
            ) from error
        except ValueError as error:
            raise SpecError(f"is damaged: {error}", place=str(path)) from error
