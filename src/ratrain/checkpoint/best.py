"""Which checkpoint of a run did best on held-out text: best.json, beside the checkpoints."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from ratrain.checkpoint.disk import sync_folder, told
from ratrain.checkpoint.folder import folder_of, step_name, url_of
from ratrain.checkpoint.manifest import MOST_STEPS
from ratrain.errors import SpecError
from ratrain.readers.json import read_json_table
from ratrain.readers.limits import SMALL_BYTES

NAME = "best.json"


@dataclass(frozen=True)
class Best:
    """A step, and the validation loss after it."""

    step: int
    validation_loss: float


def read_best(folder: Path) -> Best | None:
    """The best checkpoint of a run or folder; None where none is known, or it is gone."""
    place = folder_of(folder)
    try:
        body, _ = read_json_table(place / NAME, SMALL_BYTES)
    except SpecError:
        return None  # it only says which old checkpoint stays
    step, bits = body.get("step"), body.get("validation_loss_bits")
    if type(step) is not int or not 0 <= step <= MOST_STEPS or not isinstance(bits, str):
        return None
    try:
        loss = float.fromhex(bits)
    except (ValueError, OverflowError):
        return None
    there = url_of(place.parent) is not None or (place / step_name(step)).is_dir()
    return Best(step, loss) if there else None


def write_best(folder: Path, best: Best) -> None:
    """Names a checkpoint as the best one, from now on or not at all."""
    place = folder_of(folder)
    body = {
        "step": best.step,
        "validation_loss": best.validation_loss,
        "validation_loss_bits": best.validation_loss.hex(),
    }
    partial = place / f"{NAME}.partial"
    with told(place, "naming the best checkpoint"):
        with partial.open("w") as file:
            file.write(json.dumps(body, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.rename(place / NAME)
        sync_folder(place)
