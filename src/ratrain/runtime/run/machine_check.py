"""Whether this machine can be the place of a run: its devices are here, and its ranks have room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ratrain.describe.device import DeviceKind
from ratrain.describe.job import JobSpec
from ratrain.describe.runs_on import AS_CLUSTER, RUNS_ON, is_gpu
from ratrain.describe.units import counted, format_bytes
from ratrain.errors import Infeasible
from ratrain.profile.quota import processors
from ratrain.runtime.device_kinds import device_kinds
from ratrain.runtime.devices_here import gpu_names, is_called, missing_here
from ratrain.runtime.memory_here import memory_here
from ratrain.runtime.run_folder import RunSpec

PROCESS_BYTES = 160_000_000
"""What a rank's process takes for Python and torch beside what the proof counts: its private pages
before the first step (torch 2.13 for CPUs); what libraries share with other ranks is not in it."""
_EMULATE = "or pass --emulate: each becomes a CPU process here"
_ELSEWHERE = "start it where they are: `ratrain train JOB --prepare-only` says how"


EMULATED = "train.device=cpu"
"""What `--emulate` adds to a job: ranks compute on processors, whatever the job's devices are."""


def require_machine(
    job: JobSpec, spec: RunSpec, peak_bytes: Sequence[int], say: Callable[[str], None]
) -> None:
    """Refuses to start all ranks of a run here where a device of theirs is not on this machine, or
    memory is too small for them; of a job that insists on CPU processes says the latter.
    `peak_bytes`: proven, of each program rank."""
    members, insists = job.cluster.members(), job.train.device == "cpu"
    # The cluster file may have changed since the run began: what it no longer has is not known.
    kinds = [members[number].kind for number in spec.device_numbers if number < len(members)]
    place = f"{job.path} [cluster]"
    if job.train.device == AS_CLUSTER and not all(kind.is_processor for kind in kinds):
        gpus = gpu_names()
        missing = missing_here(kinds, gpus, shared=job.train.share_gpu)
        if missing:
            no_room = _room_problem(["cpu"] * len(kinds), spec, peak_bytes)
            raise Infeasible(
                f"the job's devices are {_listed(kinds)}; this machine has {_here(gpus)}",
                place=place,
                fix=f"{_ELSEWHERE}; "
                + (f"emulated here, {no_room}" if no_room else _EMULATE)
                + f"; {_kind_words(missing[0], gpus)}",
            )
    problem = _room_problem(device_kinds(job, spec), spec, peak_bytes)
    if not problem:
        return
    if not insists:
        fix = "choose a smaller micro_batch or memory_budget, stop what else runs here, or "
        raise Infeasible(problem, place=place, fix=f"{fix}pass --emulate to try all the same")
    say(f"WARNING: {problem}; a rank may be killed")


def _room_problem(kinds: Sequence[str], spec: RunSpec, peak_bytes: Sequence[int]) -> str:
    """In words, that the ranks take more memory than there is; "" where they fit. `kinds`: what
    each computes on."""
    here = memory_here()
    if here is None:
        return ""
    ranks = len(kinds)
    peaks = [
        peak_bytes[seat.program_rank] if RUNS_ON[kind].in_host_memory else 0
        for seat, kind in zip(spec.seats.all(), kinds, strict=True)
    ]
    needed = sum(peaks) + ranks * PROCESS_BYTES
    if needed <= here.size_bytes:
        return ""
    return (
        f"{counted(ranks, 'rank')} on this machine would take {format_bytes(needed)} "
        f"({format_bytes(sum(peaks))} as proven, {format_bytes(PROCESS_BYTES)} each for Python and "
        f"torch), and {format_bytes(here.size_bytes)} is left ({here.source})"
    )


def _listed(kinds: Sequence[DeviceKind]) -> str:
    return ", ".join(
        f"{count} x {name}" for name, count in Counter(kind.name for kind in kinds).items()
    )


def _here(gpus: Sequence[str]) -> str:
    cores = counted(processors(), "processor")
    left = memory_here()
    memory = f", {format_bytes(left.size_bytes)} of memory left" if left else ""
    if not gpus:
        return f"no GPU ({cores}{memory})"
    names = ", ".join(f"{count} x {name}" for name, count in Counter(gpus).items())
    return f"{names} ({cores}{memory})"


def _kind_words(kind: DeviceKind, gpus: Sequence[str]) -> str:
    """What may be wrong in the cluster file with a kind that was not found here."""
    if not is_gpu(kind.runs_on) and any(is_called(gpu, kind.name) for gpu in gpus):
        return f'or add runs_on = "cuda" to the [[device]] {kind.name}'
    return (
        f'if {kind.name} is a processor of the host, call its memory "RAM", not '
        f'"{kind.memory.name}"'
    )
