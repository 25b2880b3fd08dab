"""Initial weights: every parameter from a generator of its own, so that layouts do not matter."""

from __future__ import annotations

from hashlib import blake2b
from math import sqrt

import torch
from torch import Tensor

from ratrain.describe.model import ModelSpec
from ratrain.describe.trained import LORA_A, LORA_B
from ratrain.models.own.modules import first_parameters
from ratrain.models.parameters import UnitParameters
from ratrain.models.shapes import EMBEDDING, HEAD

DEVIATION = 0.02  # of matrices, as in LLaMA and GPT-2
ONTO_RESIDUAL = ("attention.output.weight", "mlp.down.weight", "experts.down.weight")


def initial_parameter(
    spec: ModelSpec, unit_name: str, param_name: str, shape: tuple[int, ...], seed: int
) -> Tensor:
    """One parameter in fp32, on the CPU.

    Matrices are normal with deviation 0.02; those that write onto the residual stream have
    0.02 / sqrt(2 L), L layers (GPT-2). Norms are one (Gemma's, which add one, zero), biases zero. A
    tied head is the embedding. Of adapters A is uniform within 1 / sqrt(inputs), B zero (PEFT).
    """
    if len(shape) == 1:
        zero = param_name.endswith(".bias") or spec.norm_plus_one
        return torch.zeros(shape) if zero else torch.ones(shape)
    if param_name.endswith(f".{LORA_B}"):
        return torch.zeros(shape)
    if spec.tied_embeddings and unit_name == HEAD:
        unit_name, param_name = EMBEDDING, "embedding.tokens"
    generator = torch.Generator().manual_seed(_seed_of(seed, unit_name, param_name))
    if param_name.endswith(f".{LORA_A}"):
        bound = 1 / sqrt(shape[1])
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)
    deviation = DEVIATION / sqrt(2 * spec.layers) if param_name in ONTO_RESIDUAL else DEVIATION
    return torch.empty(shape).normal_(0.0, deviation, generator=generator)


def initial_range(
    spec: ModelSpec,
    unit_name: str,
    layout: UnitParameters,
    begin: int,
    end: int,
    seed: int,
    *,
    adapters_alone: bool = False,
) -> Tensor:
    """Elements begin .. end of the unit's flat buffer, fp32; padding is zero, and so are, with
    `adapters_alone`, all parameters but adapters'.

    A parameter that overlaps the range is generated whole, and the part taken: one parameter's
    memory beside the range's.
    """
    flat = torch.zeros(end - begin)
    own = first_parameters(spec, unit_name, _seed_of(seed, unit_name, "")) if spec.own else {}
    for parameter, low, high in layout.overlaps(begin, end):
        if adapters_alone and not parameter.adapts:
            continue
        whole = own.get(parameter.name)
        if whole is None:
            shape = parameter.whole_shape
            whole = initial_parameter(spec, unit_name, parameter.name, shape, seed)
        at = parameter.offset + low - begin
        flat[at : at + high - low] = whole[parameter.window].reshape(-1)[low:high]
    return flat


def _seed_of(seed: int, unit_name: str, param_name: str) -> int:
    digest = blake2b(f"{seed}/{unit_name}/{param_name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
