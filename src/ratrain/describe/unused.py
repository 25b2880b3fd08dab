"""Keys of a job file that change nothing beside its other keys. They are said, not refused: a file
may be tried in several ways, with `--set`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratrain.describe.job import JobSpec


@dataclass(frozen=True)
class _Idle:
    """Keys of one table, when they change nothing, and the words for that."""

    table: str
    keys: tuple[str, ...]
    holds: Callable[[JobSpec], bool]
    because: str


def _one_replica(job: JobSpec) -> bool:
    return job.layout is not None and job.layout.data == 1


def _without_fp16(job: JobSpec) -> bool:
    return "fp16" not in {*job.computed_in, job.schedule.gradients_travel_in}


_IDLE = (
    _Idle(
        "schedule", ("averages", "average_wire"), lambda job: not job.schedule.trains_apart,
        "replicas average nothing without average_every",
    ),
    _Idle(
        "schedule", ("average_exposed",), lambda job: not job.schedule.leaves_period_open,
        "average_every says how often replicas average",
    ),
    _Idle(
        "schedule", ("average_every", "collective", "gradient_wire", "gradient_bucket", "mirror"),
        _one_replica, "with [layout] data = 1 there is no other replica",
    ),
    _Idle(
        "train", ("outer_momentum",), lambda job: job.train.outer_learning_rate is None,
        "there is no outer step without outer_learning_rate",
    ),
    _Idle(
        "train", ("decay_part",), lambda job: job.train.rate_schedule != "wsd",
        'it is for rate_schedule = "wsd"',
    ),
    _Idle(
        "train", ("final_rate",), lambda job: job.train.rate_schedule == "constant",
        'rate_schedule is "constant"',
    ),
    _Idle(
        "train", ("prompts", "prompts_file", "sample_tokens"),
        lambda job: not job.train.sample_every, "there are no samples without sample_every",
    ),
    _Idle("train", ("network",), lambda job: job.cluster.devices == 1, "there is one rank"),
    _Idle("train", ("loss_scale", "overflow"), _without_fp16, "nothing is computed in fp16"),
)  # fmt: skip


def unused_keys(job: JobSpec, table: Mapping[str, Any]) -> tuple[str, ...]:
    """Why keys that a job's file sets change nothing, a sentence each."""
    keys = tuple(
        f"[{idle.table}] {key} changes nothing here: {idle.because}"
        for idle in _IDLE
        for key in idle.keys
        if key in table.get(idle.table, {}) and idle.holds(job)
    )
    if job.left_layout is None:
        return keys
    asked, left = job.left_layout.devices, job.cluster.devices
    return (f"[layout] changes nothing here: it is for {asked} devices, {left} are left", *keys)
