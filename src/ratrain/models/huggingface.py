"""Hugging Face folders: read what a rank needs, write a whole model (the room's door to both)."""

from __future__ import annotations

from ratrain.models.huggingface_reader import check_config, read_range
from ratrain.models.huggingface_writer import SHARD_BYTES, write_model

__all__ = ["SHARD_BYTES", "check_config", "read_range", "write_model"]
