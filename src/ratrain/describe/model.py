"""What a model is: the sizes and choices of a decoder-only transformer, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ratrain.describe.amounts import Heads, Layers, Name, Positions, WideWidth, Width
from ratrain.describe.strict import Rule
from ratrain.errors import SpecError


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer. `head_dim * heads` may differ from `hidden`."""

    name: Name
    family: Name
    hidden: Width
    layers: Layers
    heads: Heads
    kv_heads: Heads
    head_dim: Heads
    ffn: WideWidth
    vocab: WideWidth
    max_positions: Positions
    source: str
    gated_mlp: bool = True
    activation: Name = "silu"
    norm: Literal["rms", "layer"] = "rms"
    position: Literal["rope", "alibi", "learned", "none"] = "rope"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    tied_embeddings: bool = False
    norm_head: bool = False  # Baichuan2: the rows of the head are L2-normalised
    parallel_residual: bool = False  # GPT-NeoX: attention and MLP read the same input
    norm_epsilon: Annotated[float, Rule(low=0, high=1)] = 1e-5
    rope_theta: Annotated[float, Rule(low=1e-6, high=1e15)] = 10000.0

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise SpecError(
                f"{self.heads} heads cannot share {self.kv_heads} key/value heads evenly",
                place="kv_heads",
                fix=f"use {_nearest_divisor(self.heads, self.kv_heads)}",
            )

    @property
    def kv_hidden(self) -> int:
        """Width of the keys (and of the values) of one token."""
        return self.kv_heads * self.head_dim

    @property
    def query_hidden(self) -> int:
        """Width of the queries, and of the attention output, of one token."""
        return self.heads * self.head_dim


def _nearest_divisor(number: int, wanted: int) -> int:
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return min(divisors, key=lambda d: (abs(d - wanted), d))
