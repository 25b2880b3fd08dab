"""A resumed run: what its folder has, what may change, and where it resumes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ratrain.checkpoint.folder import step_of
from ratrain.checkpoint.listing import latest, read_manifest
from ratrain.corpus.identity import identity_of, require_same
from ratrain.corpus.prepare import Prepared
from ratrain.describe.job import JobSpec
from ratrain.describe.model import added
from ratrain.describe.overrides import combined
from ratrain.describe.program_keys import changed
from ratrain.errors import SpecError
from ratrain.objects.remote import Location
from ratrain.plan import load_job
from ratrain.program.repeating import Repeating
from ratrain.readers.numbers import is_number
from ratrain.runtime.run.facts import read_facts, settings_of
from ratrain.runtime.run.prepare import (
    PreparedRun,
    RunRequest,
    is_decided_by_plan,
    prepare_run,
)
from ratrain.runtime.run.trainable import require_trainable, require_whole_periods
from ratrain.runtime.run_folder import RunFolder, RunSpec, cannot_be_made
from ratrain.runtime.step.tied_program import require_tied


@dataclass(frozen=True)
class ResumedRun:
    """A run whose program is fixed; it resumes after `checkpoint`, where there is one. `changes`:
    in words, what has changed in the job file since the run began."""

    job: JobSpec
    spec: RunSpec
    headline: list[str]
    peak_bytes: tuple[int, ...]  # proven, of each program rank
    checkpoint: Location | None
    skipped: tuple[str, ...]  # damaged checkpoints that were passed over
    changes: tuple[str, ...]

    @property
    def step(self) -> int:
        return (step_of(self.checkpoint) or 0) if self.checkpoint else 0

    @property
    def finished(self) -> bool:
        return self.step >= self.spec.end_step


def require_same_data(job: JobSpec, checkpoint: Location | None, prepared: Prepared) -> None:
    """Refuses to continue with data other than the checkpoint's."""
    if checkpoint is not None:
        state = read_manifest(checkpoint).meta.state
        require_same(state, identity_of(prepared), job.path, checkpoint)


@dataclass(frozen=True)
class ReplannedRun:
    """A run that goes on with another program after `checkpoint`. `spec`: the run's from then."""

    prepared: PreparedRun
    spec: RunSpec
    checkpoint: Location | None
    ranks_before: int

    def words(self) -> str:
        """What changes, for people."""
        counts = self.ranks_before, self.spec.seats.world_size
        of_ranks = " to ".join(map(str, dict.fromkeys(counts)))
        words = f"another program from step {self.spec.episode_step} on: {of_ranks} ranks"
        case, left = self.prepared.case, self.prepared.file_job.left_layout
        if left is None:
            return words
        return (
            f"{words}, laid out as {case.name}: [layout] is for {left.devices} devices, of which "
            f"{case.job.cluster.devices} are left"
        )


def replan_run(request: RunRequest, folder: RunFolder) -> ReplannedRun:
    """A folder's run with the program that its job has now: other layout, schedule, plan, sharding,
    cluster. Model, batch and sequence length are the run's."""
    spec, facts = folder.read_spec(), read_facts(folder)
    kept = spec.overrides
    if request.plan_path is not None:
        kept = tuple(override for override in kept if not is_decided_by_plan(override))
    request = replace(request, overrides=combined(kept, request.overrides))
    current = settings_of(load_job(request.job_path, request.overrides))
    _require_same_training(request, current, facts["settings"])
    newest = latest(folder.checkpoints, skip_damaged=True)
    step = (step_of(newest.path) or 0) if newest else 0
    end_step = _end_step(request, spec, current, facts["settings"])
    if end_step <= step:
        raise SpecError(
            f"the run is finished at step {step}: there is nothing to plan for",
            place=str(folder.path),
            fix="give a larger --steps to train further, or leave --replan out",
        )
    prepared = prepare_run(replace(request, steps=end_step))
    after = replace(
        prepared.spec,
        from_run=spec.from_run,
        from_step=spec.from_step,
        data_from=spec.data_from,
        episode=spec.episode + 1,
        episode_step=step,
    )
    return ReplannedRun(prepared, after, newest and newest.path, spec.seats.world_size)


def _require_same_training(
    request: RunRequest, current: dict[str, Any], original: dict[str, Any]
) -> None:
    """Refuses a job of another model, batch or sequence length. What stands in [batch] that a plan
    decides may change with it. A run of an earlier version says nothing of what that did not
    know."""
    known = {key: [] if value == () else value for key, value in added().items()}  # as in a file
    original = {**original, "model": {**known, **original["model"]}}
    for table in ("model", "batch"):
        for key in current[table]:
            # A model without a name is called after its folder, which may have been moved.
            if key == "name" or (request.replans and key == "micro_batch"):
                continue
            if key == "tuning" and not request.replans:
                continue  # a key of [train] that its program depends on
            if key == "tuning" and current[table][key] != original[table].get(key):
                raise SpecError(
                    "[train] freeze, train_only or lora is not what the run has: its checkpoints "
                    "hold what was trained of the model",
                    place=str(request.job_path),
                    fix="use the job that the run was made from; or export the run, and start a "
                    "new one with [train] weights",
                )
            if current[table][key] != original[table].get(key):
                raise SpecError(
                    f"[{table}] {key} is {current[table][key]!r}, the run has "
                    f"{original[table].get(key)!r}",
                    place=str(request.job_path),
                    fix="use the job that the run was made from, or start a new run",
                )


