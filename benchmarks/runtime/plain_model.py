"""The same LLaMA in plain torch modules, as anybody would write it, with our initial weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from cases import Case, Emulation
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ratrain.describe.model import ModelSpec
from ratrain.models.initialise import initial_parameter
from ratrain.models.shapes import unit_names


class Attention(nn.Module):
    """Causal attention with grouped keys and rotary positions."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_dim = spec.head_dim
        self.q = nn.Linear(spec.hidden, spec.query_hidden, bias=False)
        self.k = nn.Linear(spec.hidden, spec.kv_hidden, bias=False)
        self.v = nn.Linear(spec.hidden, spec.kv_hidden, bias=False)
        self.output = nn.Linear(spec.query_hidden, spec.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            projection(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
            for projection in (self.q, self.k, self.v)
        )
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.output(out.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    """down(silu(gate(x)) up(x))."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate = nn.Linear(spec.hidden, spec.ffn, bias=False)
        self.up = nn.Linear(spec.hidden, spec.ffn, bias=False)
        self.down = nn.Linear(spec.ffn, spec.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One layer."""

    def __init__(self, spec: ModelSpec, length: int) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(spec.hidden, spec.norm_epsilon)
        self.attention = Attention(spec)
        self.norm2 = nn.RMSNorm(spec.hidden, spec.norm_epsilon)
        self.mlp = Mlp(spec)
        steps = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
        angles = torch.outer(
            torch.arange(length, dtype=torch.float32), 1.0 / spec.rope_theta**steps
        )
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), self.cos, self.sin)
        return x + self.mlp(self.norm2(x))


class TokenTable(nn.Module):
    """The embedding; its parameter is named as ours."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.empty(spec.vocab, spec.hidden))

    def forward(self, x: Tensor) -> Tensor:
        return functional.embedding(x, self.tokens)


class Head(nn.Module):
    """Final norm and logits."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(spec.hidden, spec.norm_epsilon)
        self.logits = nn.Parameter(torch.empty(spec.vocab, spec.hidden))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.norm(x), self.logits)


class Sleeping(nn.Module):
    """A unit whose parameters and gradients are real and whose arithmetic is a sleep."""

    def __init__(self, real: nn.Module, hidden: int, forward_s: float) -> None:
        super().__init__()
        self.real, self.hidden, self.forward_s = real, hidden, forward_s

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            x = torch.zeros(*x.shape, self.hidden)
        return _Sleep.apply(x, self.forward_s, *self.real.parameters())


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_s: float, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(x, *parameters)
        ctx.forward_s = forward_s
        time.sleep(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        _, *parameters = ctx.saved_tensors  # read: this is what makes a checkpoint run again
        time.sleep(2 * ctx.forward_s)
        return grads[0].clone(), None, *(torch.zeros_like(p) for p in parameters)


class Stage(nn.Module):
    """Consecutive units: the whole model, or one rank's part of it."""

    def __init__(self, units: Sequence[nn.Module], recovery: bool) -> None:
        super().__init__()
        self.units = nn.ModuleList(units)
        self.recovery = recovery

    def forward(self, x: Tensor) -> Tensor:
        for unit in self.units:
            if self.recovery and isinstance(getattr(unit, "real", unit), Block):
                x = checkpoint(unit, x, use_reentrant=False)
            else:
                x = unit(x)
        return x


def stage_of(
    spec: ModelSpec,
    names: Sequence[str],
    length: int,
    *,
    seed: int,
    recovery: bool,
    emulation: Emulation | None,
) -> Stage:
    """The units of these names, with the initial weights that our trainer gives them."""
    units: list[nn.Module] = []
    for name in names:
        unit = TokenTable(spec) if name == "e" else Head(spec) if name == "h" else None
        unit = unit or Block(spec, length)
        prefix = {"e": "embedding.", "h": "head."}.get(name, "")
        with torch.no_grad():
            for key, parameter in unit.named_parameters():
                shape = tuple(parameter.shape)
                parameter.copy_(initial_parameter(spec, name, prefix + key, shape, seed))
        if emulation:
            seconds = {"e": 0.0, "h": emulation.head_s}.get(name, emulation.layer_s)
            unit = Sleeping(unit, spec.hidden, seconds)
        units.append(unit)
    return Stage(units, recovery)


def units_of_stage(spec: ModelSpec, layers: Sequence[int], stage: int) -> list[str]:
    """Names of a stage's units, `layers[i]` layers in stage i."""
    names = unit_names(spec)
    first = 1 + sum(layers[:stage])
    low = 0 if stage == 0 else first
    high = len(names) if stage == len(layers) - 1 else first + layers[stage]
    return list(names[low:high])


def loss_of(case: Case) -> Callable[[Tensor, Tensor], Tensor]:
    """The sum of the tokens' losses; of a sleeping model, a number that depends on its output."""
    return _first if case.emulation else _cross_entropy


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def _first(output: Tensor, _: Tensor) -> Tensor:
    return output[0, 0, 0]


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin
