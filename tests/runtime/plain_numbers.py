"""The reference that runs are held to: a LLaMA in plain torch, one process, autograd's own leaves
and torch's own AdamW. It shares nothing with the runtime but the names of parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import cos, pi

import torch
from torch import Tensor
from torch.nn import functional

from ratrain.describe.model import ModelSpec
from ratrain.describe.train import TrainSpec


def plain_losses(
    spec: ModelSpec,
    leaves: dict[str, Tensor],
    train: TrainSpec,
    batches: list[tuple[Tensor, Tensor]],
    frozen: Collection[str] = (),
    read: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda leaves: leaves,
) -> tuple[list[float], list[float]]:
    """Trains `leaves` ("0.norm1.weight") in place over the batches, but for `frozen` ones; losses
    and gradient norms. `read`: the model's weights, of the leaves."""
    if spec.tied_embeddings:
        leaves["h.head.logits"] = leaves["e.embedding.tokens"]
    wanted = [leaf for name, leaf in leaves.items() if name not in frozen]
    trained = list(dict.fromkeys(wanted))  # a tied leaf once
    for leaf in trained:
        leaf.requires_grad_()
    groups = [
        {"params": [leaf for leaf in trained if leaf.dim() > 1]},
        {"params": [leaf for leaf in trained if leaf.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups,
        betas=(train.keys.beta1, train.keys.beta2),
        eps=train.keys.epsilon,
        weight_decay=train.weight_decay,
    )
    losses: list[float] = []
    norms: list[float] = []
    for step, (tokens, targets) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = plain_rate(train, step)
        logits = plain_logits(spec, read(leaves), tokens)
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        limit = train.clip_norm or float("inf")
        norms.append(float(torch.nn.utils.clip_grad_norm_(trained, limit)))
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, norms


def plain_rate(train: TrainSpec, step: int) -> float:
    """Cosine from the learning rate down to its final part, without warm-up."""
    assert train.rate_schedule == "cosine" and not train.warmup_steps
    along = (1 + cos(pi * step / max(1, train.steps - 1))) / 2
    return train.learning_rate * (train.final_rate + (1 - train.final_rate) * along)


def plain_logits(spec: ModelSpec, leaves: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """[b, S, V] of tokens [b, S]."""
    x = leaves["e.embedding.tokens"][tokens]
    b, S = tokens.shape
    for layer in range(spec.layers):

        def into(name: str, value: Tensor, layer: int = layer) -> Tensor:
            bias = leaves.get(f"{layer}.{name}.bias")
            out = value @ leaves[f"{layer}.{name}.weight"].t()
            return out if bias is None else out + bias

        n = _norm(x, leaves[f"{layer}.norm1.weight"], spec)
        q, k, v = (
            into(f"attention.{name}", n).view(b, S, -1, spec.head_dim).transpose(1, 2)
            for name in "qkv"
        )
        q, k = _rotated(q, spec), _rotated(k, spec)
        k, v = (t.repeat_interleave(spec.heads // spec.kv_heads, 1) for t in (k, v))
        scores = q @ k.transpose(2, 3) / spec.head_dim**0.5
        scores = scores.masked_fill(torch.ones(S, S).triu(1).bool(), -torch.inf)
        x = x + into("attention.output", (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, S, -1))
        n = _norm(x, leaves[f"{layer}.norm2.weight"], spec)
        x = x + into("mlp.down", functional.silu(into("mlp.gate", n)) * into("mlp.up", n))
    return _norm(x, leaves["h.head.norm.weight"], spec) @ leaves["h.head.logits"].t()


def _norm(x: Tensor, scale: Tensor, spec: ModelSpec) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + spec.norm_epsilon) * scale


def _rotated(x: Tensor, spec: ModelSpec) -> Tensor:
    half = spec.head_dim // 2
    frequency = spec.rope_theta ** -(torch.arange(half) / half)
    angle = torch.outer(torch.arange(x.shape[2]).float(), frequency)
    left, right = x[..., :half], x[..., half:]
    return torch.cat(
        [left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin()], -1
    )
