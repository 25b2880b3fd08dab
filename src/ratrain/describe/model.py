"""What a model is: the sizes and choices of a decoder-only transformer, and nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from math import sqrt
from typing import Annotated, Any, Literal

from ratrain.describe.amounts import (
    Count,
    Fraction,
    Heads,
    Layers,
    Name,
    Positions,
    WideWidth,
    Width,
)
from ratrain.describe.own_units import OwnUnits
from ratrain.describe.strict import Rule
from ratrain.describe.tuning import Tuning
from ratrain.errors import SpecError

Positive = Annotated[float, Rule(low=1e-9, high=1e9)]
Theta = Annotated[float, Rule(low=1e-6, high=1e15)]
LayerIndex = Annotated[int, Rule(low=0, high=9_999)]


@dataclass(frozen=True)
class RopeScaling:
    """How rotary angles are stretched for sequences longer than a model was first trained on, by
    the names that Transformers gives the ways."""

    kind: Name  # "linear", "llama3", "yarn", "longrope"; others cannot be trained
    factor: Positive = 1.0
    original_positions: Positions = 8192  # that the model was first trained on
    low_frequency: Positive = 1.0  # llama3: waves longer than original_positions / this: stretched
    high_frequency: Positive = 4.0  # llama3: those shorter than original_positions / this: not
    beta_fast: Positive = 32.0  # yarn
    beta_slow: Positive = 1.0  # yarn
    rounded: bool = True  # yarn: the range between the two in whole dimensions
    attention_factor: Positive = 1.0  # yarn, longrope: queries and keys are multiplied by it
    short_factors: tuple[Positive, ...] = ()  # longrope: sequences up to original_positions
    long_factors: tuple[Positive, ...] = ()  # longrope: longer ones


@dataclass(frozen=True)
class Experts:
    """MLPs in place of one, of which a router chooses some for each token (arXiv 1701.06538). Each
    is as wide as the model's `ffn` says."""

    count: Count  # of each layer
    chosen: Count  # for each token
    normalised: bool = True  # the router's weights of those that are chosen add up to one

    def __post_init__(self) -> None:
        if self.chosen > self.count:
            raise SpecError(
                f"a token cannot have {self.chosen} of {self.count} experts",
                place="experts",
                fix=f"use {self.count} or fewer",
            )


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
    shared_norm: bool = False  # Phi, Cohere: and one norm of it
    norm_weight: bool = True  # of layer norms; OLMo: none
    norm_bias: bool = True  # of layer norms; Cohere, OLMo: none
    head_bias: bool = False  # Phi: of the logits
    norm_epsilon: Annotated[float, Rule(low=0, high=1)] = 1e-5
    rope_theta: Theta = 10000.0
    rope_scaling: RopeScaling | None = None
    rotary_share: Fraction = 1.0  # GPT-NeoX, Phi: how much of each head is rotated
    rotary_pairs: bool = False  # GLM: neighbours of a head turn together, not its halves
    position_offset: LayerIndex = 0  # OPT: learned positions before the first token's
    norm_places: Literal["before", "after", "both"] = "before"  # OLMo2: after; Gemma: both
    norm_plus_one: bool = False  # Gemma: norms multiply by 1 + their weight
    qk_norm: Literal["none", "head", "width"] = "none"  # Qwen3, Gemma3: head by head; OLMo2: whole
    window: Positions | None = None  # tokens that a query reads, itself included
    global_layers: tuple[LayerIndex, ...] = ()  # layers that read all tokens beside a window
    local_rope_theta: Theta | None = None  # Gemma3: of layers with a window, whose angles are plain
    unrotated_layers: tuple[LayerIndex, ...] = ()  # SmolLM3: positions play no part in their scores
    attention_scale: Positive | None = None  # of scores; left out: 1 / sqrt(head_dim)
    attention_softcap: Positive | None = None  # Gemma2: c tanh(score / c)
    logit_softcap: Positive | None = None
    scaled_embedding: bool = False  # Gemma: times sqrt(hidden)
    embedding_multiplier: Positive | None = None  # Granite
    residual_multiplier: Positive = 1.0  # Granite: of what attention and MLP add
    logits_divisor: Positive = 1.0  # Granite
    experts: Experts | None = None  # Mixtral, Qwen3-MoE: of each layer, in place of an MLP
    shared_expert: WideWidth | None = None  # Qwen2-MoE: of an MLP beside them for every token
    shared_expert_gate: bool = False  # and how much of it counts, by the token
    balance_loss: Annotated[float, Rule(low=0, high=100)] = 0.0  # weight of the experts' balance
    tuning: Tuning | None = None  # what a job trains of it; None: everything
    own: OwnUnits | None = None  # a user's own modules: no field but sizes says what they compute

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise SpecError(
                f"{self.heads} heads cannot share {self.kv_heads} key/value heads evenly",
                place="kv_heads",
                fix=f"use {_nearest_divisor(self.heads, self.kv_heads)}",
            )

    @property
    def base(self) -> ModelSpec:
        """The model itself, whatever is trained of it."""
        return replace(self, tuning=None)

    @property
    def embedding_scale(self) -> float | None:
        """What a token's vector is multiplied by, if anything."""
        return sqrt(self.hidden) if self.scaled_embedding else self.embedding_multiplier

    @property
    def kv_hidden(self) -> int:
        """Width of the keys (and of the values) of one token."""
        return self.kv_heads * self.head_dim

    def window_of(self, layer: int) -> int | None:
        """Tokens that a query of this layer reads; None: all before it."""
        return None if layer in self.global_layers else self.window

    @property
    def divided(self) -> dict[str, int]:
        """What a tensor group that divides everything must be able to share evenly, by name."""
        inside = {"experts": self.experts.count} if self.experts else {"ffn": self.ffn}
        if self.shared_expert:
            inside["shared_expert"] = self.shared_expert
        return {"heads": self.heads, "kv_heads": self.kv_heads, **inside, "vocab": self.vocab}

    @property
    def dense_ffn(self) -> int:
        """Width of the MLP that every token has; 0: there are experts alone."""
        return self.ffn if self.experts is None else self.shared_expert or 0

    @property
    def query_hidden(self) -> int:
        """Width of the queries, and of the attention output, of one token."""
        return self.heads * self.head_dim


