"""Models of modules in plain torch: attention, a convolution, a recurrence."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ratrain.models.own import OwnModel, declare_model

HIDDEN, VOCAB, LAYERS = 32, 300, 4


class First(nn.Module):
    """Words and learned places, normalised: a first unit that keeps something."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, HIDDEN)
        self.places = nn.Embedding(256, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.norm(self.words(tokens) + self.places(places))


class Attention(nn.Module):
    """A layer of GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.mlp = nn.Sequential(
            nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN)
        )

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        q, k, v = (
            part.view(b, s, 4, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, -1))
        return x + self.mlp(self.norm2(x))


class Convolution(nn.Module):
    """A causal convolution of each channel, then a gate: no attention. It has a buffer."""

    decay: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.conv = nn.Conv1d(HIDDEN, HIDDEN, 4, groups=HIDDEN, padding=3)
        self.into, self.out = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.register_buffer("decay", torch.linspace(0.5, 1.0, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.into(self.norm(x)).chunk(2, dim=-1)
        value = self.conv(value.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        return x + self.out(functional.silu(value * self.decay) * torch.sigmoid(gate))


class Recurrence(nn.Module):
    """A state for each channel, which each token's own gate lets go: token after token."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(HIDDEN)
        self.into = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.rate = nn.Parameter(torch.zeros(HIDDEN))
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        value, keep, gate = self.into(self.norm(x)).chunk(3, dim=-1)
        keep = torch.exp(-functional.softplus(keep + self.rate))
        state, states = torch.zeros_like(value[:, 0]), list[Tensor]()
        for token in range(x.shape[1]):
            state = keep[:, token] * state + (1 - keep[:, token]) * value[:, token]
            states.append(state)
        return x + self.out(torch.stack(states, 1) * functional.silu(gate))


class Last(nn.Module):
    """A norm, words, and each token's loss."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.words = nn.Linear(HIDDEN, VOCAB, bias=False)

    def logits(self, x: Tensor) -> Tensor:
        return self.words(self.norm(x))

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = self.logits(x).flatten(0, 1).float()
        return functional.cross_entropy(logits, targets.flatten(), reduction="none")


class Dropping(Attention):
    """The same with dropout, of the kinds that modules have."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp.append(nn.Dropout(0.1))
        self.before = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.before(x))


BLOCKS: dict[str, type[nn.Module]] = {
    "own-attention": Attention,
    "own-dropping": Dropping,
    "own-convolution": Convolution,
    "own-recurrence": Recurrence,
}
for _name, _block in BLOCKS.items():
    declare_model(_name, OwnModel(First, _block, Last, LAYERS, HIDDEN, VOCAB, 256))
