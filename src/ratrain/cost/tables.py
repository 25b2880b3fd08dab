"""What `ratrain models` shows: a model block by block, as JSON-ready rows."""

from __future__ import annotations

from typing import Any

from ratrain.cost.activations import (
    checkpoint_bytes,
    layer_activation_bytes,
    layer_activations,
    logits_bytes,
)
from ratrain.cost.blocks import Block, blocks, total_params
from ratrain.describe.model import ModelSpec
from ratrain.describe.tables import as_json


def model_summary(model: ModelSpec) -> dict[str, Any]:
    """One row of the list of models."""
    return {**as_json(model), "params": total_params(model)}


def model_details(model: ModelSpec, sequence: int) -> dict[str, Any]:
    """The model with one row per block; FLOPs per token, activations for one sequence."""
    return {
        **model_summary(model),
        "sequence_length": sequence,
        "blocks": [_block_row(block, sequence) for block in blocks(model)],
        "layer_activation_bytes": layer_activations(model, sequence),
    }


def _block_row(block: Block, sequence: int) -> dict[str, Any]:
    kept = {
        "embedding": 0,
        "layer": layer_activation_bytes(block.model, sequence),
        "head": logits_bytes(block.model, sequence),
    }
    return {
        "kind": block.kind,
        "index": block.index,
        "params": block.params,
        "forward_flops_per_token": block.forward_flops(sequence, sequence).total / sequence,
        "backward_flops_per_token": block.backward_flops(sequence, sequence).total / sequence,
        "activation_bytes": kept[block.kind],
        "checkpoint_bytes": checkpoint_bytes(block.model, sequence) if block.kind == "layer" else 0,
    }
