"""Where a run begins: behind the newest checkpoint that every rank can read, else at step 0.

A checkpoint's files are looked over at once, its blocks when they are read. Each rank reads parts
of its own, so damage may show on one rank alone: the ranks agree on each checkpoint before they
use it, and all pass over one that any of them found damaged.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ratrain.checkpoint.listing import latest, listed
from ratrain.checkpoint.reader import open_checkpoint
from ratrain.corpus.identity import require_same
from ratrain.describe.job import JobSpec
from ratrain.errors import CheckpointError
from ratrain.models.division import Division
from ratrain.models.huggingface_reader import read_range
from ratrain.models.initialise import initial_range
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.runtime.rank.trainer import Begin, RankRun
from ratrain.runtime.run_folder import RunFolder, RunSpec
from ratrain.runtime.step.states import Source
from ratrain.runtime.step.tensor_parts import StoredParts, stored_degree, stored_sizes


def begun(
    folder: RunFolder,
    job: JobSpec,
    spec: RunSpec,
    data: Mapping[str, Any],
    build: Callable[[Begin], RankRun],
) -> RankRun:
    """What `build` makes of where the run begins; `data` is the identity of what it trains on. All
    ranks call this together."""
    problems: list[str] = []
    division = spec.seats.seat(dist.get_rank()).division
    for path in _candidates(folder):
        found, problem = _built(path, job, data, division, build)
        said = [one for one in _everybody(problem) if one]
        if found is not None and not said:
            _note(folder, path, problems)
            return found
        problems += said[:1]
        del found
        gc.collect()  # the states of the attempt given up
    if problems:
        raise CheckpointError(
            f"no checkpoint of the run can be read: {problems[0]}",
            place=str(folder.checkpoints),
            fix="move the folder's checkpoints away to begin from the start",
        )
    return build(Begin(0, _fresh(job, spec, division), job.train.loss_scale))


def _candidates(folder: RunFolder) -> list[Path]:
    """The whole checkpoints, newest first, as rank 0 sees them; damage to all is an error."""
    names: list[str] = []
    problem = ""
    if dist.get_rank() == 0:
        try:
            latest(folder.checkpoints, skip_damaged=True)
            whole = [one for one in listed(folder.checkpoints) if one.manifest is not None]
            names = [one.path.name for one in reversed(whole)]
        except CheckpointError as error:
            problem = str(error)
    body = json.loads(_everybody(json.dumps([names, problem]))[0])
    if body[1]:
        raise CheckpointError(body[1])
    return [folder.checkpoints / name for name in body[0]]


def _built(
    path: Path,
    job: JobSpec,
    data: Mapping[str, Any],
    division: Division,
    build: Callable[[Begin], RankRun],
) -> tuple[RankRun | None, str]:
    """The run behind a checkpoint, or why it cannot be read."""
    try:
        checkpoint = open_checkpoint(path, verify=False)
    except CheckpointError as error:
        return None, error.what
    meta, model = checkpoint.manifest.meta, job.model.spec
    degree = stored_degree(meta.units)
    checkpoint.expect(model.name, config_hash(job), stored_sizes(model, degree))
    require_same(meta.state, data, job.path, path)
    parts = StoredParts(
        model, degree, lambda *where: torch.from_numpy(checkpoint.read_range(*where))
    )
    try:
        return build(
            Begin(
                meta.step,
                _saved(parts, division),
                float(meta.state.get("loss_scale", job.train.loss_scale)),
                int(meta.state.get("good_steps", 0)),
                meta.step - int(meta.state.get("updates", meta.step)),
            )
        ), ""
    except CheckpointError as error:
        return None, f"{path.name}: {error.what}"


def _saved(parts: StoredParts, division: Division) -> Source:
    def saved(unit: str, kind: str, low: int, high: int) -> Tensor:
        return parts.read_range(unit, division, kind, low, high)

    return saved


def _fresh(job: JobSpec, spec: RunSpec, division: Division) -> Source:
    """The weights that the job names, else random ones."""
    model = job.model.spec
    layouts = {name: unit_layout(model, name, division) for name in unit_names(model)}
    weights = job.train.weights

    def fresh(unit: str, kind: str, low: int, high: int) -> Tensor:
        if kind != "weights":
            return torch.zeros(high - low)
        if weights is not None:
            source = Path(spec.job_path).parent / weights
            return read_range(source, model, unit, layouts[unit], low, high)
        return initial_range(model, unit, layouts[unit], low, high, job.train.seed)

    return fresh


def _note(folder: RunFolder, used: Path, problems: list[str]) -> None:
    """Leaves a line for the user where damaged checkpoints were passed over."""
    whole = {path.name for path in folder.checkpoints.glob("step-*[0-9]")}
    later = sorted(name for name in whole if name > used.name)
    if later and dist.get_rank() == 0:
        because = f": {'; '.join(problems)}" if problems else ""
        folder.add_note(
            f"{', '.join(later)} {'is' if len(later) == 1 else 'are'} damaged and passed over"
            f"{because}; the run goes on behind {used.name}"
        )


def _everybody(words: str) -> list[str]:
    """Every rank's words, by rank, over the group that waits longest."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, words)
    return found


def config_hash(job: JobSpec) -> str:
    """Of what a checkpoint's numbers depend on: the model, not its layout over ranks."""
    body = {k: v for k, v in asdict(job.model.spec).items() if k != "source"}
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
