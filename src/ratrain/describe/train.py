"""How to train: the optimizer, its schedule, the data, what is saved and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ratrain.describe.strict import Rule

Count = Annotated[int, Rule(low=1)]
Natural = Annotated[int, Rule(low=0)]
Positive = Annotated[float, Rule(low=1e-12)]
NotNegative = Annotated[float, Rule(low=0)]
BelowOne = Annotated[float, Rule(low=0, high=0.999999)]
Part = Annotated[float, Rule(low=0, high=1)]
TimeS = Annotated[float, Rule("s", low=0)]


@dataclass(frozen=True)
class TrainSpec:
    """AdamW and its learning rate over a number of steps. File table: [train]."""

    steps: Count = 100
    learning_rate: Positive = 3e-4
    rate_schedule: Literal["constant", "linear", "cosine"] = "cosine"
    warmup_steps: Natural = 0
    final_rate: Part = 0.1  # of the learning rate, at the last step; not for "constant"
    weight_decay: NotNegative = 0.1  # of matrices; vectors (norms, biases) do not decay
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.95
    epsilon: Positive = 1e-8
    clip_norm: Positive | None = None  # left out: no clipping, and no barrier for it
    loss_scale: Positive = 65536.0  # fp16 only: where the dynamic loss scale begins
    seed: Natural = 0  # of the initial weights and of the order of samples
    weights: str | None = None  # a Hugging Face folder to begin from; left out: random
    timeout_s: TimeS = 300.0  # how long a rank waits for a peer that is silent but not dead


@dataclass(frozen=True)
class DataSpec:
    """Where tokens come from. File table: [data]."""

    files: tuple[str, ...]  # names or patterns, relative to the job file
    tokenizer: str = "bytes"  # or a tokenizer.json of Hugging Face
    text_key: str = "text"  # of JSON lines and Parquet
    shuffle: bool = True


@dataclass(frozen=True)
class CheckpointSpec:
    """When the state is saved. File table: [checkpoint]."""

    every: Natural = 0  # steps; 0: only at the end
    keep: Count = 2  # complete ones
