"""How to train: the optimizer, its schedule, the data, what is saved and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ratrain.describe.amounts import (
    BelowOne,
    Count,
    FileName,
    Natural,
    NotNegative,
    Part,
    Positive,
    Seed,
    Steps,
    TimeS,
)
from ratrain.describe.strict import Rule
from ratrain.errors import SpecError

LossScale = Annotated[float, Rule(low=1e-12, high=1e18)]


@dataclass(frozen=True)
class TrainSpec:
    """AdamW and its learning rate over a number of steps. File table: [train]."""

    steps: Steps = 100  # the run's length, and that of the learning rate's schedule
    learning_rate: Positive = 3e-4  # the highest, after the warm-up
    rate_schedule: Literal["constant", "linear", "cosine"] = "cosine"  # how it falls
    warmup_steps: Natural = 0  # linear, from zero
    final_rate: Part = 0.1  # of the learning rate, at the last step; not for "constant"
    weight_decay: NotNegative = 0.1  # of matrices; vectors (norms, biases) do not decay
    beta1: BelowOne = 0.9  # of AdamW
    beta2: BelowOne = 0.95  # of AdamW
    epsilon: Positive = 1e-8  # of AdamW
    clip_norm: Positive | None = None  # left out: no clipping, and no barrier for it
    loss_scale: LossScale = 65536.0  # fp16 only: where the dynamic loss scale begins
    overflow: Literal["step", "unit"] = "step"  # fp16 only: what skips its update, all or a unit
    seed: Seed = 0  # of the initial weights and of the order of samples
    weights: FileName | None = None  # a Hugging Face folder to start from; left out: random
    validate_every: Natural = 0  # steps; 0: after the last one alone, where [data] has validation
    timeout_s: TimeS = 300.0  # for which a rank waits for a silent peer; 300s
    device: Literal["auto", "cpu", "cuda", "deferred"] = "auto"  # auto: as the cluster says
    share_gpu: bool = False  # several ranks of a host may compute on one GPU


@dataclass(frozen=True)
class DataSpec:
    """Where tokens come from. File table: [data]."""

    files: tuple[FileName, ...]  # names or patterns, relative to the job file
    tokenizer: FileName = "bytes"  # or a tokenizer.json of Hugging Face
    text_key: str = "text"  # of JSON lines and Parquet
    shuffle: bool = True  # the order follows from `seed`
    validation: tuple[FileName, ...] = ()  # held-out files: named, read and tokenised like `files`

    def __post_init__(self) -> None:
        if not self.files:
            raise SpecError("names no file", place="files", fix="give at least one file")


@dataclass(frozen=True)
class CheckpointSpec:
    """When the state is saved. File table: [checkpoint]."""

    every: Natural = 0  # steps; 0: only at the end
    keep: Count = 2  # complete ones
    disks: Literal["shared", "per-host"] = "shared"  # whether all hosts see one run folder
