"""What Metis's files hold: the keys that are read, within bounds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ratrain.describe.amounts import Count, Name, Sequences, Tokens
from ratrain.describe.strict import Rule

SOURCE = "Metis's"
USUAL = {
    "A100": "a100-80g-dgx",
    "V100": "grolar-v100-16g",
    "P100": "grolar-p100",
    "T4": "t4-deepspeed",
}
Milliseconds = Annotated[float, Rule(low=0, high=1e12)]
Gigabytes = Annotated[float, Rule(low=0.001, high=1e6)]
Rate = Annotated[float, Rule(low=1e-6, high=1e15)]
Slot = Annotated[int, Rule(low=0, high=10_002)]

BYTES_FROM = 1e5
"""Bandwidths at least this large are taken as bytes a second, smaller ones as its example's."""
UNIT_BYTES_PER_S = 1000 * (1 << 20)
"""What its code makes of a bandwidth of 1 while it counts time in ms: 2^20 bytes a ms."""
FORWARD_PART = 1 / 3


@dataclass(frozen=True)
class HostType:
    """What a host of `clusterfile.json` is; memory in GiB."""

    instance_type: Name
    inter_bandwidth: Rate
    intra_bandwidth: Rate
    memory: Gigabytes


@dataclass(frozen=True)
class Ranked:
    """One line of the list that its planner prints."""

    rank: Count
    cost: Milliseconds
    node_sequence: tuple[Name, ...]
    device_groups: tuple[Count, ...]
    strategies: tuple[tuple[Count, ...], ...]
    batches: Count
    layer_partition: tuple[Slot, ...]


@dataclass(frozen=True)
class ExecutionTime:
    layer_compute_total_ms: tuple[Milliseconds, ...]
    optimizer_time_ms: Milliseconds


@dataclass(frozen=True)
class Parameters:
    parameters_per_layer_bytes: tuple[Annotated[int, Rule(low=0, high=1 << 53)], ...]


@dataclass(frozen=True)
class ProfiledModel:
    parameters: Parameters


@dataclass(frozen=True)
class Profile:
    """A `DeviceType.*_tp*_bs*.json`."""

    model: ProfiledModel
    execution_time: ExecutionTime


@dataclass(frozen=True)
class Workload:
    """What Metis takes on its command line, and its files lack."""

    sequence_length: Tokens
    sequences: Sequences | None
    dtype: str


@dataclass(frozen=True)
class Files:
    """What the user gave. `rank`: which line of the list."""

    hosts: Path
    cluster: Path
    plan: Path | None = None
    rank: int = 1
    profiles: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Node:
    """A host with its GPUs, at its line."""

    name: str
    gpus: int
    about: HostType
