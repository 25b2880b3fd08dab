"""Backends: what executes a program, by name.

A job, a plan file and a run name their backend. What a backend counts and can do decides what a
program holds: its scratch memory, the pieces in which gradients leave, the barrier of a global
norm, checkpoints, tied copies. So what is planned and simulated on a backend is what runs on it, op
for op. A third-party package may `declare_backend`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from ratrain.describe.strict import nearest
from ratrain.errors import SpecError
from ratrain.plugins import Registry


@dataclass(frozen=True)
class Backend:
    """What a backend counts and can do."""

    name: str
    doc: str
    ops: str  # "module:class" of what does a rank's ops in `ratrain train`; "": nothing does
    dtypes: tuple[str, ...]
    counts_scratch: bool  # memory that ops need beside states
    bucket_bytes: int | None  # an unreduced gradient leaves in pieces of this size; None: whole
    checks_overflow: bool  # fp16 waits for the norm of all gradients before any update
    saves: bool  # checkpoints are ops of the program
    copies_tied: bool  # a rank with both ends of a tied matrix holds two copies of it, not one
    divides_vectors: bool  # a tensor group divides vectors too, not matrices alone
    keeps_scores: bool  # attention's scores are kept where a device's kernels say so, else where a
    # job does
    divides_sequences: bool  # sequence parallelism
    divides_everything: bool  # MLP and vocabulary must be multiples of the tensor degree
    sums_in_compute: bool  # a tensor group's sums inside a unit are part of its compute ops
    collective: str  # of replicas, where a job names none
    widens_sums: bool  # 16-bit gradients that are summed in part travel on in fp32
    whole_sends: bool = False  # each rank of a tensor group sends the whole boundary tensor
    fills_buckets: bool = False  # backward fills buckets that leave beside it, where a job asks

    @property
    def trains(self) -> bool:
        """Whether `ratrain train` runs it."""
        return bool(self.ops)


BACKENDS: Registry[Backend] = Registry("backend")


def declare_backend(backend: Backend) -> None:
    """Makes a backend known by its name."""
    BACKENDS.declare(backend.name, backend)


PROPERTIES = ("whole_sends",)
"""What may be said of a framework that is only described, after its name and a plus."""


def base_of(name: str) -> str:
    """The name without its properties."""
    return name.partition("+")[0]


def backend_named(name: str, place: str = "") -> Backend:
    """The backend of a name; "described+whole_sends" is the described one with that property."""
    base = base_of(name)
    if base not in BACKENDS:
        raise SpecError(
            f"unknown backend {base!r}", place=place, fix=f"use one of {', '.join(BACKENDS)}"
        )
    properties = name.split("+")[1:]
    if BACKENDS[base].trains and properties:
        raise SpecError(
            f"{base} is no description: it has no properties to choose",
            place=place,
            fix=f'use "{base}", or "described+{properties[0]}"',
        )
    for word in properties:
        if word not in PROPERTIES:
            raise SpecError(
                f"unknown property {word!r} of a backend",
                place=place,
                fix=nearest(word, PROPERTIES),
            )
    return _with_properties(BACKENDS[base], name)


@cache
def _with_properties(backend: Backend, name: str) -> Backend:
    return replace(backend, name=name, **dict.fromkeys(name.split("+")[1:], True))


BUCKET_BYTES = 25_000_000
"""A gradient leaves in pieces of 25 MB: the default bucket of torch's DistributedDataParallel."""

declare_backend(
    Backend(
        "torch",
        "RATrain's own runtime on PyTorch: what `ratrain train` runs",
        ops="ratrain.runtime.step.ops:RankOps",
        dtypes=("fp32", "bf16", "fp16"),
        counts_scratch=True,
        bucket_bytes=None,
        checks_overflow=True,
        saves=True,
        copies_tied=True,
        divides_vectors=False,
        keeps_scores=False,
        divides_sequences=True,
        divides_everything=True,
        sums_in_compute=True,
        collective="direct",
        widens_sums=True,
        whole_sends=True,
        fills_buckets=True,
    )
)
declare_backend(
    Backend(
        "described",
        "a framework that is only described, for published runs: it cannot train, and scratch "
        "memory, overflow checks and checkpoints are left out",
        ops="",
        dtypes=("fp32", "bf16", "fp16", "fp8"),
        counts_scratch=False,
        bucket_bytes=BUCKET_BYTES,
        checks_overflow=False,
        saves=False,
        copies_tied=False,
        divides_vectors=True,
        keeps_scores=True,
        divides_sequences=True,
        divides_everything=False,
        sums_in_compute=False,
        collective="ring",
        widens_sums=False,
    )
)
