"""Published memory figures beside the formulas of cost/: first stages and allocator peaks."""

from __future__ import annotations

from dataclasses import replace

from ratrain.cost.activations import (
    Recompute,
    gpt_first_stage_bytes,
    gpt_layer_activation_bytes,
    gpt_parameter_optimizer_bytes,
    layer_activation_bytes,
    loss_peak_bytes,
)
from ratrain.cost.blocks import total_params
from ratrain.describe.model import ModelSpec
from ratrain.describe.presets import model_preset
from ratrain.validate.rows import gpt, shipped_cells
from ratrain.validate.score import Pair

GIB = 2**30
WEIGHT_AND_GRADIENT_BYTES = 6  # bf16 weight, fp32 main gradient
OPTIMIZER_BYTES = 12  # fp32 master weight and two moments, divided over the replicas
RECOMPUTED: dict[str, Recompute] = {"act_none": "none", "act_selective_sp": "selective"}
ASSUMED_DEVICES = 256  # not stated with the peaks; the published allocation agrees with it


def korthikanti_pairs() -> list[Pair]:
    """Figure 1 of arXiv 2205.05198: the first stage, in GiB; 175B on p = 8, three stages a rank."""
    found: list[Pair] = []
    for row in shipped_cells("korthikanti_memory_gib"):
        model = model_preset(f"gpt-{row['model'].lower()}")
        micro_batch, pipeline, virtual = (4, 1, 1) if row["model"] == "22B" else (1, 8, 3)
        states = gpt_parameter_optimizer_bytes(model, 8, pipeline)
        found.append(_gib(f"{row['model']} parameters + optimizer", row["param_opt"], states))
        for column, recompute in RECOMPUTED.items():
            layer = gpt_layer_activation_bytes(
                model,
                2048,
                micro_batch,
                8,
                recompute=recompute,
                sequence_parallel=recompute == "selective",
            )
            held = gpt_first_stage_bytes(layer, model.layers, pipeline, virtual)
            found.append(_gib(f"{row['model']} {column}", row[column], held))
    return found


def peak_pairs() -> list[Pair]:
    """Allocator peaks of Megatron-LM's golden 15B runs, in GB: one a GPU model."""
    return [
        Pair(f"15B {row['gpu']}", float(row["peak_GB"]), _peak_bytes(row) / 1e9)
        for row in shipped_cells("megatron_peak_memory")
    ]


def fifteen_b() -> ModelSpec:
    """The 15B model of Megatron-LM's golden files."""
    return replace(
        gpt(32, 6144, 48, 256_000, 4096),
        name="15b",
        kv_heads=8,
        activation="squared-relu",
        tied_embeddings=False,
        position="rope",
    )


def _peak_bytes(row: dict[str, str]) -> float:
    """States, every layer's activations, and what the loss holds at its highest.

    n/t (6 + 12/D) + L a(s, b, t) + s b V/t (2 + 4 + 2): all micro-batches end before the next
    one starts (pipeline 1), and the peak stands where backward enters the logits.
    """
    model, tensor, micro_batch = fifteen_b(), int(row["tp"]), int(row["mbs"])
    owners = ASSUMED_DEVICES // tensor
    params = total_params(model) / tensor
    layer = layer_activation_bytes(model, 4096, micro_batch, tensor=tensor, sequence_parallel=True)
    states = params * (WEIGHT_AND_GRADIENT_BYTES + OPTIMIZER_BYTES / owners)
    return states + model.layers * layer + loss_peak_bytes(model, 4096, micro_batch, tensor)


def _gib(label: str, published: str, size_bytes: float) -> Pair:
    return Pair(label, float(published), size_bytes / GIB)


MEMORY_TABLES = {
    "korthikanti_memory_gib": korthikanti_pairs,
    "megatron_peak_memory": peak_pairs,
}
