"""What is measured: a model, a layout, a link, and how devices are held; the same for all methods.

Imports no torch, so that the program which starts ranks stays small.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from ratrain.describe.cluster import ClusterSpec
from ratrain.describe.huggingface import load_config
from ratrain.describe.model import ModelSpec
from ratrain.describe.presets import load_cluster

UNLIMITED_BITS_PER_S = 10e9  # what a pair of virtual ports carries; see ratrain.lab.ports
LINKS = {
    "10 Gbit/s": UNLIMITED_BITS_PER_S,
    "1 Gbit/s": 1e9,
    "300 Mbit/s": 3e8,
    "200 Mbit/s": 2e8,
    "100 Mbit/s": 1e8,
    "80 Mbit/s": 8e7,
    "50 Mbit/s": 5e7,
    "20 Mbit/s": 2e7,
}
NARROW = "+bf16"
"""Ends the name of a method that sends in bf16 what it computes in fp32: gradients, and ours what
goes between stages too."""
LOW_RANK = "+powersgd"
"""Ends the name of one that sends gradients as products of thin matrices."""
LEARNING_RATE, WEIGHT_DECAY, BETAS, EPSILON = 1e-3, 0.1, (0.9, 0.95), 1e-8


@dataclass(frozen=True)
class Sizes:
    """A LLaMA-like model of the benchmark."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int

    def write_config(self, path: Path) -> None:
        """As a Hugging Face config.json, which job files name."""
        table = {
            "model_type": "llama",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.ffn,
            "vocab_size": self.vocab,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
        }
        path.write_text(json.dumps(table, indent=2))


MODELS = {
    "balanced": Sizes(hidden=256, layers=8, heads=4, kv_heads=2, ffn=688, vocab=2048),
    "vocabulary": Sizes(hidden=256, layers=4, heads=4, kv_heads=2, ffn=688, vocab=16384),
    "deep": Sizes(hidden=256, layers=12, heads=4, kv_heads=2, ffn=688, vocab=2048),
    "large": Sizes(hidden=512, layers=8, heads=8, kv_heads=4, ffn=1376, vocab=8000),
    "wide": Sizes(hidden=288, layers=5, heads=4, kv_heads=2, ffn=768, vocab=9000),
    "middle": Sizes(hidden=320, layers=10, heads=4, kv_heads=2, ffn=864, vocab=6000),
    "thin": Sizes(hidden=256, layers=12, heads=4, kv_heads=2, ffn=688, vocab=1000),
    "short": Sizes(hidden=256, layers=4, heads=4, kv_heads=2, ffn=688, vocab=2048),
    "shortest": Sizes(hidden=256, layers=3, heads=4, kv_heads=2, ffn=688, vocab=2048),
    "tiny": Sizes(hidden=64, layers=4, heads=4, kv_heads=2, ffn=172, vocab=512),
}


def equal_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Of each stage: the first get one more where it does not divide."""
    each, more = divmod(layers, stages)
    return tuple(each + (stage < more) for stage in range(stages))


@dataclass(frozen=True)
class Emulation:
    """Compute replaced by sleeps: seconds of a micro-batch's forward; backward takes twice that.

    States, gradients, updates and messages stay real. It tells schedules apart on a machine with
    fewer processors than ranks, or with other work on it.
    """

    layer_s: float
    head_s: float


@dataclass(frozen=True)
class Hosts:
    """Hosts of several devices, or on several sites, in the devices' order. The case's own link is
    the one between hosts of a site."""

    devices: tuple[int, ...]  # of each host, all of one share
    inside: str = "10 Gbit/s"  # the link within a host
    first_site: int | None = None  # hosts of the first of two sites; None: there is one
    between_sites: str = "20 Mbit/s"
    far: str = "5ms"  # one way, between sites


@dataclass(frozen=True)
class Case:
    """One row of a table: every method runs it with the same numbers."""

    name: str
    model: str = "balanced"
    sequence_length: int = 128
    sequences: int = 16
    micro_batch: int = 1
    pipeline: int = 2
    data: int = 1
    link: str = "10 Gbit/s"
    cpus: float = 1.0
    memory_bytes: int = 2_000_000_000  # for states; a process gets `overhead_bytes` beside
    overhead_bytes: int = 600_000_000
    recovery: bool = False  # activations do not fit: they are computed again
    fits_itself: bool = False  # ours chooses what it recovers and shards by the memory there is
    steps: int = 8
    warm_up: int = 2
    seed: int = 1
    emulation: Emulation | None = None
    settings: tuple[str, ...] = ()  # of our own jobs, as `ratrain train --set` has them
    shares: tuple[float, ...] = ()  # of the processors, by device; (): `cpus` for each
    memories: tuple[int, ...] = ()  # by device, alike where shares are; (): `memory_bytes` for each
    layers: tuple[int, ...] = ()  # by stage; (): equal
    hosts: Hosts | None = None  # None: each device is a host of its own

    @property
    def ranks(self) -> int:
        return self.pipeline * self.data

    @property
    def micro_batches(self) -> int:
        """Of one replica in one step."""
        return self.sequences // (self.data * self.micro_batch)

    @property
    def tokens(self) -> int:
        """Of one step over all replicas."""
        return self.sequences * self.sequence_length

    @property
    def rate_bytes_per_s(self) -> float:
        return LINKS[self.link] / 8

    @property
    def layers_of_stages(self) -> tuple[int, ...]:
        """As the case says, or equal: the first get one more where it does not divide."""
        if self.layers:
            return self.layers
        return equal_layers(MODELS[self.model].layers, self.pipeline)

    def but(self, **changes: Any) -> Case:
        return replace(self, **changes)

    def write(self, folder: Path, measured: Mapping[float, str] | None = None) -> Path:
        """case.json, config.json and cluster.toml of the case; the first one's path. `measured`:
        by share of a processor, what the cluster file says besides of such a device's layers."""
        folder.mkdir(parents=True, exist_ok=True)
        MODELS[self.model].write_config(folder / "config.json")
        (folder / "cluster.toml").write_text(self._cluster_text(measured or {}))
        path = folder / "case.json"
        path.write_text(json.dumps(asdict(self), indent=2))
        return path

    def _cluster_text(self, measured: Mapping[float, str]) -> str:
        shares = self.shares or (self.cpus,) * self.ranks
        memory = dict(zip(shares, self.memories or (self.memory_bytes,) * len(shares), strict=True))
        kinds = [
            self._kind_text(share, memory[share], measured.get(share, ""))
            for share in sorted({*shares})
        ]
        rate = f"{LINKS[self.link] / 1e6:g}Mbit/s"
        room = ROOM.format(rate=rate)
        if self.hosts is None:
            hosts = [
                HOSTS.format(first=first, share=share, devices=1, count=count, site="site")
                for first, share, count in _runs(shares)
            ]
            return "\n".join([CLUSTER, *kinds, *hosts, room])
        return "\n".join([CLUSTER, *kinds, *_host_texts(self.hosts, shares), room])

    def _kind_text(self, share: float, memory_bytes: int, measured: str) -> str:
        return KIND.format(
            share=share,
            overhead=self.overhead_bytes,
            memory=memory_bytes,
            flops=f"{60 * min(1.0, share):g}GFLOP/s",
            measured=measured,
        )


