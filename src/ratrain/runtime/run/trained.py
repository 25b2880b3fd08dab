"""A model with its weights, wherever they are: a run's checkpoint, or a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ratrain.checkpoint.folder import location_of, step_name
from ratrain.checkpoint.listing import latest, listed
from ratrain.checkpoint.reader import Checkpoint, open_checkpoint
from ratrain.corpus.tokenizer import BYTES, Tokenizer
from ratrain.describe.huggingface import load_config
from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError
from ratrain.models.division import WHOLE
from ratrain.models.first_weights import first_weights
from ratrain.models.frozen_weights import frozen_weights, require_same_frozen
from ratrain.models.huggingface import read_range
from ratrain.models.huggingface.config import CONFIG
from ratrain.models.merged import merged
from ratrain.models.packed import as_packed
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.models.weights import Weights
from ratrain.readers.files import exists
from ratrain.runtime.run_files import trained_case
from ratrain.runtime.run_folder import RunFolder
from ratrain.runtime.step.tensor_parts import Read, StoredParts, stored_degrees

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class Adapters:
    """Low-rank adapters. `source`: a unit's flat buffer of what is trained of it, fp32."""

    spec: ModelSpec  # with what is trained of it
    source: Callable[[str], Tensor]


@dataclass(frozen=True)
class TrainedModel:
    """A model, how many tokens it was trained to see, and where its weights come from."""

    spec: ModelSpec
    sequence_length: int
    source: Callable[[str], Tensor]  # a unit's whole flat buffer, fp32
    tokenizer: str  # as a job names it
    base: Path  # where a relative name of the tokenizer starts
    configs: tuple[Path, ...]  # config.json files that described the model when training began
    step: int | None  # of a run's checkpoint
    adapters: Adapters | None = None  # where adapters alone were trained; `source` has them merged

    def views(self) -> dict[str, Weights]:
        """Every unit's weights, in memory."""
        views: dict[str, Weights] = {}
        for name in unit_names(self.spec):
            views[name] = Weights(unit_layout(self.spec, name))
            views[name].attach_view(self.source(name))
        return views


def trained_model(path: Path, step: int | None = None) -> TrainedModel:
    """The model of a run's folder (its newest checkpoint, or that of `step`) or a Hugging Face
    folder."""
    if (path / CONFIG).exists():
        return _of_hugging_face(path)
    return _of_run(RunFolder(path), step)


def prompt_tokens(trained: TrainedModel, tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The prompt's tokens; a SpecError where the model does not know one of them."""
    tokens: list[int] = tokenizer.encode(prompt).tolist()
    vocab = trained.spec.vocab
    unknown = next((token for token in tokens if not 0 <= token < vocab), None)
    if unknown is not None:
        raise SpecError(
            f"gives the prompt token {unknown}, but the model has tokens 0 to {vocab - 1}",
            place=str(trained.base / trained.tokenizer),
            fix="use the tokenizer that the model was trained with",
        )
    return tokens


def _of_run(folder: RunFolder, step: int | None) -> TrainedModel:
    checkpoint = checkpoint_of(folder, step)
    meta = checkpoint.manifest.meta
    case = trained_case(folder.path / "case.json")
    began_with = _began_with(folder, case.weights)
    known = frozen_weights(case.model, case.seed, began_with)
    require_same_frozen(meta.state, known, began_with, checkpoint.path)
    return model_of_run(
        folder,
        lambda *element_range: torch.from_numpy(checkpoint.read_range(*element_range)),
        meta.units,
        meta.step,
    )


def _began_with(folder: RunFolder, weights: str | None) -> Path | None:
    """The Hugging Face folder that a run began with."""
    return Path(folder.read_spec().job_path).parent / weights if weights else None


def model_of_run(
    folder: RunFolder, read: Read, units: Iterable[str], step: int | None
) -> TrainedModel:
    """The model that a run trains, with the weights that `read` gives by stored name; `units`: the
    stored names."""
    case = trained_case(folder.path / "case.json")
    spec = case.model
    parts = StoredParts(spec, stored_degrees(spec, units), read)
    base = Path(folder.read_spec().job_path).parent
    began_with = _began_with(folder, case.weights)

    def trained(unit: str) -> Tensor:
        size = unit_layout(spec, unit).size
        return parts.read_range(unit, WHOLE, "weights", 0, size) if size else torch.zeros(0)

    def source(unit: str) -> Tensor:
        layout = unit_layout(spec, unit)
        if layout.frozen is None:
            return trained(unit)
        size = layout.frozen.size
        first = first_weights(spec, unit, layout.frozen, 0, size, case.seed, began_with)
        frozen = as_packed(layout.frozen, first)
        return merged(unit_layout(spec.base, unit), layout, trained(unit), frozen)

    configs = [base / case.weights / CONFIG] if case.weights else []
    if case.model_file:
        configs.append(Path(case.model_file))
    return TrainedModel(
        spec=spec.base,
        sequence_length=case.sequence_length,
        source=source,
        tokenizer=case.tokenizer,
        base=base,
        configs=tuple(configs),
        step=step,
        adapters=Adapters(spec, trained) if spec.tuning and spec.tuning.lora else None,
    )


def _of_hugging_face(folder: Path) -> TrainedModel:
    spec = load_config(folder / CONFIG)

    def source(unit: str) -> Tensor:
        layout = unit_layout(spec, unit)
        return read_range(folder, spec, unit, layout, 0, layout.size)

    return TrainedModel(
        spec=spec,
        sequence_length=spec.max_positions,
        source=source,
        tokenizer=TOKENIZER if (folder / TOKENIZER).exists() else BYTES,
        base=folder,
        configs=(folder / CONFIG,),
        step=None,
    )


def checkpoint_of(folder: RunFolder, step: int | None = None) -> Checkpoint:
    """A run's checkpoint of a step, by default its newest whole one; blocks are verified as they
    are read."""
    if not exists(folder.path):
        raise SpecError("no such folder", place=str(folder.path), fix="give a run's folder")
    if step is not None:
        if any(each.step == step for each in listed(folder.checkpoints)):
            path = location_of(folder.checkpoints) / step_name(step)
            return open_checkpoint(path, verify=False)
    elif (newest := latest(folder.checkpoints)) is not None:
        return open_checkpoint(newest.path, verify=False)
    raise SpecError(
        "there is no checkpoint" + ("" if step is None else f" of step {step}"),
        place=str(folder.checkpoints),
        fix=f"see `ratrain checkpoints {folder.path}`",
    )