def resume_run(request: RunRequest, folder: RunFolder) -> ResumedRun:
    """The `ResumedRun` of a folder. Its program and layout are kept; the job file is read again for
    all else, and must be of the same model, batch and sequence length."""
    _refuse_other_program(request)
    spec, facts = folder.read_spec(), read_facts(folder)
    overrides = combined(spec.overrides, request.overrides)
    job = load_job(request.job_path, overrides)
    current, original = settings_of(job), facts["settings"]
    _require_same_training(request, current, original)
    require_trainable(job)
    stored = folder.kept_program()
    program = stored.short if isinstance(stored, Repeating) else stored  # it has every kind of op
    require_tied(job.model.spec, program)
    _require_same_keys(job, original["train"])
    end_step = _end_step(request, spec, current, original)
    require_whole_periods(job, program.setup.alike_every)
    newest = latest(folder.checkpoints, skip_damaged=True)
    spec = replace(
        spec,
        job_path=str(request.job_path.resolve()),
        end_step=end_step,
        threads=request.threads or spec.threads,
        calibrate=request.calibrate,
        overrides=overrides,
    )
    return ResumedRun(
        job,
        spec,
        list(facts["headline"]),
        tuple(facts["bound_bytes"]),
        newest.path if newest else None,
        tuple(checkpoint.path.name for checkpoint in newest.skipped) if newest else (),
        tuple(_changes(current, original)),
    )


def _require_same_keys(job: JobSpec, began: dict[str, Any]) -> None:
    """Refuses keys of [train] that the run's program depends on, and that the job has otherwise."""
    for key, before in changed(began, job):
        said = f"without {key.file_key}" if before is None else f"with {key.file_key} = "
        raise SpecError(
            f"the run began {said}{'' if before is None else json.dumps(before)}, and its program "
            "cannot change",
            place=f"{job.path} [{key.table}] {key.file_key}",
            fix=("remove it" if before is None else f"set it to {json.dumps(before)}")
            + ", or add --replan to go on with another program",
        )


def newest_run(parent: Path, name: str) -> Path:
    """The folder of the newest run of this name: name, name-2, name-3, ..."""
    runs = _numbered(parent, name)
    if not runs:
        raise SpecError(
            "there is no run to resume", place=str(parent / name), fix="give its folder with --run"
        )
    return runs[max(runs)]


def fresh_run(parent: Path, name: str) -> Path:
    """A folder that is made now, and was not there before: name, name-2, name-3, ..."""
    number = max(_numbered(parent, name), default=0) + 1
    while True:
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
            return path
        except FileExistsError as error:
            if not parent.is_dir():
                raise cannot_be_made(path, error) from error
            number += 1  # another launch's, made at this moment
        except OSError as error:
            raise cannot_be_made(path, error) from error


def _numbered(parent: Path, name: str) -> dict[int, Path]:
    """The folders of a name by their numbers."""
    numbered: dict[int, Path] = {}
    for path in parent.iterdir() if parent.is_dir() else ():
        suffix = path.name.removeprefix(name)
        if path.name == name:
            numbered[1] = path
        elif suffix != path.name and suffix[0] == "-" and is_number(suffix[1:]):
            numbered[int(suffix[1:])] = path
    return numbered


def _refuse_other_program(request: RunRequest) -> None:
    options = {
        "--schedule": request.schedule,
        "--without": request.without,
        "--plan": request.plan_path,
    }
    for flag, value in options.items():
        if value:
            raise SpecError(
                "a resumed run continues with its own program",
                place=flag,
                fix=f"leave {flag} out, or add --replan to go on with another program",
            )


def require_run(folder: RunFolder) -> None:
    """Refuses a folder that holds no run."""
    if not folder.holds_run:
        raise SpecError(
            "is not a run's folder: it has no run.json",
            place=str(folder.path),
            fix="give the run's folder with --run, or remove --resume",
        )


def _end_step(
    request: RunRequest, spec: RunSpec, current: dict[str, Any], original: dict[str, Any]
) -> int:
    """--steps where given, else the job's number where it was changed, else as before."""
    if request.steps:
        return request.steps
    steps: int = current["train"]["steps"]
    return steps if steps != original["train"]["steps"] else spec.end_step


_READ_AGAIN = ("train", "data", "checkpoint")
_KEPT = ("cluster", "layout", "schedule")
"""Tables that a run's program was made from."""


def _changes(current: dict[str, Any], original: dict[str, Any]) -> list[str]:
    effective = [line for table in _READ_AGAIN for line in _differences(table, current, original)]
    ineffective = [
        f"{line}; the program stays as it is without --replan"
        for table in _KEPT
        if table in original  # earlier versions did not keep them
        for line in _differences(table, current, original)
    ]
    return effective + ineffective


def _differences(table: str, current: dict[str, Any], original: dict[str, Any]) -> list[str]:
    """What one table says now and did not say when the run began."""
    before, after = original[table] or {}, current[table] or {}
    if not (before and after):
        return [f"[{table}] was added" if after else f"[{table}] was removed"] * (before != after)
    return [
        f"[{table}] {key} is {value!r}, was {before.get(key)!r}"
        for key, value in after.items()
        if value != before.get(key)
    ]
