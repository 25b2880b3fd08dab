"""Small models, and a whole model run through its units as a trainer would."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ratrain.describe.model import ModelSpec
from ratrain.models.initialise import initial_range
from ratrain.models.shapes import unit_names
from ratrain.models.units import MicroBatch, Unit, unit_of
from ratrain.models.weights import Weights

LLAMA = ModelSpec(
    name="tiny",
    family="llama",
    hidden=32,
    layers=2,
    heads=4,
    kv_heads=4,
    head_dim=8,
    ffn=48,
    vocab=61,
    max_positions=64,
    source="a test",
)
GROUPED = replace(LLAMA, kv_heads=2, head_dim=16, qkv_bias=True, output_bias=True, mlp_bias=True)
QWEN = replace(LLAMA, family="qwen2", kv_heads=1, qkv_bias=True, rope_theta=1e6, norm_epsilon=1e-6)
TIED = replace(QWEN, tied_embeddings=True)
BAICHUAN = replace(LLAMA, family="baichuan", heads=6, kv_heads=6, hidden=48, norm_head=True)
ALIBI = replace(BAICHUAN, position="alibi")
MODELS = {
    "llama": LLAMA,
    "grouped": GROUPED,
    "qwen": QWEN,
    "tied": TIED,
    "baichuan": BAICHUAN,
    "alibi": ALIBI,
}


@dataclass
class Running:
    """A model's units with their views and gradients."""

    spec: ModelSpec
    units: dict[str, Unit]
    weights: dict[str, Weights]
    views: dict[str, Tensor]
    gradients: dict[str, Tensor]

    def loss(self, batch: MicroBatch) -> Tensor:
        """The sum of the tokens' losses, with its graph."""
        x = torch.empty(0, requires_grad=True)
        for name, unit in self.units.items():
            x = unit.forward(self.weights[name], x, batch)
        return x

    def gradient(self, unit: str, parameter: str) -> Tensor:
        """The gradient of one parameter, in its shape."""
        place = self.units[unit].layout.by_name[parameter]
        return self.gradients[unit][place.offset : place.end].view(place.shape)


def running(
    spec: ModelSpec,
    flats: dict[str, Tensor] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    gradient_dtype: torch.dtype | None = None,
    spread: float = 8.0,
    frozen: dict[str, Tensor] | None = None,
) -> Running:
    """The model with these flat weights; by default the initial ones, matrices `spread` times
    as large, so that no part of the model is nearly linear, and norms and biases of any size.
    `frozen`: of what is not trained, by unit."""
    names = unit_names(spec)
    units = {name: unit_of(spec, name, sequence_length=spec.max_positions) for name in names}
    flats = flats or {name: _spread(spec, name, units[name], spread) for name in names}
    views = {name: flats[name].to(dtype) for name in names}
    weights = {name: Weights(units[name].layout) for name in names}
    gradients = {
        name: torch.zeros_like(view, dtype=gradient_dtype or dtype) for name, view in views.items()
    }
    for name in names:
        weights[name].attach_view(views[name])
        if frozen is not None:
            weights[name].attach_frozen(frozen[name].to(dtype))
        weights[name].attach_gradient(gradients[name])
    return Running(spec, units, weights, views, gradients)


def batch_of(spec: ModelSpec, seed: int = 0, *, sequences: int = 3, length: int = 20) -> MicroBatch:
    """Random tokens; some targets are not counted."""
    generator = torch.Generator().manual_seed(seed)
    shape = (sequences, length)
    tokens = torch.randint(0, spec.vocab, shape, generator=generator)
    targets = torch.randint(0, spec.vocab, shape, generator=generator)
    targets[:, :3] = -100
    return MicroBatch(tokens, targets)


def _spread(spec: ModelSpec, name: str, unit: Unit, spread: float) -> Tensor:
    layout = unit.layout
    flat = initial_range(spec, name, layout, 0, layout.size, seed=3)
    flat[: layout.decay_end] *= spread
    vectors = flat[layout.decay_end :]
    vectors += 0.3 * torch.randn(vectors.shape, generator=torch.Generator().manual_seed(len(name)))
    return flat
