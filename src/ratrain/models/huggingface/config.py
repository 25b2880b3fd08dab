"""What a Hugging Face folder's config.json must say for its model to be the job's."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from ratrain.describe.huggingface import family_of, load_config
from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError

CONFIG = "config.json"
_NOT_COMPARED = ("name", "family", "source", "max_positions", "tuning", "balance_loss")
_OF_ROTARY = ("rope_theta", "rope_scaling", "rotary_share", "rotary_pairs", "local_rope_theta")


def check_config(folder: Path, spec: ModelSpec) -> None:
    """Raises SpecError where the folder's config.json describes another model than `spec`."""
    if spec.own:  # names and shapes of tensors say it
        return
    path = folder / CONFIG
    theirs = load_config(path)
    unlike = [*_NOT_COMPARED, *(() if spec.position == "rope" else _OF_ROTARY)]
    if spec.position == "learned":
        unlike.remove("max_positions")
    for key in (field.name for field in fields(spec) if field.name not in unlike):
        in_config, in_job = getattr(theirs, key), getattr(spec, key)
        if in_config != in_job:
            raise SpecError(
                f"{key} is {in_config!r} here and {in_job!r} in the job's model",
                place=str(path),
                fix="take the model from the folder's config.json",
            )
    if family_of(theirs) is not family_of(spec):
        raise SpecError(
            f"the family is {theirs.family} here and {spec.family} in the job's model",
            place=str(path),
            fix="take the model from the folder's config.json",
        )
