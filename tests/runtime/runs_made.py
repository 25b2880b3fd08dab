"""Jobs for runs of a few seconds: a very small model, a small cluster, a text."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ratrain.checkpoint.own import shared_kind
from ratrain.describe.model import ModelSpec
from ratrain.describe.saved import WEIGHTS, saved_as
from ratrain.models.division import WHOLE, Division
from ratrain.models.head import IGNORED
from ratrain.models.initialise import initial_range
from ratrain.models.shapes import unit_layout
from ratrain.plan.file.form import PlanFile
from ratrain.program.strategies import strategy
from ratrain.runtime.step.frozen import FROZEN

Ints = npt.NDArray[np.int64]

LENGTH, VOCAB = 16, 300
_OF_PLANS = {field.name for field in fields(PlanFile)}
CONFIG: dict[str, object] = {
    "model_type": "llama",
    "_name_or_path": "minute",
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}

CLUSTER = """
name = "processes"
source = "a test: processes of this machine"

{kinds}

{hosts}

[links.host]
latency = "50us"
bandwidth = "{link}"
shared_by = "device"
source = "a test"

[links.{level}]
latency = "{latency}"
bandwidth = "{link}"
shared_by = "host"
source = "a test"
"""

_HOSTS = """
[[host]]
name = "{name}"
device = "{device}"
devices = {per_host}
count = {count}
"""

_DEVICE = """
[[device]]
name = "{name}"
launch = "10us"
launch_source = "a test"
memory_efficiency = 0.8
memory_efficiency_source = "a test"

[device.lab]
cpus = 1.0

