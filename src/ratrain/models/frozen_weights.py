"""Which weights a run's checkpoints leave out, because nobody updates them, and rest on."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError
from ratrain.models.huggingface.reader import tensor_files
from ratrain.objects.remote import Location
from ratrain.readers.files import unreadable

KEY = "frozen"
"""Of a checkpoint's state."""
_PLACES, _BLOCK_BYTES = 64, 1 << 12


def frozen_weights(spec: ModelSpec, seed: int, folder: Path | None) -> dict[str, Any]:
    """What a checkpoint keeps of them: nothing where all is trained; else the seed that they follow
    from, or the SHA-256 of the folder's files by their sizes and 64 blocks of each: not of all
    their bytes, which every start would read."""
    if spec.tuning is None:
        return {}
    if folder is None:
        return {KEY: f"seed {seed}"}
    digest = sha256()
    for path in sorted(set(tensor_files(folder).values())):
        try:
            size = path.stat().st_size
            digest.update(f"{path.name} {size} ".encode())
            with path.open("rb") as file:
                for place in range(_PLACES):
                    file.seek(place * max(0, size - _BLOCK_BYTES) // (_PLACES - 1))
                    digest.update(file.read(_BLOCK_BYTES))
        except OSError as error:
            raise unreadable(path, error) from error
    return {KEY: digest.hexdigest()}


def require_same_frozen(
    state: Mapping[str, Any], current: Mapping[str, Any], folder: Path | None, checkpoint: Location
) -> None:
    """Refuses to put what a checkpoint holds onto other weights than it was trained with."""
    if state.get(KEY) != current.get(KEY):
        raise SpecError(
            f"{checkpoint.name} holds what was trained beside frozen weights, and these are not "
            "the ones that it was trained with",
            place=str(folder) if folder is not None else "[train] seed",
            fix="put back the weights, or the seed, that the run began with",
        )
