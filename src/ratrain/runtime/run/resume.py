"""A run that goes on: what its folder has, what may change, and where it begins again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ratrain.checkpoint.folder import step_of
from ratrain.checkpoint.listing import latest, read_manifest
from ratrain.corpus.identity import identity_of, require_same
from ratrain.corpus.prepare import Prepared
from ratrain.describe.job import JobSpec, load_job
from ratrain.errors import SpecError
from ratrain.runtime.run.facts import read_facts, settings_of
from ratrain.runtime.run.prepare import RunRequest
from ratrain.runtime.run_folder import RunFolder, RunSpec


@dataclass(frozen=True)
class ResumedRun:
    """A run whose program stands; it goes on behind `checkpoint`, where there is one. `changes`: in
    words, what the job file says otherwise than when the run began."""

    job: JobSpec
    spec: RunSpec
    headline: list[str]
    checkpoint: Path | None
    skipped: tuple[str, ...]  # damaged checkpoints that were passed over
    changes: tuple[str, ...]

    @property
    def step(self) -> int:
        return (step_of(self.checkpoint) or 0) if self.checkpoint else 0

    @property
    def finished(self) -> bool:
        return self.step >= self.spec.end_step

    def require_same_data(self, prepared: Prepared) -> None:
        """Refuses to go on with other data than the checkpoint's."""
        if self.checkpoint is not None:
            state = read_manifest(self.checkpoint).meta.state
            require_same(state, identity_of(prepared), self.job.path, self.checkpoint)


def resume_run(request: RunRequest, folder: RunFolder) -> ResumedRun:
    """The `ResumedRun` of a folder. Its program and layout go on; the job file is read again for
    all else, and must be of the same model, batch and sequence length."""
    _refuse_other_program(request, folder)
    spec, facts = folder.read_spec(), read_facts(folder)
    job = load_job(request.job_path)
    now, then = settings_of(job), facts["settings"]
    for table in ("model", "batch"):
        for key in now[table]:
            if now[table][key] != then[table].get(key):
                raise SpecError(
                    f"[{table}] {key} is {now[table][key]!r}, the run has {then[table].get(key)!r}",
                    place=str(request.job_path),
                    fix="give the job that the run was made from, or begin a run of its own",
                )
    found = latest(folder.checkpoints, skip_damaged=True)
    spec = replace(
        spec,
        job_path=str(request.job_path.resolve()),
        end_step=_end_step(request, spec, now, then),
        threads=request.threads or spec.threads,
        calibrate=request.calibrate,
    )
    return ResumedRun(
        job,
        spec,
        list(facts["headline"]),
        found.path if found else None,
        tuple(one.path.name for one in found.skipped) if found else (),
        tuple(_changes(now, then)),
    )


def newest_run(parent: Path, name: str) -> Path:
    """The folder of the newest run of this name: name, name-2, name-3, ..."""
    found = _numbered(parent, name)
    if not found:
        raise SpecError(
            "there is no run to resume", place=str(parent / name), fix="name its folder with --run"
        )
    return found[max(found)]


def fresh_run(parent: Path, name: str) -> Path:
    """The first folder of this name that is not there yet."""
    found = _numbered(parent, name)
    number = max(found, default=0) + 1
    return parent / (name if number == 1 else f"{name}-{number}")


def _numbered(parent: Path, name: str) -> dict[int, Path]:
    found: dict[int, Path] = {}
    for path in parent.glob(f"{name}*"):
        rest = path.name.removeprefix(name)
        if not rest:
            found[1] = path
        elif rest[0] == "-" and rest[1:].isdigit():
            found[int(rest[1:])] = path
    return found


def _refuse_other_program(request: RunRequest, folder: RunFolder) -> None:
    given = {
        "--schedule": request.schedule,
        "--without": request.without,
        "--plan": request.plan_path,
    }
    for flag, value in given.items():
        if value:
            raise SpecError(
                "a run that is resumed goes on with its own program",
                place=flag,
                fix=f"leave {flag} out, or begin a run of its own without --resume",
            )
    if not (folder.path / "run.json").exists():
        raise SpecError(
            "is no run's folder: there is no run.json",
            place=str(folder.path),
            fix="name the run's folder with --run, or leave --resume out",
        )


def _end_step(request: RunRequest, spec: RunSpec, now: dict[str, Any], then: dict[str, Any]) -> int:
    """--steps where given, else the job's number where it was changed, else as before."""
    if request.steps:
        return request.steps
    steps: int = now["train"]["steps"]
    return steps if steps != then["train"]["steps"] else spec.end_step


def _changes(now: dict[str, Any], then: dict[str, Any]) -> list[str]:
    return [
        f"[{table}] {key} is {now[table][key]!r}, was {(then[table] or {}).get(key)!r}"
        for table in ("train", "data", "checkpoint")
        for key in now[table] or {}
        if now[table][key] != (then[table] or {}).get(key)
    ]
