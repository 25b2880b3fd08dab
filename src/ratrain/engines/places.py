"""One table: how each engine is recognised by what it sets in a process's environment, and where
it says which rank of how many a process is, on which host, of which job and attempt.

A value of the table is a variable's name, or a function of the environment. A new engine is one
row; a plugin declares its own in `ENGINES`. Rows are tried in order, plugins' last.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ratrain.engines.host_lists import counts, hosts
from ratrain.errors import SpecError
from ratrain.plugins import Registry
from ratrain.readers.numbers import is_number

Environ = Mapping[str, str]
Value = str | Callable[[Environ], str | int | None]
KIND = "RATRAIN_KIND"
"""A user's choice, for each host: its kind of device, as the job's cluster file calls it."""
WORLD, FIRST, JOB = "RATRAIN_WORLD_SIZE", "RATRAIN_FIRST_RANK", "RATRAIN_JOB"
"""Of a Kubernetes job: how many ranks a run has; the rank of the pod with index 0; its name."""
_MOST_RANKS = 1 << 20
_LAST_PORT = 65534  # torchrun's ranks meet at the port after MASTER_PORT
_ASK_S = 20.0
_PORTS = range(20_000, 30_000)
"""Below those that systems give to connections."""


@dataclass(frozen=True)
class Engine:
    """A row. `marks`: variables that a rank of this engine has, all of them. What an engine does
    not say is ""."""

    marks: tuple[str, ...]
    rank: Value
    world_size: Value
    ranks_here: Value = ""  # on this host
    local_rank: Value = ""  # this one's number among them
    address: Value = "MASTER_ADDR"  # of the host of rank 0, where someone has chosen it
    port: Value = "MASTER_PORT"
    likely_address: Value = ""  # where rank 0 probably is, if it cannot say so in a shared folder
    likely_port: Value = ""
    host: Value = ""  # what the engine calls this host; "": as it calls itself
    kinds: Value = ""  # what it calls this host's kind: words, with commas between them
    peer: Value = ""  # any other host of the job
    job: Value = ""  # the same on all ranks of a launch, and on no other's at that time
    attempt: Value = ""  # counts the starts of one job
    per_host: bool = False  # one process a host, which starts the host's ranks
    merges: bool = False  # shows what all hosts print as one text


@dataclass(frozen=True)
class Place:
    """Where an engine has put a process."""

    engine: str
    rank: int
    world_size: int
    ranks_here: int | None
    local_rank: int | None
    address: str
    port: int | None
    likely_address: str
    likely_port: int | None
    host: str
    peer: str
    job: str
    attempt: str
    per_host: bool
    merges: bool

    @property
    def words(self) -> str:
        """Who started the process, for people."""
        return f"{self.engine}, job {self.job}" if self.job else self.engine

    @property
    def mark(self) -> str:
        """What all ranks of one launch have in common and those of no other; "": unknown."""
        return "-".join(part for part in (self.engine, self.job, self.attempt) if part and self.job)


ENGINES: Registry[Engine] = Registry("engine")
"""By name, in the order in which they are tried: who starts ranks inside another's job (torchrun in
a Slurm step, Ray's in a pod) is found first."""


def place_of(environ: Environ) -> Place:
    """Where the engine that started this process has put it."""
    for name in ENGINES:
        engine = ENGINES[name]
        if all(environ.get(mark) for mark in engine.marks):
            return _place(name, engine, environ)
    raise SpecError(
        "no engine has started this process: none of what they set is in its environment",
        place="rank",
        fix="start ranks with `ratrain train JOB`, or as `srun ratrain rank RUN`, with mpirun or "
        "torchrun; another launcher must set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT "
        f"(known: {', '.join(ENGINES)})",
    )


def _place(name: str, engine: Engine, environ: Environ) -> Place:
    def text(value: Value) -> str:
        found = value(environ) if callable(value) else environ.get(value, "") if value else ""
        return "" if found is None else str(found)

    def number(value: Value, low: int = 0, high: int = _MOST_RANKS) -> int | None:
        found = text(value)
        if not found:
            return None
        if not (is_number(found) and low <= int(found) <= high):
            raise _wrong(
                value if isinstance(value, str) else f"engine {name}", f"is {found[:20]!a}"
            )
        return int(found)

    rank, world_size = number(engine.rank), number(engine.world_size, 1)
    if rank is None or world_size is None or rank >= world_size:
        raise _wrong(f"engine {name}", f"says that this is rank {rank} of {world_size}")
    return Place(
        name,
        rank,
        world_size,
        number(engine.ranks_here, 1),
        number(engine.local_rank),
        text(engine.address),
        number(engine.port, high=_LAST_PORT),
        text(engine.likely_address),
        number(engine.likely_port, high=_LAST_PORT),
        text(engine.host) or socket.gethostname(),
        text(engine.peer),
        text(engine.job),
        text(engine.attempt),
        engine.per_host,
        engine.merges,
    )


def kinds_of(engine: str, environ: Environ) -> tuple[str, ...]:
    """What the user, else the engine, calls this host's kind of device; () where nobody says. It
    may ask the engine, which takes a moment."""
    value = ENGINES[engine].kinds
    told = environ.get(KIND) or (value(environ) if callable(value) else environ.get(value, ""))
    return tuple(filter(None, map(str.strip, str(told or "").split(","))))


def _wrong(place: str, problem: str) -> SpecError:
    return SpecError(
        f"{problem}, which no launcher sets",
        place=place,
        fix="start ranks with `ratrain train JOB`, `srun ratrain rank RUN`, mpirun or torchrun",
    )


