"""A model with its weights, wherever they are: a run's checkpoint, or a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ratrain.checkpoint.folder import step_name
from ratrain.checkpoint.listing import latest
from ratrain.checkpoint.reader import Checkpoint, open_checkpoint
from ratrain.corpus.tokenizer import BYTES
from ratrain.describe.huggingface import load_config
from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError
from ratrain.models.division import WHOLE
from ratrain.models.huggingface import read_range
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.models.weights import Weights
from ratrain.runtime.run.facts import read_facts
from ratrain.runtime.run_folder import RunFolder
from ratrain.runtime.step.tensor_parts import StoredParts, stored_degree

CONFIG = "config.json"


@dataclass(frozen=True)
class TrainedModel:
    """A model, how many tokens it was trained to see, and where its weights come from."""

    spec: ModelSpec
    sequence_length: int
    source: Callable[[str], Tensor]  # a unit's whole flat buffer, fp32
    tokenizer: str  # as a job names it
    base: Path  # where a relative name of the tokenizer starts
    step: int | None  # of a run's checkpoint

    def views(self) -> dict[str, Weights]:
        """Every unit's weights, in memory."""
        found: dict[str, Weights] = {}
        for name in unit_names(self.spec):
            found[name] = Weights(unit_layout(self.spec, name))
            found[name].attach_view(self.source(name))
        return found


def trained_model(path: Path, step: int | None = None) -> TrainedModel:
    """The model of a run's folder (its newest checkpoint, or that of `step`) or a Hugging Face
    folder."""
    if (path / CONFIG).exists():
        return _of_hugging_face(path)
    return _of_run(RunFolder(path), step)


def _of_run(folder: RunFolder, step: int | None) -> TrainedModel:
    run, facts = folder.read_spec(), read_facts(folder)
    fields: dict[str, Any] = dict(facts["settings"]["model"])
    sequence_length = fields.pop("sequence_length")
    spec = ModelSpec(**fields, source=str(folder.path))
    checkpoint = checkpoint_of(folder, step)
    parts = StoredParts(
        spec,
        stored_degree(checkpoint.manifest.meta.units),
        lambda *where: torch.from_numpy(checkpoint.read_range(*where)),
    )

    def source(unit: str) -> Tensor:
        return parts.read_range(unit, WHOLE, "weights", 0, unit_layout(spec, unit).size)

    return TrainedModel(
        spec=spec,
        sequence_length=sequence_length,
        source=source,
        tokenizer=facts["settings"]["data"]["tokenizer"],
        base=Path(run.job_path).parent,
        step=checkpoint.manifest.meta.step,
    )


def _of_hugging_face(folder: Path) -> TrainedModel:
    spec = load_config(folder / CONFIG)

    def source(unit: str) -> Tensor:
        layout = unit_layout(spec, unit)
        return read_range(folder, spec, unit, layout, 0, layout.size)

    own = (folder / "tokenizer.json").exists()
    return TrainedModel(
        spec, spec.max_positions, source, "tokenizer.json" if own else BYTES, folder, None
    )


def checkpoint_of(folder: RunFolder, step: int | None = None) -> Checkpoint:
    """A run's checkpoint of a step, by default its newest whole one; blocks are verified as they
    are read."""
    if step is not None:
        path = folder.checkpoints / step_name(step)
        if path.exists():
            return open_checkpoint(path, verify=False)
    elif (found := latest(folder.checkpoints)) is not None:
        return open_checkpoint(found.path, verify=False)
    raise SpecError(
        "there is no checkpoint" + ("" if step is None else f" of step {step}"),
        place=str(folder.checkpoints),
        fix=f"see `ratrain checkpoints {folder.path}`",
    )
