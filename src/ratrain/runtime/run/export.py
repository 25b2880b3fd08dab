"""A run's weights written as a Hugging Face folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ratrain.corpus.tokenizer import BYTES
from ratrain.errors import SpecError
from ratrain.models.huggingface import write_model
from ratrain.runtime.run.trained import trained_model
from ratrain.runtime.step.states import DTYPES


@dataclass(frozen=True)
class Exported:
    """What was written."""

    step: int | None
    size_bytes: int


def export_run(run: Path, out: Path, dtype: str, step: int | None = None) -> Exported:
    """Writes the weights of a run's checkpoint, and its tokenizer where that is a file."""
    found = trained_model(run, step)
    try:
        write_model(out, found.spec, DTYPES[dtype], found.source)
        if found.tokenizer != BYTES:
            _copy_tokenizer(found.base / found.tokenizer, out)
    except OSError as error:
        raise SpecError(
            f"cannot be written: {error.strerror}", place=str(out), fix="name another folder"
        ) from error
    return Exported(found.step, sum(path.stat().st_size for path in out.glob("*.safetensors")))


def _copy_tokenizer(path: Path, out: Path) -> None:
    folder = path if path.is_dir() else path.parent
    shutil.copyfile(folder / "tokenizer.json" if path.is_dir() else path, out / "tokenizer.json")
    if (folder / "tokenizer_config.json").exists():
        shutil.copyfile(folder / "tokenizer_config.json", out / "tokenizer_config.json")