def _host_texts(hosts: Hosts, shares: tuple[float, ...]) -> list[str]:
    """Each host, then the links within hosts and between sites."""
    firsts = [0, *accumulate(hosts.devices)][:-1]
    here = len(firsts) if hosts.first_site is None else hosts.first_site
    texts = [
        HOSTS.format(
            first=first,
            share=shares[first],
            devices=devices,
            count=1,
            site="site" if number < here else "other-site",
        )
        for number, (first, devices) in enumerate(zip(firsts, hosts.devices, strict=True))
    ]
    texts.append(INSIDE.format(rate=f"{LINKS[hosts.inside] / 1e6:g}Mbit/s"))
    if hosts.first_site is not None:
        rate = f"{LINKS[hosts.between_sites] / 1e6:g}Mbit/s"
        texts.append(WORLD.format(rate=rate, latency=hosts.far))
    return texts


def _runs(shares: tuple[float, ...]) -> list[tuple[int, float, int]]:
    """(first device, share, count) of devices of one share that stand side by side."""
    runs: list[tuple[int, float, int]] = []
    for share, alike in groupby(shares):
        first = runs[-1][0] + runs[-1][2] if runs else 0
        runs.append((first, share, len(list(alike))))
    return runs


def read_case(path: Path) -> Case:
    """The case that `Case.write` wrote."""
    table: dict[str, Any] = json.loads(path.read_text())
    emulation, hosts = table.pop("emulation"), table.pop("hosts")
    for key in ("settings", "shares", "memories", "layers"):
        table[key] = tuple(table[key])
    return Case(
        **table,
        emulation=Emulation(**emulation) if emulation else None,
        hosts=Hosts(**{**hosts, "devices": tuple(hosts["devices"])}) if hosts else None,
    )


def model_of(folder: Path) -> ModelSpec:
    """The model of a written case."""
    return load_config(folder / "config.json")


def cluster_of(folder: Path) -> ClusterSpec:
    """The cluster of a written case."""
    return load_cluster(folder / "cluster.toml")


CLUSTER = """\
name = "bench"
source = "this benchmark"
"""
KIND = """\
[[device]]
name = "cpu-{share:g}"
launch = "10us"
launch_source = "assumed"
memory_efficiency = 0.8
memory_efficiency_source = "assumed"

[device.lab]
cpus = {share}
overhead = "{overhead}B"

[[device.tiers]]
name = "RAM"
capacity = "{memory}B"
bandwidth = "10GB/s"
source = "assumed"

[[device.rates]]
dtype = "fp32"
peak = "{flops}"
gemm = "{flops}"
source = "assumed"
{measured}
"""
HOSTS = """\
[[host]]
name = "host-{first}"
device = "cpu-{share:g}"
devices = {devices}
count = {count}
site = "{site}"
"""
INSIDE = """\
[links.host]
latency = "50us"
bandwidth = "{rate}"
shared_by = "host"
source = "the benchmark's choice"
"""
WORLD = """\
[links.world]
latency = "{latency}"
bandwidth = "{rate}"
shared_by = "host"
source = "the benchmark's choice"
"""
ROOM = """\
[links.room]
latency = "200us"
bandwidth = "{rate}"
shared_by = "host"
source = "the benchmark's choice"
"""
