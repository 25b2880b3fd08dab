"""What must be the same on all ranks, compared before the first step.

Hosts may have copies of the run's folder, the job and its data. Each rank reads its own; where one
cannot, or reads something else than the others, all end with the same message.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from ratrain import __version__
from ratrain.corpus.of_job import JobData, data_of_job
from ratrain.corpus.prepare import Progress
from ratrain.describe.job import JobSpec
from ratrain.describe.tables import as_json
from ratrain.describe.train import TLS_OFF
from ratrain.errors import RatrainError, RunFailed, SpecError
from ratrain.plan import load_job
from ratrain.plugins import load_extensions
from ratrain.program.program import Program
from ratrain.readers import files
from ratrain.readers.limits import PROGRAM_BYTES
from ratrain.runtime.host import boot
from ratrain.runtime.rank.joining.membership import Membership, hosts_of
from ratrain.runtime.rank.joining.rendezvous import Everybody, told_by_all
from ratrain.runtime.run_folder import RunFolder, RunSpec
from ratrain.runtime.step.tied_program import require_tied

_OWN = ("job_path", "threads")
"""Of run.json: what may differ from host to host."""
_NOT_COMPARED = ("model.spec.name", "model.spec.tuning")
"""Names of files and sources are a host's own; so is the name of a model that is called after its
folder. What is trained of it [train] says."""
_HEAD_BYTES = 1 << 16
_SHOWN = 40


@dataclass(frozen=True)
class Reading:
    """What one rank has read on its host, or why it could not."""

    spec: RunSpec | None = None
    job: JobSpec | None = None
    program: Program | None = None
    data: JobData | None = None
    problem: RatrainError | None = None

    @property
    def tls(self) -> str:
        """How connections are to be encrypted, as the job says; where that cannot be read, as it
        said when the run was prepared, so that the others still hear of that."""
        if self.job is not None:
            return self.job.train.tls
        return self.spec.tls if self.spec is not None else TLS_OFF

    def with_data(self, progress: Progress | None) -> Reading:
        """With the job's data, which is tokenised here where that was not done yet."""
        if self.job is None:
            return self
        try:
            return replace(self, data=data_of_job(self.job, progress=progress))
        except RatrainError as error:
            return replace(self, problem=error)


def read_run(folder: RunFolder) -> Reading:
    """What a rank needs of the run's folder, and the job; with an error what was read before."""
    spec: RunSpec | None = None
    try:
        if not folder.holds_run:
            raise SpecError(
                "is not a run's folder: it has no run.json",
                place=str(folder.path),
                fix="put the folder that `ratrain train --prepare-only` made on a disk that all "
                "hosts share, or copy it to every host",
            )
        load_extensions()
        spec = folder.read_spec()
        job, program = load_job(spec.job_path, spec.overrides), folder.read_program()
        require_tied(job.model.spec, program)
        return Reading(spec, job, program)
    except RatrainError as error:
        return Reading(spec, problem=error)


def agree(folder: RunFolder, reading: Reading, everybody: Everybody) -> Membership:
    """Who is where (each host with a disk of its own, until that is looked at), when all ranks have
    read the same. All ranks call this together."""
    facts = {} if reading.problem else dict(_facts(folder, reading))
    own_reading = {
        "host": socket.gethostname(),
        "boot": boot() or str(os.getppid()),
        "digest": sha256(json.dumps(facts).encode()).hexdigest(),
        "problem": _words(reading.problem),
    }
    rows = told_by_all(everybody(json.dumps(own_reading)))
    hosts = hosts_of([(row["host"], row["boot"]) for row in rows])
    membership = Membership(tuple(row["host"] for row in rows), hosts, hosts)
    _refuse_problems(membership, [row["problem"] for row in rows])
    if len({row["digest"] for row in rows}) > 1:
        raise _difference(membership, folder, told_by_all(everybody(json.dumps(facts))))
    _require_all_seats(folder, reading, len(rows))
    return membership