[[device.tiers]]
name = "RAM"
capacity = "2GB"
bandwidth = "10GB/s"
source = "a test"
{rates}"""

_RATE = """
[[device.rates]]
dtype = "{dtype}"
peak = "100GFLOP/s"
gemm = "50GFLOP/s"
source = "a test"
"""


@dataclass(frozen=True)
class Unlike:
    """A replica of a run whose replicas differ: layers of each stage, and its share of a step."""

    layers: tuple[int, ...]
    micro_batches: int
    micro_batch: int = 1
    recovery: str = "none"
    count: int = 1
    tensor: tuple[int, ...] = ()  # of each stage; (): as the setting says
    joined: tuple[int, ...] = ()  # micro-batches that each stage computes at once; (): one

    def sizes(self) -> tuple[int, ...]:
        """Sequences that each stage computes at once."""
        return tuple(self.micro_batch * n for n in self.joined or (1,) * len(self.layers))

    def degrees(self, tensor: int) -> tuple[int, ...]:
        """The tensor degree of each stage."""
        return self.tensor or (tensor,) * len(self.layers)

    def __str__(self) -> str:
        cut = "+".join(map(str, self.layers))
        if self.tensor:
            cut += f" at {'+'.join(map(str, self.tensor))}"
        if self.joined:
            cut += f" joining {'+'.join(map(str, self.joined))}"
        times = f"{self.count}x" if self.count > 1 else ""
        return f"{times}{cut}:{self.micro_batches}x{self.micro_batch}"


@dataclass(frozen=True)
class Setting:
    """One configuration of a run; what is None is left out of the job."""

    name: str = "ratrain"
    pipeline: int = 1
    data: int = 1
    tensor: int = 1
    sequence_parallel: bool = False
    virtual: int = 1
    without: tuple[str, ...] = ()
    skeleton: str | None = None
    passes: tuple[str, ...] | None = None
    average_every: int | None = None
    averages: str | None = None
    turns: tuple[tuple[str, int], ...] = ()
    average_wire: str | None = None
    sites: int = 0  # between which weights are averaged, not between replicas
    site_devices: tuple[int, ...] = ()  # of each; (): as many
    sharding: int | None = None
    collective: str | None = None
    recovery: str = "auto"
    attention: str | None = None
    accumulation: str = "local"
    dtype: str = "fp32"
    gradient_dtype: str | None = None  # None: fp32
    gradient_wire: str | None = None  # None: as dtype
    boundary_wire: str | None = None
    error_feedback: bool | None = None
    mirror: bool | None = None
    optimizer_tier: str | None = None  # where optimizer states wait
    view_tier: str | None = None
    gradient_tier: str | None = None
    activation_tier: str | None = None
    bucket_bytes: int | None = None  # of gradients that leave while backward makes them
    clip_norm: float | None = None
    loss_scale: float = 65536.0
    overflow: str = "step"
    learning_rate: float = 1e-2
    optimizer: str | None = None
    steps: int = 3
    end_step: int | None = None
    sequences: int = 8
    first: int = 0  # of the step's sequences: where the run's begin
    micro_batch: int = 1
    budget_bytes: int | None = None
    every: int = 0
    keep: int = 2
    weights: str | None = None
    timeout_s: float = 60.0
    link: str = "1Gbit/s"
    latency: str = "100us"  # between hosts
    network: str = "sockets"
    files: tuple[str, ...] = ()
    model: tuple[tuple[str, object], ...] = ()  # what its config.json says otherwise
    masked: bool = False  # most targets of some sequences do not count
    silent: tuple[int, ...] = ()  # sequences of a step of which no target counts
    validate_every: int = 0  # on `held_out` sequences, which need not fill a batch
    held_out: int = 11
    sequence_length: int = LENGTH
    layers: str | tuple[int, ...] = "equal"
    joined: tuple[int, ...] = ()  # micro-batches that each stage computes at once
    recovery_buffer: int | None = None
    recover_heads: bool | None = None
    train: tuple[tuple[str, object], ...] = ()  # further keys of [train]
    data_keys: tuple[tuple[str, object], ...] = ()  # and of [data]
    planned: bool = False  # no [layout]: the degrees only say how many devices there are
    tokenizer: str | None = None
    model_file: str | None = None  # a folder whose config.json describes the model
    devices_per_host: int | None = None  # None: a tensor group
    unlike: tuple[Unlike, ...] = ()  # a plan file beside the job has these replicas
    serving: tuple[tuple[str, ...], ...] = ()  # of the first replica: what members of stages serve
    serving_at: tuple[tuple[int, ...], ...] = ()  # the members' tensor degrees; (): as the setting
    own: str | None = None  # a declared model of own modules, in place of the config.json
    idle: int = 0  # devices of the job that the plan names nowhere
    plan_text: str | None = None  # a plan file as it is, of so many `planned_ranks`
    planned_ranks: int = 0
    old: tuple[int, ...] = ()  # hosts whose devices compute in fp32 alone
    older: tuple[int, ...] = ()  # hosts whose devices compute in fp16 alone
    dtypes: tuple[tuple[str, str], ...] = ()  # of kinds of device, where the job names them

    @property
    def world_size(self) -> int:
        if self.planned_ranks:
            return self.planned_ranks
        first = sum(map(sum, self.members_at))
        if self.unlike:
            others = self.unlike[1:] if first else self.unlike
            return first + sum(sum(e.degrees(self.tensor)) * e.count for e in others)
        if first:
            return first
        return self.pipeline * self.data * self.tensor

    @property
    def members_at(self) -> tuple[tuple[int, ...], ...]:
        """The tensor degree of each member of each stage."""
        alike = tuple((self.tensor,) * len(shares) for shares in self.serving)
        return self.serving_at or alike

    @property
    def layout(self) -> tuple[int, int]:
        return self.pipeline, self.data

    def samples(self, step: int, first: int, count: int) -> tuple[Ints, Ints]:
        """Tokens and targets of a step's sequences: any, but always the same."""
        tokens, targets = samples(step, first, count)
        if self.masked:
            kept = (np.arange(64) % 8 + 0.5)[:, None] / 8  # of a sequence's targets
            hidden = np.random.default_rng(step + 1000).random((64, LENGTH)) > kept
            targets[hidden[first : first + count]] = IGNORED
        targets[np.isin(np.arange(first, first + count), self.silent)] = IGNORED
        length = min(self.sequence_length, LENGTH)
        return tokens[:, :length].copy(), targets[:, :length].copy()

    @property
    def held_out_batches(self) -> int:
        return -(-self.held_out // self.sequences)

    def held_out_samples(self, number: int, first: int, count: int) -> tuple[Ints, Ints]:
        """A batch of held-out sequences; behind the last one nothing counts."""
        tokens, targets = samples(1000 + number, first, count)
        left = self.held_out - number * self.sequences - first
        targets[max(left, 0) :] = IGNORED
        return tokens, targets

    def at(self, layout: tuple[int, int]) -> Setting:
        """The same on another layout."""
        return replace(self, pipeline=layout[0], data=layout[1])

    def __str__(self) -> str:
        changed = [
            f"{key}={value}"
            for key, value in vars(self).items()
            if key != "unlike" and value != vars(Setting())[key]
        ]
        changed += [str(each) for each in self.unlike]
        return ", ".join(changed) or "ratrain"


def _kind(name: str, *dtypes: str) -> str:
    """A kind of device that computes in these dtypes."""
    rates = "".join(_RATE.format(dtype=dtype) for dtype in dtypes)
    return _DEVICE.format(name=name, rates=rates)


def write_job(folder: Path, setting: Setting) -> Path:
    """The job file of a setting, with its model and cluster beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **dict(setting.model)}))
    kinds = _kind("process", "fp32", "bf16", "fp16")
    kinds += _kind("old", "fp32") if setting.old else ""
    kinds += _kind("older", "fp16") if setting.older else ""
    per_host = setting.devices_per_host or setting.tensor
    (folder / "cluster.toml").write_text(
        CLUSTER.format(
            kinds=kinds,
            level="world" if setting.sites else "room",
            link=setting.link,
            latency=setting.latency,
            hosts=_hosts(setting, per_host, -(-8 // per_host)),
        )
    )
    schedule = {
        "name": setting.name,
        "dtype": setting.dtype,
        "dtypes": dict(setting.dtypes) or None,
        "gradient_dtype": setting.gradient_dtype,
        "gradient_wire": setting.gradient_wire,
        "boundary_wire": setting.boundary_wire,
        "error_feedback": setting.error_feedback,
        "gradient_bucket": f"{setting.bucket_bytes}B" if setting.bucket_bytes else None,
        "mirror": setting.mirror,
        "optimizer_tier": setting.optimizer_tier,
        "view_tier": setting.view_tier,
        "gradient_tier": setting.gradient_tier,
        "activation_tier": setting.activation_tier,
        "recovery": setting.recovery,
        "attention": setting.attention,
        "gradient_accumulation": setting.accumulation,
        "without": list(setting.without) or None,
        "skeleton": setting.skeleton,
        "passes": None if setting.passes is None else list(setting.passes),
        "average_every": setting.average_every,
        "averages": setting.averages,
        "average_turns": dict(setting.turns) or None,
        "average_wire": setting.average_wire,
        "average_between": "sites" if setting.sites else None,
        "sharding": setting.sharding,
        "collective": setting.collective,
        "recovery_buffer": setting.recovery_buffer,
        "recover_heads": setting.recover_heads,
        "memory_budget": f"{setting.budget_bytes}B" if setting.budget_bytes else None,
    }
    train = {
        "steps": setting.steps,
        "learning_rate": setting.learning_rate,
        "optimizer": setting.optimizer,
        "clip_norm": setting.clip_norm,
        "loss_scale": setting.loss_scale,
        "overflow": setting.overflow if setting.overflow != "step" else None,
        "weights": setting.weights,
        "timeout": f"{setting.timeout_s:g}s",
        "network": "direct" if setting.network == "direct" else None,
        "validate_every": setting.validate_every or None,
        **dict(setting.train),
    }
    model = f"{setting.model_file}/config.json" if setting.model_file else "config.json"
    model = setting.own or model
    tables = {
        "model": {"name": model, "sequence_length": setting.sequence_length},
        "cluster": {"name": "cluster.toml", "devices": setting.world_size + setting.idle},
        "batch": {"sequences": setting.sequences, "micro_batch": setting.micro_batch},
        "layout": {
            "pipeline": setting.pipeline,
            "data": setting.data,
            "tensor": setting.tensor,
            "virtual": setting.virtual,
            "layers": setting.layers,
            "joined": list(setting.joined) or None,
            "sequence_parallel": setting.sequence_parallel or None,
        },
        "schedule": schedule,
        "train": train,
        "checkpoint": {"every": setting.every, "keep": setting.keep},
    }
    if setting.planned or setting.unlike:
        del tables["layout"]
    if setting.files:
        tables["data"] = {"files": list(setting.files), "tokenizer": setting.tokenizer}
        tables["data"].update(setting.data_keys)
    path = folder / "job.toml"
    path.write_text("\n".join(_table(name, body) for name, body in tables.items()))
    return path


def _hosts(setting: Setting, per_host: int, count: int) -> str:
    """The cluster's hosts: all of one kind, or each of its own, or as many at each site."""
    if setting.sites:
        each = setting.world_size // per_host // setting.sites
        counts = setting.site_devices or (each,) * setting.sites
        return "".join(
            _HOSTS.format(name=f"site-{n}", device="process", per_host=per_host, count=count)
            + f'site = "site-{n}"\n'
            for n, count in enumerate(counts)
        )
    if not setting.old and not setting.older:
        return _HOSTS.format(name="machine", device="process", per_host=per_host, count=count)
    return "".join(
        _HOSTS.format(
            name=f"machine-{host}",
            device=_kind_of(setting, host),
            per_host=per_host,
            count=1,
        )
        for host in range(count)
    )


def _kind_of(setting: Setting, host: int) -> str:
    """The kind of a host's devices."""
    return "old" if host in setting.old else "older" if host in setting.older else "process"


def write_plan(folder: Path, setting: Setting) -> Path | None:
    """The plan of a setting's unlike replicas, beside its job; each has its devices together."""
    if setting.plan_text is not None:
        path = folder / "plan.json"
        path.write_text(setting.plan_text)
        return path
    if not setting.unlike:
        return None
    first = 0
    replicas: list[dict[str, object]] = []
    for each in setting.unlike:
        stages: list[dict[str, object]] = []
        degrees = each.degrees(setting.tensor)
        for number, (layers, degree, size) in enumerate(
            zip(each.layers, degrees, each.sizes(), strict=True)
        ):
            devices = [
                first + copy * sum(degrees) + sum(degrees[:number]) + t
                for copy in range(each.count)
                for t in range(degree)
            ]
            stages.append(
                {
                    "devices": ", ".join(map(str, devices)),
                    "tensor": degree,
                    "layers": layers,
                    "micro_batch": size,
                    "recovery": each.recovery,
                    "sharding": 2 if setting.sharding is None else setting.sharding,
                }
            )
        members = setting.members_at if setting.serving and not replicas else ()
        first += sum(map(sum, members)) or sum(degrees) * each.count
        replicas.append(
            {"count": each.count, "micro_batches": each.micro_batches, "stages": stages}
        )
    if setting.serving:
        replicas[0] = _with_members(replicas[0], setting.serving, setting.members_at)
    chosen = strategy(setting.name, setting.without)
    body = {
        "format": "ratrain plan 1",
        "model": {
            "name": f"{setting.model_file}/config.json" if setting.model_file else "config.json",
            "sequence_length": setting.sequence_length,
        },
        "cluster": {"name": "cluster.toml", "devices": setting.world_size + setting.idle},
        "sequences": setting.sequences,
        "dtype": setting.dtype,
        "dtypes": dict(setting.dtypes) or None,
        "gradient_dtype": setting.gradient_dtype or "fp32",
        "gradient_wire": setting.gradient_wire,
        "boundary_wire": setting.boundary_wire,
        "error_feedback": setting.error_feedback,
        "network": "direct" if setting.network == "direct" else "sockets",
        "optimizer_tier": setting.optimizer_tier,
        "view_tier": setting.view_tier,
        "gradient_tier": setting.gradient_tier,
        "activation_tier": setting.activation_tier,
        "attention": setting.attention,
        "collective": setting.collective,
        "schedule": setting.name,
        "skeleton": setting.skeleton or chosen.skeleton,
        "without": list(setting.without),
        "accumulation": setting.accumulation,
        "recovery_buffer": setting.recovery_buffer or 2,
        "prefetch": chosen.prefetch,
        "clip_norm": setting.clip_norm,
        **{key: value for key, value in setting.train if key in _OF_PLANS},
        "overflow": setting.overflow,
        "average_every": setting.average_every,
        "averages": setting.averages,
        "average_turns": dict(setting.turns) or None,
        "average_wire": setting.average_wire,
        "average_between": "sites" if setting.sites else None,
        "memory_budget": f"{setting.budget_bytes}B" if setting.budget_bytes else None,
        "sequence_parallel": setting.sequence_parallel or None,
        "replicas": replicas,
    }
    path = folder / "plan.json"
    path.write_text(json.dumps({key: value for key, value in body.items() if value is not None}))
    return path


def _with_members(
    replica: dict[str, object],
    serving: tuple[tuple[str, ...], ...],
    degrees: tuple[tuple[int, ...], ...],
) -> dict[str, object]:
    """A replica of a plan whose stages have members, each on devices of its own."""
    stages: list[dict[str, object]] = []
    first = 0
    described = cast("list[dict[str, object]]", replica["stages"])
    for stage, shares, of_members in zip(described, serving, degrees, strict=True):
        members: list[dict[str, object]] = []
        for share, degree in zip(shares, of_members, strict=True):
            devices = ", ".join(map(str, range(first, first + degree)))
            members.append(
                {
                    "devices": devices,
                    "tensor": degree,
                    "serves": share,
                    "recovery": stage["recovery"],
                }
            )
            first += degree
        kept = {key: stage[key] for key in ("layers", "micro_batch", "sharding")}
        stages.append({**kept, "members": members})
    return {**replica, "stages": stages}


def _value(value: object) -> str:
    """A value as TOML."""
    if not isinstance(value, dict):
        return json.dumps(value)
    items = cast("dict[str, str]", value).items()
    return "{ " + ", ".join(f"{key} = {json.dumps(item)}" for key, item in items) + " }"


def _table(name: str, body: dict[str, object]) -> str:
    lines = [f"{key} = {_value(value)}" for key, value in body.items() if value is not None]
    return "\n".join([f"[{name}]", *lines, ""])


def samples(step: int, first: int, count: int) -> tuple[Ints, Ints]:
    """Tokens and targets of a step's sequences: any, but always the same."""
    tokens = np.random.default_rng(step).integers(0, VOCAB, (64, LENGTH + 1))[first : first + count]
    return tokens[:, :-1].copy(), tokens[:, 1:].copy()


def beginning(
    model: ModelSpec, unit: str, kind: str, low: int, high: int, division: Division = WHOLE
) -> Tensor:
    """What runs begin with, as `ratrain` makes it: weights, what begins with them, and zero."""
    kind = shared_kind(kind)
    while begins := saved_as(kind).begins:
        kind = begins
    layout = unit_layout(model, unit, division)
    if kind == FROZEN:
        assert layout.frozen is not None
        return initial_range(model, unit, layout.frozen, low, high, seed=5)
    if kind != WEIGHTS:
        return torch.zeros(high - low)
    return initial_range(model, unit, layout, low, high, seed=5)


def write_text(path: Path, *, seed: int = 0, characters: int = 40_000) -> Path:
    """A text of random words."""
    letters = np.random.default_rng(seed).choice(list("abcdefghij    "), characters)
    path.write_text("".join(letters))
    return path
