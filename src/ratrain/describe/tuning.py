"""What a job trains of its model: everything, or what [train] freeze, train_only or lora leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ratrain.describe.amounts import Count, Name, Positive


@dataclass(frozen=True)
class LoraSpec:
    """Low-rank adapters beside matrices that nobody updates: W x + (alpha / rank) B A x (Hu et al.
    2021, arXiv 2106.09685). File table: [train.lora]."""

    rank: Count = 8  # rows of A, columns of B
    alpha: Positive = 16.0  # what an adapter gives is multiplied by alpha / rank
    # which of the layers' matrices have one, by their names in a Hugging Face folder: "q_proj",
    # "self_attn.*", "layers.3.mlp"; left out: all of them
    targets: tuple[Name, ...] = ()
    # in what the layers' own weights are held: left out, in the dtype of compute; "int8": their
    # matrices a byte an element, and a scale for 64 of them
    base: Literal["int8"] | None = None

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclass(frozen=True)
class Tuning:
    """The part of a model that is trained. At most one of the three is given."""

    freeze: tuple[Name, ...] = ()  # what these name is not
    train_only: tuple[Name, ...] = ()  # only what these name is
    lora: LoraSpec | None = None  # only adapters are