def _require_all_seats(folder: RunFolder, reading: Reading, started: int) -> None:
    assert reading.spec is not None
    world_size = reading.spec.seats.world_size
    if started != world_size:
        raise RunFailed(
            f"{started} ranks were started, the run has {world_size}",
            place=str(folder.path),
            fix=f"start {world_size}: --nnodes times --nproc-per-node",
        )


def _words(problem: RatrainError | None) -> list[str] | None:
    if problem is None:
        return None
    mistake = "mistake" if isinstance(problem, SpecError) else ""
    return [problem.what, problem.place, problem.fix, mistake]


def _refuse_problems(membership: Membership, problems: list[list[str] | None]) -> None:
    """Where all ranks found the same mistake an engine need not start them again: its status says
    so. What one host alone has not may be there the next time."""
    reported = {rank: refusal for rank, refusal in enumerate(problems) if refusal}
    if not reported:
        return
    rank, (problem, place, fix, mistake) = next(iter(reported.items()))
    everywhere = len(reported) == len(problems)
    kind = SpecError if everywhere and mistake else RunFailed
    raise kind(
        problem if everywhere else f"{membership.place(rank)}: {problem}", place=place, fix=fix
    )


def _difference(
    membership: Membership, folder: RunFolder, facts: Sequence[Mapping[str, str]]
) -> RunFailed:
    """The first thing that is not the same for rank 0 and another."""
    for name in dict.fromkeys(name for of_rank in facts for name in of_rank):
        first = facts[0].get(name, "not there")
        for rank, of_rank in enumerate(facts):
            value = of_rank.get(name, "not there")
            if value != first:
                return RunFailed(
                    f"{name} is {_short(first)} for {membership.place(0)} and {_short(value)} for "
                    f"{membership.place(rank)}",
                    place=str(folder.path),
                    fix="give all hosts the same files: put the run's folder, the job and what "
                    "it names "
                    "on a shared disk, or copy them from the host that prepared the run",
                )
    raise AssertionError("facts with different digests are equal")


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _facts(folder: RunFolder, reading: Reading) -> Iterator[tuple[str, str]]:
    """Name and value of all that must be the same."""
    spec, job, data = reading.spec, reading.job, reading.data
    assert spec is not None and job is not None and data is not None
    yield "ratrain's version", __version__
    yield "torch's version", torch.__version__.split("+")[0]
    for key, value in asdict(spec).items():
        if key not in _OWN:
            yield f"run.json {key}", json.dumps(value)
    yield (
        "program.txt",
        f"sha256 {sha256(files.read_bytes(folder.program, PROGRAM_BYTES)).hexdigest()}",
    )
    for name, value in _leaves(as_json(replace(job, path=None))):
        yield f"the job's {name}", value
    index = data.prepared.store.index
    yield "the data", f"{index.tokens:,} tokens, sha256 {index.sha256}"
    yield "the tokenizer", index.tokenizer
    if data.held_out_prepared is not None:
        held_out = data.held_out_prepared.store.index
        yield "the held-out text", f"{held_out.tokens:,} tokens, sha256 {held_out.sha256}"
    if job.train.weights is not None:
        weights = Path(spec.job_path).parent / job.train.weights
        yield f"[train] weights {job.train.weights}", f"sha256 {_fingerprint(weights)}"


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every value of a table, by its dotted name."""
    if not isinstance(value, dict):
        yield name, json.dumps(value, default=str)
        return
    for key, inner in value.items():
        dotted = f"{name}.{key}" if name else key
        if not (key == "file" or key.endswith("source") or dotted in _NOT_COMPARED):
            yield from _leaves(inner, dotted)


def _fingerprint(folder: Path) -> str:
    """Of the names, sizes and first bytes of a folder's files."""
    digest = sha256()
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(_HEAD_BYTES)
            digest.update(f"{path.name} {path.stat().st_size} ".encode() + head)
    return digest.hexdigest()
