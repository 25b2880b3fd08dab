"""A new run that begins from a checkpoint of another one: in any layout, schedule, plan, number of
devices. Checkpoints hold weights and optimizer state by unit and range, so each rank of the new
run reads what it owns; the run's program is its own."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from ratrain.checkpoint.folder import step_name, url_of
from ratrain.checkpoint.listing import Listed, latest, listed
from ratrain.checkpoint.manifest import NAME
from ratrain.checkpoint.remote import fetched
from ratrain.corpus.identity import identity_of, require_same
from ratrain.corpus.prepare import Prepared
from ratrain.describe.job import JobSpec
from ratrain.describe.model import config_hash
from ratrain.errors import CannotResume, SpecError
from ratrain.objects.client import stores
from ratrain.objects.remote import Remote
from ratrain.readers.numbers import is_number
from ratrain.runtime.run.facts import read_facts
from ratrain.runtime.run.working import reading_folder
from ratrain.runtime.run_folder import RunFolder, RunSpec
from ratrain.runtime.same_optimizer import require_optimizer


@dataclass(frozen=True)
class Source:
    """A whole checkpoint of a run. `restarts_data`: the new run reads its text from the beginning,
    instead of going on where the checkpoint's run was."""

    run: Path
    checkpoint: Listed
    restarts_data: bool

    @property
    def step(self) -> int:
        return self.checkpoint.step

    def spec(self, spec: RunSpec) -> RunSpec:
        """The run's `spec` with where it begins."""
        if spec.end_step <= self.step:
            raise SpecError(
                f"the checkpoint is of step {self.step}, the job ends at step {spec.end_step}",
                place="--from",
                fix="give a larger --steps, or an earlier checkpoint: RUN@STEP",
            )
        return replace(
            spec,
            from_run=str(self.run.resolve()),
            from_step=self.step,
            data_from=self.step if self.restarts_data else 0,
        )

    def require_model(self, job: JobSpec) -> None:
        """Refuses a job of another model, and one that would go on elsewhere in its text."""
        assert self.checkpoint.manifest is not None
        meta, model = self.checkpoint.manifest.meta, job.model.spec
        settings = read_facts(RunFolder(self.run))["settings"]
        # A model without a name is called after its folder, which may be another's.
        if config_hash(replace(model, name=meta.model)) != meta.config_hash:
            source = {k: v for k, v in settings["model"].items() if k not in _NOT_THE_MODELS}
            different = [key for key, value in source.items() if getattr(model, key, None) != value]
            keys = f" ({', '.join(different)})" if different else ""
            raise SpecError(
                f"the run was of another model, {meta.model}{keys}",
                place="--from",
                fix="train that model, or a new run with [train] weights",
            )
        require_optimizer(job, self.checkpoint.manifest, "--from")
        if self.restarts_data:
            return
        here = {"sequence_length": job.model.sequence_length, "sequences": job.batch.sequences}
        there = settings["model"] | settings["batch"]
        for key, value in here.items():
            if there.get(key) != value:
                raise SpecError(
                    f"the run had {key} = {there.get(key)}, the job has {value}: its steps would "
                    "go on elsewhere in the text",
                    place="--from",
                    fix="let the job say the same, or read the text anew: --restart-data",
                )

    def require_data(self, prepared: Prepared, job: JobSpec) -> None:
        """Refuses to go on in another text."""
        assert self.checkpoint.manifest is not None
        if not self.restarts_data:
            state = self.checkpoint.manifest.meta.state
            require_same(state, identity_of(prepared), job.path, self.checkpoint.path)

    def carry_to(self, folder: RunFolder) -> None:
        """Puts the checkpoint into the new run's folder, without a copy of its bytes where both are
        on one disk."""
        target = folder.checkpoints / step_name(self.step)
        partial = folder.checkpoints / f".{target.name}"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            path = self.checkpoint.path
            if isinstance(path, Remote):
                fetched(path, partial)
            else:
                shutil.copytree(path, partial, copy_function=_linked)
            partial.rename(target)
            url = url_of(folder.path)
            if url is not None:
                _send(target, url / target.parent.name / target.name)
        except (OSError, shutil.Error) as error:
            raise CannotResume(
                f"the checkpoint cannot be copied: {error}",
                place=str(folder.path),
                fix="free some space, or give this user the right to read it",
            ) from error

    def words(self) -> str:
        data = "its text read anew" if self.restarts_data else "its place in the text kept"
        return f"from step {self.step} of {self.run}: weights and optimizer state, {data}"


_NOT_THE_MODELS = ("name", "source", "sequence_length")


def source_of(text: str, *, restarts_data: bool) -> Source:
    """That of "RUN" (the latest checkpoint) or "RUN@STEP"."""
    name, at, step = text.rpartition("@")
    if not at or not is_number(step):
        name, step = text, ""
    run = RunFolder(reading_folder(name))
    if not run.holds_run:
        raise SpecError(
            "is not a run's folder: it has no run.json",
            place=f"--from {name}",
            fix="give a run's folder, RUN, or one of its steps, RUN@STEP",
        )
    whole = [checkpoint for checkpoint in listed(run.checkpoints) if checkpoint.manifest]
    if not step:
        newest = latest(run.checkpoints, skip_damaged=True)
        chosen = [c for c in whole if newest is not None and c.path == newest.path]
    else:
        chosen = [checkpoint for checkpoint in whole if checkpoint.step == int(step)]
    if not chosen:
        steps = ", ".join(str(checkpoint.step) for checkpoint in whole) or "none"
        raise SpecError(
            f"holds no whole checkpoint{f' of step {int(step)}' if step else ''}",
            place=f"--from {name}",
            fix=f"choose one of its steps: {steps}" if whole else "train that run further",
        )
    if chosen[0].elsewhere:
        raise CannotResume(
            f"{chosen[0].path.name} has parts on other hosts' disks",
            place=f"--from {name}",
            fix="copy all hosts' rank files of it into this folder",
        )
    return Source(run.path, chosen[0], restarts_data)


def _send(folder: Path, step: Remote) -> None:
    """A checkpoint's files to where the new run's are, the manifest last."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == NAME):
        stores().put_file(path, step / path.name)
    shutil.rmtree(folder)


def _linked(source: str, target: str) -> None:
    """Checkpoints' files are never written again, so two runs may share them."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