ADDED = frozenset(
    (
        *("rope_scaling", "rotary_share", "rotary_pairs", "position_offset"),
        *("norm_places", "norm_plus_one", "qk_norm", "window"),
        *("global_layers", "local_rope_theta", "unrotated_layers", "attention_scale"),
        *("attention_softcap", "logit_softcap", "scaled_embedding", "embedding_multiplier"),
        *("residual_multiplier", "logits_divisor"),
        *("shared_norm", "norm_weight", "norm_bias", "head_bias"),
        *("shared_expert", "shared_expert_gate"),
        *("experts", "balance_loss", "tuning", "own"),
    )
)
"""Fields that earlier versions did not have."""


def added() -> dict[str, Any]:
    """Fields that earlier versions did not have, and what those meant by leaving them out."""
    return {field.name: field.default for field in fields(ModelSpec) if field.name in ADDED}


def identity(model: ModelSpec) -> dict[str, Any]:
    """What a checkpoint's numbers depend on. Where they have their default, fields that earlier
    versions did not have are left out, so that what those wrote is still the same model's."""
    defaults = added()
    return {
        name: value
        for name, value in asdict(model).items()
        if name != "source" and not (name in defaults and value == defaults[name])
    }


def config_hash(model: ModelSpec) -> str:
    """Of what a checkpoint's numbers depend on: the model, not its layout over ranks."""
    return sha256(json.dumps(identity(model), sort_keys=True).encode()).hexdigest()


def _nearest_divisor(number: int, wanted: int) -> int:
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return min(divisors, key=lambda d: (abs(d - wanted), d))
