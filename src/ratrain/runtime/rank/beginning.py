"""Where a run begins: from the latest checkpoint that every rank can read, else at step 0.

A checkpoint's files are looked over at once, on every disk that it was saved to, its blocks when
they are read. Each rank reads what it owns, so damage may show on one rank alone: the ranks agree
on each checkpoint before they use it, and all pass over one that any of them found damaged. What a
rank holds besides, the copies of what other replicas own, it then gets from them.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ratrain.checkpoint.folder import location_of
from ratrain.checkpoint.listing import listed, none_whole
from ratrain.checkpoint.own import begun_with, shared_kind
from ratrain.checkpoint.reader import open_checkpoint
from ratrain.corpus.identity import require_same
from ratrain.describe.job import JobSpec
from ratrain.describe.model import config_hash
from ratrain.describe.saved import WEIGHTS, saved_as
from ratrain.errors import CheckpointError, SavedElsewhere
from ratrain.models.division import Division
from ratrain.models.first_weights import first_weights
from ratrain.models.frozen_weights import frozen_weights, require_same_frozen
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.objects.remote import Location
from ratrain.runtime.rank.entry_notes import note_entries
from ratrain.runtime.rank.joining.membership import Membership
from ratrain.runtime.rank.joining.rendezvous import Everybody, told_by_all
from ratrain.runtime.rank.live import LiveReader, LiveStates
from ratrain.runtime.rank.trainer import Begin, RankRun
from ratrain.runtime.run_folder import RunFolder, RunSpec
from ratrain.runtime.same_optimizer import require_optimizer
from ratrain.runtime.step.frozen import FROZEN
from ratrain.runtime.step.made_unit import Source
from ratrain.runtime.step.tensor_parts import (
    StoredParts,
    stored_degrees,
    stored_sizes,
)


@dataclass(frozen=True)
class Together:
    """The ranks that look for a beginning, seen from one of them."""

    rank: int
    membership: Membership
    everybody: Everybody

    def agreed(self, problem: CheckpointError | None) -> list[str]:
        """Every rank's problem, in words; what lies on another host's disk is raised at once, since
        no older checkpoint would be any better."""
        own_answer: dict[str, object] = {}
        if problem is not None:
            own_answer = {"what": problem.what, "place": problem.place, "fix": problem.fix}
        own_answer["elsewhere"] = isinstance(problem, SavedElsewhere)
        answers = told_by_all(self.everybody(json.dumps(own_answer)))
        for rank, answer in enumerate(answers):
            if answer["elsewhere"]:
                message = f"{self.membership.place(rank)} cannot resume: {answer['what']}"
                raise SavedElsewhere(message, place=answer["place"], fix=answer["fix"])
        return [answer["what"] for answer in answers if "what" in answer]


def begun(
    folder: RunFolder,
    job: JobSpec,
    spec: RunSpec,
    data: Mapping[str, Any],
    together: Together,
    build: Callable[[Begin], RankRun],
    live: tuple[LiveStates, LiveReader] | None = None,
) -> RankRun:
    """What `build` makes of where the run begins; `data` is the identity of what it trains on.
    `live`: what survivors of an episode hold, where that is enough. All ranks call this
    together."""
    division = spec.seats.seat(together.rank).division
    if live is not None:
        run = build(survived(job, spec, division, *live))
        live[1].finish()
        run.complete()
        return run
    paths, problems = candidates(folder, together)
    for path in paths:
        run, problem = _built(path, job, spec, data, division, build)
        problems_told = together.agreed(problem)
        if run is not None and not problems_told:
            if together.membership.keeps(together.rank):
                _note(folder, path, problems)
                note_entries(folder, path, run.schedule.program)
            run.complete()
            return run
        problems += problems_told[:1]
        del run
        gc.collect()  # the states of the attempt given up
    if problems:
        raise none_whole(folder.checkpoints, problems)
    run = build(Begin(0, _fresh(job, spec, division), job.train.loss_scale))
    together.agreed(None)
    run.complete()
    return run


def candidates(folder: RunFolder, together: Together) -> tuple[list[Location], list[str]]:
    """The checkpoints that are whole on every disk, newest first; what is wrong with the others."""
    own_lists: dict[str, dict[str, str]] = {"whole": {}, "damaged": {}}
    if together.membership.keeps(together.rank):
        for checkpoint in listed(folder.checkpoints):
            if checkpoint.manifest is not None:
                own_lists["whole"][checkpoint.path.name] = checkpoint.manifest.identity
            else:
                own_lists["damaged"][checkpoint.path.name] = checkpoint.problem
    all_lists = told_by_all(together.everybody(json.dumps(own_lists)))
    disks = {together.membership.names[rank]: all_lists[rank] for rank in together.membership.disks}
    names = {name for disk in disks.values() for kind in disk.values() for name in kind}
    location = location_of(folder.checkpoints)
    paths: list[Location] = []
    problems: list[str] = []
    for name in sorted(names, reverse=True):
        problem = _problem_of(name, disks)
        if problem:
            problems.append(f"{name}: {problem}")
        else:
            paths.append(location / name)
    return paths, problems


def _problem_of(name: str, disks: Mapping[str, dict[str, dict[str, str]]]) -> str:
    """Why a checkpoint is not whole on every disk, by their hosts; "" where it is."""
    for host, disk in disks.items():
        if name in disk["damaged"]:
            on_host = f" (host {host})" if len(disks) > 1 else ""
            return disk["damaged"][name] + on_host
        if name not in disk["whole"]:
            return f"it is not on the disk of host {host}"
    if len({disk["whole"][name] for disk in disks.values()}) > 1:
        return "the hosts' disks hold parts of different checkpoints of this step"
    return ""


def _built(
    path: Location,
    job: JobSpec,
    spec: RunSpec,
    data: Mapping[str, Any],
    division: Division,
    build: Callable[[Begin], RankRun],
) -> tuple[RankRun | None, CheckpointError | None]:
    """The run that resumes from a checkpoint, or why that cannot be read."""
    try:
        checkpoint = open_checkpoint(path, verify=False)
    except CheckpointError as error:
        return None, error
    meta, model = checkpoint.manifest.meta, job.model.spec
    degrees = stored_degrees(model, meta.units)
    # A model without a name is called after its folder, which may have been moved.
    renamed = replace(model, name=meta.model)
    checkpoint.expect(meta.model, config_hash(renamed), stored_sizes(model, degrees))
    require_optimizer(job, checkpoint.manifest, str(path))
    if not spec.data_from or meta.step > spec.data_from:  # else another run's, of another text
        require_same(meta.state, data, job.path, path)
    require_same_frozen(meta.state, frozen_of(job, spec), _folder(job, spec), path)
    parts = StoredParts(
        model,
        degrees,
        lambda *element_range: torch.from_numpy(checkpoint.read_range(*element_range)),
    )
    source = _saved(parts, division, checkpoint.manifest.kinds_of, _fresh(job, spec, division))
    try:
        return build(_begin(job, meta.step, meta.state, source)), None
    except CheckpointError as error:
        error.what = f"{path.name}: {error.what}"
        return None, error


def survived(
    job: JobSpec, spec: RunSpec, division: Division, live: LiveStates, reader: LiveReader
) -> Begin:
    """Behind the last update that survivors hold of all units."""
    parts = StoredParts(job.model.spec, live.degrees, reader.read)
    source = _saved(parts, division, lambda _: live.kinds, _fresh(job, spec, division))
    return _begin(job, live.step, live.beside, source)


def _begin(job: JobSpec, step: int, beside: Mapping[str, Any], source: Source) -> Begin:
    """Where a run begins behind states of before. `beside`: what was kept beside the tensors."""
    return Begin(
        step,
        source,
        _loss_scale(job, beside),
        int(beside.get("good_steps", 0)),
        step - int(beside.get("updates", step)),
    )


def _loss_scale(job: JobSpec, state: Mapping[str, Any]) -> float:
    """The dynamic scale as it was saved; one that never changes as the job has it now."""
    if job.train.overflow == "unit":
        return job.train.loss_scale
    return float(state.get("loss_scale", job.train.loss_scale))


def _saved(
    parts: StoredParts,
    division: Division,
    kinds_of: Callable[[str], Collection[str]],
    fresh: Source,
) -> Source:
    """What a checkpoint holds, or survivors do; what nobody updates is as it was at first.
    `kinds_of`: the kinds of state that there are, by the stored name of a unit."""

    def saved(unit: str, kind: str, low: int, high: int) -> Tensor:
        if kind == FROZEN:
            return fresh(unit, kind, low, high)
        kinds = begun_with(kind, kinds_of(parts.first_name(unit)))
        stored = [parts.read_range(unit, division, each, low, high) for each in kinds]
        return sum(stored[1:], start=stored[0]) if stored else torch.zeros(high - low)

    return saved


def frozen_of(job: JobSpec, spec: RunSpec) -> dict[str, Any]:
    """What checkpoints keep of the weights that nobody updates."""
    return frozen_weights(job.model.spec, job.train.seed, _folder(job, spec))


def _folder(job: JobSpec, spec: RunSpec) -> Path | None:
    """The Hugging Face folder that the job begins with."""
    weights = job.train.weights
    return None if weights is None else Path(spec.job_path).parent / weights


def _fresh(job: JobSpec, spec: RunSpec, division: Division) -> Source:
    """The weights that the job names, else random ones."""
    model = job.model.spec
    layouts = {name: unit_layout(model, name, division) for name in unit_names(model)}
    folder = _folder(job, spec)

    def fresh(unit: str, kind: str, low: int, high: int) -> Tensor:
        kind = shared_kind(kind)
        while begins := saved_as(kind).begins:
            kind = begins
        if kind not in (WEIGHTS, FROZEN):
            return torch.zeros(high - low)
        layout = layouts[unit] if kind == WEIGHTS else layouts[unit].frozen
        assert layout is not None
        return first_weights(model, unit, layout, low, high, job.train.seed, folder)

    return fresh


def _note(folder: RunFolder, chosen: Location, problems: list[str]) -> None:
    """Leaves a line for the user where newer checkpoints were passed over."""
    if problems:
        names = [problem.split(":")[0] for problem in problems]
        folder.add_note(
            f"{', '.join(sorted(names))} {'is' if len(names) == 1 else 'are'} damaged and "
            f"skipped: {'; '.join(problems)}; the run resumes from {chosen.name}"
        )
