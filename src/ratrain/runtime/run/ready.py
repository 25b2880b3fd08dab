"""A run that is ready to start: new, or resumed, in a folder that is ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from ratrain.corpus.prepare import Prepared
from ratrain.describe.job import JobSpec
from ratrain.runtime.kept_metrics import lost_steps, set_damage_aside
from ratrain.runtime.ownership import Claim, claim_run
from ratrain.runtime.run.episodes import begin_episode, finish_episode
from ratrain.runtime.run.machine_check import require_machine
from ratrain.runtime.run.own_folder import require_own_folder
from ratrain.runtime.run.prepare import PreparedRun, RunRequest, write_run
from ratrain.runtime.run.resume import (
    fresh_run,
    replan_run,
    require_run,
    require_same_data,
    resume_run,
)
from ratrain.runtime.run.source import Source
from ratrain.runtime.run.trainable import doubts, rest_words
from ratrain.runtime.run.working import RUNS
from ratrain.runtime.run_folder import RunFolder, RunSpec

Say = Callable[[str], None]
Tokenise = Callable[[JobSpec], Prepared]


@dataclass(frozen=True)
class ReadyRun:
    """What a launch needs. The run starts after `step`."""

    folder: RunFolder
    claim: Claim
    job: JobSpec
    spec: RunSpec
    step: int


@dataclass(frozen=True)
class Launcher:
    """Who makes runs ready: what it is called in a run's claim, where it says what it does, and
    how it tokenises. Claims end with `owning`; `claim`: one that it has already.
    `starts_here`: its ranks are to run on this machine."""

    command: str
    say: Say
    tokenise: Tokenise
    owning: ExitStack
    starts_here: bool = True
    claim: Claim | None = None

    def new(
        self,
        prepared: PreparedRun,
        path: Path | None,
        job_files: Path | None = None,
        source: Source | None = None,
    ) -> ReadyRun:
        """A prepared run in a folder of its own, with its text tokenised. `path`: None for one
        in `RUNS` that is called after the job. `job_files`: a folder with the job's own files,
        which move into the run's. `source`: what it begins from."""
        job = prepared.case.job
        if source is not None:
            source.require_model(job)
            prepared = replace(prepared, spec=source.spec(prepared.spec))
        self._require_machine(job, prepared.spec, prepared.peak_bytes)
        data = self.tokenise(job)
        for line in doubts(job, data.tokenizer.vocab_size):
            self.say(line)
        if source is not None:
            source.require_data(data, job)
        stem = (job.path or Path(prepared.spec.job_path)).stem
        path = path or fresh_run(RUNS, f"{stem}-{job.schedule.name}")
        folder = RunFolder(path)
        require_own_folder(folder, Path(prepared.spec.job_path), job_files)  # leave no claim in it
        claim = self._claimed(path)
        write_run(prepared, folder, job_files)
        if source is not None:
            source.carry_to(folder)
        first_step = source.step if source else 0
        period, end_step = prepared.proved.program.setup.alike_every, prepared.spec.end_step
        words = (prepared.seating(), prepared.proof(), rest_words(period, first_step, end_step))
        for line in (*prepared.case.headline(), *chain(*words)):
            self.say(line)
        if source is not None:
            self.say(source.words())
        self.say(f"run {path}")
        return ReadyRun(folder, claim, job, folder.read_spec(), first_step)

    def resumed(self, request: RunRequest, path: Path) -> ReadyRun:
        """The run of a folder, from its latest checkpoint, with its own program or with another."""
        folder = RunFolder(path)
        require_run(folder)
        claim = self._claimed(path)
        finish_episode(folder)
        if request.replans:
            request = self._replanned(request, folder)
        resumed = resume_run(request, folder)
        for line in resumed.headline:
            self.say(line)
        for name in resumed.skipped:
            self.say(f"{name} is damaged: skipped")
        for change in resumed.changes:
            self.say(f"changed since the run began: {change}")
        for line in (*set_damage_aside(folder), *lost_steps(folder, resumed.step)):
            self.say(line)
            folder.add_note(line)
        for line in rest_words(
            folder.read_setup().alike_every, resumed.step, resumed.spec.end_step
        ):
            self.say(line)
        if not resumed.finished:
            self._require_machine(resumed.job, resumed.spec, resumed.peak_bytes)
            require_same_data(resumed.job, resumed.checkpoint, self.tokenise(resumed.job))
            folder.write_spec(resumed.spec, folder.kept_program())
            after = f"resuming after step {resumed.step}" if resumed.step else ""
            self.say(f"run {path}, {after or 'no checkpoint: starting from step 0'}")
        return ReadyRun(folder, claim, resumed.job, resumed.spec, resumed.step)

    def _replanned(self, request: RunRequest, folder: RunFolder) -> RunRequest:
        """Gives a run another program; the request that resumes it then."""
        replanned = replan_run(request, folder)
        job, spec = replanned.prepared.case.job, replanned.spec
        self._require_machine(job, spec, replanned.prepared.peak_bytes)
        require_same_data(job, replanned.checkpoint, self.tokenise(job))
        begin_episode(folder, replanned.prepared, spec)
        folder.add_note(replanned.words())
        self.say(replanned.words())
        return replace(
            request, replans=False, schedule=None, without=(), plan_path=None, overrides=()
        )

    def _require_machine(self, job: JobSpec, spec: RunSpec, peak_bytes: Sequence[int]) -> None:
        if self.starts_here:
            require_machine(job, spec, peak_bytes, self.say)

    def _claimed(self, path: Path) -> Claim:
        if self.claim is not None:
            return self.claim
        return self.owning.enter_context(claim_run(path, self.command, self.say))
