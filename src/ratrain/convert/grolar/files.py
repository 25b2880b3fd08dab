"""What Grolar's files hold: the keys that are read, within bounds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from ratrain.describe.amounts import Count, Name, Sequences, Tokens
from ratrain.describe.strict import FrozenMap, Rule

Rank = Annotated[int, Rule(low=0, high=(1 << 18) - 1)]
Share = Annotated[int, Rule(low=0, high=1_000_000)]
Layer = Annotated[int, Rule(low=0, high=10_000)]
GigabytesPerS = Annotated[float, Rule(low=1e-6, high=1e6)]
Mebibytes = Annotated[int, Rule(low=1, high=1 << 33)]
Milliseconds = Annotated[float, Rule(low=0, high=1e12)]
Dtype = Literal["float16", "bfloat16", "float32"]

SOURCE = "Grolar's"
USUAL = {
    "h100-nvl": "grolar-h100-nvl",
    "a100x40": "grolar-a100-40g",
    "a100x80": "grolar-a100-80g",
    "a6000": "grolar-a6000",
    "a10g": "grolar-a10g",
    "l4": "grolar-l4",
    "v100x16": "grolar-v100-16g",
    "v100-pciex16": "grolar-v100-16g",
    "t4": "grolar-t4",
    "p100": "grolar-p100",
    "p40": "grolar-p40",
    "w6800": "grolar-w6800",
}


@dataclass(frozen=True)
class Ministage:
    """One entry of `pipeline_config`."""

    gpu_ranks: tuple[Rank, ...]
    num_microbatches_per_rank: tuple[Share, ...]
    layer_partition: tuple[Layer, ...]
    zero_config: tuple[tuple[Rank, ...], ...] = ()


@dataclass(frozen=True)
class Training:
    """What its planner writes."""

    model_name: Name
    global_batch_size: Sequences
    microbatch_size: Count
    sequence_length: Tokens
    pipeline_config: tuple[Ministage, ...]
    autocast_dtype: Dtype = "float16"
    reduce_dtype: Dtype = "float32"
    latency: Milliseconds | None = None


@dataclass(frozen=True)
class Gpu:
    name: Name
    memory_total_mib: Mebibytes
    global_rank: Rank


@dataclass(frozen=True)
class Host:
    machine: Name
    machine_index: Rank
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True)
class Bandwidth:
    """GB/s inside each machine, and between two; machines by their number."""

    intranode_bandwidth: FrozenMap[GigabytesPerS]
    internode_bandwidth: FrozenMap[FrozenMap[GigabytesPerS]]


@dataclass(frozen=True)
class Hardware:
    """`cluster_info.json`."""

    machines: tuple[Host, ...]
    bandwidth: Bandwidth


@dataclass(frozen=True)
class Files:
    """What the user gave."""

    cluster: Path
    plan: Path | None = None
    profile: Path | None = None
    profiled: str | None = None  # the model's name in the profile; None: the plan's
