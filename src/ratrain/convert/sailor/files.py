"""What Sailor's files hold: the keys that are read, within bounds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ratrain.describe.amounts import Count, Heads, Layers, Sequences, Tokens, WideWidth, Width
from ratrain.describe.strict import Rule

SOURCE = "Sailor's"
USUAL = {
    "A100-40": "sailor-a100-40g",
    "V100-16": "sailor-v100-16g",
    "GH-96": "gh200-deepspeed",
    "RTX-2080": "sailor-rtx-2080ti",
    "RTX-3090": "sailor-rtx-3090",
    "Titan-RTX": "sailor-titan-rtx",
}
Seconds = Annotated[float, Rule(low=0, high=1e9)]
Slot = Annotated[int, Rule(low=0, high=10_002)]


@dataclass(frozen=True)
class Pipeline:
    """An entry of `pipeline_list`. `tmp_per_stage`: for each stage and replica [GPUs, degree]."""

    layers_per_stage: tuple[tuple[Slot, ...], ...]
    tmp_per_stage: tuple[Any, ...]


@dataclass(frozen=True)
class SailorPlan:
    """What its planner makes; or a plan of its validation, with `gbs` and what was measured."""

    pipeline_list: tuple[Pipeline, ...]
    mbs: Count
    gbs: Sequences | None = None
    iter_time: Seconds | None = None
    real: Seconds | None = None


@dataclass(frozen=True)
class Training:
    """`training_config_*.json`."""

    hidden_size: Width
    num_layers: Layers
    vocab_size: WideWidth
    heads: Heads
    sequence_length: Tokens
    global_batch_size: Sequences


@dataclass(frozen=True)
class NodeType:
    """What a node of `basic_cluster_config.json` is."""

    gpus_per_node: Annotated[int, Rule(low=1, high=1024)]
    mem_per_gpu: Annotated[int, Rule(low=1, high=1 << 53)]


@dataclass(frozen=True)
class Files:
    """What the user gave. `rank`: which plan, where the file lists several."""

    training: Path
    cluster: Path
    plan: Path | None = None
    rank: int = 1
    profiles: tuple[tuple[str, Path], ...] = ()  # by GPU
    inside: Path | None = None
    between: Path | None = None
    dtype: str = "fp32"


@dataclass(frozen=True)
class Group:
    """A tensor group: a number of GPUs of one kind, in one zone."""

    gpu: str
    zone: str
    tensor: int