def _torchrun_job(environ: Environ) -> str:
    """`none` is what torchrun calls all jobs that were given no name."""
    return environ.get("TORCHELASTIC_RUN_ID", "").removesuffix("none")


def _slurm_job(environ: Environ) -> str:
    """A step of a job: two of one job may run at once."""
    return f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"


def _slurm_ranks_here(environ: Environ) -> int | None:
    """By the host's name: of a het job, SLURM_NODEID counts hosts in another order."""
    names = hosts(environ["SLURM_STEP_NODELIST"])
    tasks = counts(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    return dict(zip(names, tasks, strict=False)).get(environ.get("SLURMD_NODENAME", ""))


def _slurm_peer(environ: Environ) -> str:
    own = environ.get("SLURMD_NODENAME", "")
    return next((name for name in hosts(environ["SLURM_STEP_NODELIST"]) if name != own), "")


def _slurm_first_host(environ: Environ) -> str:
    """Not so where tasks are placed by hand (`srun -m arbitrary`)."""
    first_group = environ.get("SLURM_JOB_NODELIST_HET_GROUP_0", environ["SLURM_STEP_NODELIST"])
    return hosts(first_group)[0]


def slurm_port(environ: Environ) -> int | None:
    """At which the ranks of a step meet; None outside of Slurm."""
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    if not (is_number(job) and is_number(step)):
        return None
    return _PORTS.start + (int(job) * 64 + int(step)) % len(_PORTS)


def slurm_features(environ: Environ) -> str:
    """Of a node, its active features: no variable has them."""
    command = ["scontrol", "show", "node", "--oneliner", environ.get("SLURMD_NODENAME", "")]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"\bActiveFeatures=(\S+)", told.stdout)
    return found[1] if found and found[1] != "(null)" else ""


def _first_line(name: str) -> Value:
    """The first of the addresses, one a line, that a variable holds."""
    return lambda environ: next(iter(environ.get(name, "").split()), "")


def _indexed_rank(environ: Environ) -> int | None:
    first, index = environ.get(FIRST, "0"), environ.get("JOB_COMPLETION_INDEX", "")
    return int(first) + int(index) if is_number(first) and is_number(index) else None


ENGINES.declare(
    "Ray",  # the children of our own actors there
    Engine(
        ("RATRAIN_RAY", "RANK"),
        rank="RANK",
        world_size="WORLD_SIZE",
        ranks_here="LOCAL_WORLD_SIZE",
        local_rank="LOCAL_RANK",
        address="",
        port="",
        likely_address="RATRAIN_RAY_FIRST",
        host="RATRAIN_RAY_NODE",
        job="RATRAIN_RAY",
        attempt="RATRAIN_RAY_ATTEMPT",
        merges=True,
    ),
)
ENGINES.declare(
    "torchrun",  # and whoever else sets what it sets
    Engine(
        ("RANK", "WORLD_SIZE"),
        rank="RANK",
        world_size="WORLD_SIZE",
        ranks_here="LOCAL_WORLD_SIZE",
        local_rank="LOCAL_RANK",
        job=_torchrun_job,
        attempt="TORCHELASTIC_RESTART_COUNT",
    ),
)
ENGINES.declare(
    "Slurm",
    Engine(
        ("SLURM_PROCID", "SLURM_STEP_NODELIST"),
        rank="SLURM_PROCID",
        world_size="SLURM_STEP_NUM_TASKS",
        ranks_here=_slurm_ranks_here,
        local_rank="SLURM_LOCALID",
        likely_address=_slurm_first_host,
        likely_port=slurm_port,
        host="SLURMD_NODENAME",
        kinds=slurm_features,
        peer=_slurm_peer,
        job=_slurm_job,
        attempt="SLURM_RESTART_COUNT",
        merges=True,
    ),
)
ENGINES.declare(
    "Open MPI",
    Engine(
        ("OMPI_COMM_WORLD_RANK",),
        rank="OMPI_COMM_WORLD_RANK",
        world_size="OMPI_COMM_WORLD_SIZE",
        ranks_here="OMPI_COMM_WORLD_LOCAL_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        job=lambda e: e.get("PMIX_NAMESPACE") or e.get("OMPI_MCA_ess_base_jobid"),
        merges=True,
    ),
)
ENGINES.declare(
    "MPI",  # MPICH, Intel MPI and others with Hydra
    Engine(
        ("PMI_RANK", "PMI_SIZE"),
        rank="PMI_RANK",
        world_size="PMI_SIZE",
        ranks_here="MPI_LOCALNRANKS",
        local_rank="MPI_LOCALRANKID",
        merges=True,
    ),
)
ENGINES.declare(
    "SkyPilot",
    Engine(
        ("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"),
        rank="SKYPILOT_NODE_RANK",
        world_size="SKYPILOT_NUM_NODES",
        likely_address=_first_line("SKYPILOT_NODE_IPS"),
        job="SKYPILOT_TASK_ID",
        per_host=True,
    ),
)
ENGINES.declare(
    "dstack",
    Engine(
        ("DSTACK_NODE_RANK", "DSTACK_NODES_NUM"),
        rank="DSTACK_NODE_RANK",
        world_size="DSTACK_NODES_NUM",
        likely_address="DSTACK_MASTER_NODE_IP",
        job="DSTACK_RUN_NAME",
        per_host=True,
    ),
)
ENGINES.declare(
    "Kubernetes",  # an indexed Job, or a Job of a JobSet
    Engine(
        ("JOB_COMPLETION_INDEX", WORLD),
        rank=_indexed_rank,
        world_size=WORLD,
        ranks_here=lambda _: 1,
        local_rank=lambda _: 0,
        host="HOSTNAME",
        job=JOB,
    ),
)
