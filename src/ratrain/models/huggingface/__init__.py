"""Hugging Face folders: read what a rank needs, write a whole model (the room's face for both)."""

from __future__ import annotations

from ratrain.models.huggingface.config import check_config
from ratrain.models.huggingface.reader import check_weights, read_range
from ratrain.models.huggingface.writer import SHARD_BYTES, require_no_weights, write_model

__all__ = [
    "SHARD_BYTES",
    "check_config",
    "check_weights",
    "read_range",
    "require_no_weights",
    "write_model",
]
