"""Random small clusters of unequal devices, and a job on each of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random

DEVICE = """
[[device]]
name = "{name}"
launch = "10us"
launch_source = "random"
memory_efficiency = 0.8
memory_efficiency_source = "random"

[[device.tiers]]
name = "RAM"
capacity = "4GB"
bandwidth = "{memory}GB/s"
source = "random"

[[device.rates]]
dtype = "fp32"
peak = "{rate}GFLOP/s"
gemm = "{rate}GFLOP/s"
source = "random"

[[host]]
name = "{name}"
device = "{name}"
devices = {devices}
count = {hosts}
"""


@dataclass(frozen=True)
class Kind:
    """Devices of one kind: each in a host of its own, or all in one."""

    rate: int  # GFLOP/s
    count: int
    one_host: bool


@dataclass(frozen=True)
class Cluster:
    """Devices in one room, a model of so many layers and a batch of so many sequences."""

    kinds: tuple[Kind, ...]
    link: str
    layers: int
    sequences: int

    @property
    def devices(self) -> int:
        return sum(kind.count for kind in self.kinds)

    @property
    def words(self) -> str:
        kinds = " + ".join(
            f"{kind.count} x {kind.rate}{' in a host' if kind.one_host else ''}"
            for kind in self.kinds
        )
        return f"{kinds}, {self.link}, {self.layers} layers, {self.sequences} sequences"


def random_cluster(rng: Random, most: int, fewest: int = 3) -> Cluster:
    """Two or three kinds, between so many devices."""
    rates = rng.sample([5, 10, 15, 20, 30, 40, 60], rng.choice([2, 2, 3]))
    counts = [1] * len(rates)
    for _ in range(rng.randint(max(1, fewest - len(rates)), most - len(rates))):
        counts[rng.randrange(len(counts))] += 1
    kinds = tuple(
        Kind(rate, count, count > 1 and rng.random() < 0.4)
        for rate, count in zip(rates, counts, strict=True)
    )
    link = rng.choice(["200Mbit/s", "1Gbit/s", "10Gbit/s"])
    layers = rng.choice([3, 4, 4, 5]) if most <= 5 else rng.choice([3, 4])
    return Cluster(kinds, link, layers, rng.choice([4, 6, 8]))


def write_job(folder: Path, cluster: Cluster) -> Path:
    """The job on all devices, with its files beside it."""
    text = 'name = "random"\nsource = "random"\n'
    for number, kind in enumerate(cluster.kinds):
        text += DEVICE.format(
            name=f"kind-{number}",
            rate=kind.rate,
            memory=kind.rate / 5,
            devices=kind.count if kind.one_host else 1,
            hosts=1 if kind.one_host else kind.count,
        )
    text += '\n[links.host]\nlatency = "5us"\nbandwidth = "8GB/s"\nsource = "random"\n'
    text += f'\n[links.room]\nlatency = "200us"\nbandwidth = "{cluster.link}"\n'
    text += 'shared_by = "host"\nsource = "random"\n'
    (folder / "cluster.toml").write_text(text)
    config = {
        "model_type": "llama", "_name_or_path": "random", "hidden_size": 256,
        "num_hidden_layers": cluster.layers, "num_attention_heads": 4, "num_key_value_heads": 4,
        "intermediate_size": 512, "vocab_size": 2048, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    path = folder / "job.toml"
    path.write_text(
        '[model]\nname = "config.json"\nsequence_length = 128\n'
        f'[cluster]\nname = "cluster.toml"\ndevices = {cluster.devices}\n'
        f"[batch]\nsequences = {cluster.sequences}\n"
        # Of one order: every plan is of 1F1B, and the planner would try others too.
        '[schedule]\nname = "ratrain"\nskeleton = "1f1b"\ndtype = "fp32"\n'
    )
    return path
