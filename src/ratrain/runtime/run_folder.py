"""A run's folder: what the launcher resolved, what ranks measured, what was saved.

job.toml        the job as it was given
program.txt     the program that every rank executes
run.json        versions, layout, where each rank sits, what was predicted
metrics.jsonl   one line a step
predicted.json  the timeline of the simulator; measured.json: of the ranks
report.json     prediction against measurement, memory, weights' checksums
checkpoints/    complete ones only
episodes/       programs that the run had before, each with its run.json, case.json and report
notes.txt       what did not go as expected: damaged checkpoints that were skipped
secret          32 bytes that ranks prove to each other, for the owner's eyes alone
logs/           what each rank printed
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from ratrain.cost.algorithms import AUTO, DIRECT
from ratrain.cost.precision import precision_words, travel_words
from ratrain.describe.amounts import Count, FileName, Message, Name, Natural, Note, Steps
from ratrain.describe.overrides import MOST_CHARS
from ratrain.describe.strict import Rule, load
from ratrain.describe.train import TLS_OFF
from ratrain.errors import SpecError
from ratrain.program.program import Program
from ratrain.program.repeating import Repeating
from ratrain.program.setup import Setup
from ratrain.program.text import read_any, write_text
from ratrain.readers import files
from ratrain.readers.json import read_json_table
from ratrain.readers.limits import PROGRAM_BYTES
from ratrain.readers.writing import write_whole
from ratrain.runtime import run_files
from ratrain.runtime.seats import Seats, plays
from ratrain.runtime.secret import write_secret

FORMAT = "ratrain run 1"
MARKER = "run.json"
"""The file that makes a folder a run's."""
MOST_RANKS = 1 << 16
"""Processes of one run."""
_LEFT_OUT = (
    *("depths", "micro_batches", "degrees", "dtypes", "dtype_words"),
    *("reduces_by", "gathers_by", "hosts", "sum_order"),
    *("from_run", "from_step", "data_from", "episode", "episode_step", "check"),
)
"""Not in run.json where replicas are alike, all ranks compute in one dtype, one collective is for
all units, the run began by itself, or has the program that it began with."""
Check = Literal["", "compare", "exact", "scatter 1", "scatter 2"]
Part = Annotated[int, Rule(low=0, high=1 << 18)]
Override = Annotated[str, Rule(high=MOST_CHARS)]


@dataclass(frozen=True)
class RunSpec:
    """What a rank needs to know besides the job and the program."""

    job_path: FileName  # absolute: relative names in the job are relative to it
    pipeline: Count
    data: Count
    replica_class: tuple[Part, ...]
    first_rank: tuple[Part, ...]
    micro_batch: Count
    dtype: Name
    threads: Natural  # of torch, a rank; 0: its host's processors over the host's ranks
    end_step: Steps
    record_steps: Count = 4  # the last steps whose every op is recorded
    calibrate: bool = True
    allocator: bool = True  # count what the process allocates, and hold it to the budget
    tensor: Count = 1
    dtypes: tuple[Name, ...] = ()  # of each world rank; (): all compute in `dtype`
    dtype_words: Note = ""  # which kinds of device compute in another, for people
    gradient_dtype: Note = ""  # in which gradients add up; "" (of earlier versions): `dtype`
    gradient_wire: Note = ""  # in which gradients are sent; "": `dtype`
    boundary_wire: Note = ""  # in which activations between stages and their gradients are sent
    error_feedback: bool = False  # what rounding takes from a gradient is sent with the next one
    attention: Literal["flash", "stored"] = "flash"  # "stored": scores are kept for backward
    tls: FileName = TLS_OFF  # as the job has it, for ranks that cannot read that
    overrides: tuple[Override, ...] = ()  # of the job file's values, as `--set` has them
    devices: tuple[Part, ...] = ()  # of the cluster, by world rank; (): in its order
    depths: tuple[Count, ...] = ()  # of each class of replicas: its ranks; (): all have `pipeline`
    micro_batches: tuple[Count, ...] = ()  # of each class: sequences of one; (): all `micro_batch`
    degrees: tuple[tuple[Count, ...], ...] = ()  # of each class: of each rank; (): all `tensor`

    collective: Name = DIRECT  # of replicas; "auto": as the next two say
    reduces_by: dict[str, Name] = field(default_factory=dict[str, Name])  # by unit
    gathers_by: dict[str, Name] = field(default_factory=dict[str, Name])
    hosts: tuple[Part, ...] = ()  # of each world rank, for collectives; (): all are on one
    sum_order: Note = ""  # of replicas' gradients, in words; "": that of replicas
    from_run: Message = ""  # the folder of the run whose checkpoint it began from
    from_step: Natural = 0  # the checkpoint's step
    data_from: Natural = 0  # the step that reads the text's beginning: 0, or `from_step`
    episode: Natural = 0  # how many other programs the run had before
    episode_step: Natural = 0  # the first step of this one
    # "compare": each operator with fp64; else operators in fp64, rounded once or by chance
    check: Check = ""

    def __post_init__(self) -> None:
        ranks = self.pipeline * self.data * self.tensor
        if ranks > MOST_RANKS:
            raise SpecError(
                f"the run has {ranks:,} ranks; the maximum is {MOST_RANKS:,}",
                place="pipeline",
                fix="start a new run in another folder (--run): this one is damaged",
            )
        if len(self.replica_class) != self.data:
            raise SpecError(
                f"{len(self.replica_class)} replicas have a class, the run has {self.data}",
                place="replica_class",
                fix="start a new run in another folder (--run): this one is damaged",
            )
        if any(number >= len(self.first_rank) for number in self.replica_class):
            raise SpecError(
                f"the last class of replicas is {len(self.first_rank) - 1}, but one replica "
                f"names a later one",
                place="replica_class",
                fix="start a new run in another folder (--run): this one is damaged",
            )
        for name in ("depths", "micro_batches"):
            known = len(getattr(self, name))
            if known not in (0, len(self.first_rank)):
                raise SpecError(
                    f"{known} classes of replicas are named, the run has {len(self.first_rank)}",
                    place=name,
                    fix="start a new run in another folder (--run): this one is damaged",
                )
        if self.depths and max(self.depths) != self.pipeline:
            raise SpecError(
                f"the deepest replica has {max(self.depths)} ranks, pipeline is {self.pipeline}",
                place="depths",
                fix="start a new run in another folder (--run): this one is damaged",
            )
        self._check_degrees()
        if len(self.dtypes) not in (0, self.seats.world_size):
            raise SpecError(
                f"{len(self.dtypes)} ranks have a dtype, the run has {self.seats.world_size}",
                place="dtypes",
                fix="start a new run in another folder (--run): this one is damaged",
            )
        if len(self.hosts) not in (0, self.seats.world_size):
            raise SpecError(
                f"{len(self.hosts)} ranks have a host, the run has {self.seats.world_size}",
                place="hosts",
                fix="start a new run in another folder (--run): this one is damaged",
            )
        ranks, different = self.seats.world_size, len(set(self.devices))
        if self.devices and not different == len(self.devices) == ranks:
            raise SpecError(
                f"{ranks} ranks are on {different} different devices",
                place="devices",
                fix="start a new run in another folder (--run): this one is damaged",
            )

    def _check_degrees(self) -> None:
        if not self.degrees:
            return
        depths = list(self.depths or (self.pipeline,) * len(self.first_rank))
        known = [len(degrees) for degrees in self.degrees]
        problem = ""
        if known != depths:
            problem = f"{known} ranks of the classes of replicas have a degree, they have {depths}"
        elif max(map(max, self.degrees)) != self.tensor:
            problem = f"the largest degree is {max(map(max, self.degrees))}, tensor {self.tensor}"
        if problem:
            raise SpecError(
                problem,
                place="degrees",
                fix="start a new run in another folder (--run): this one is damaged",
            )

    def dtype_of(self, rank: int) -> str:
        """The dtype that a world rank computes in."""
        return self.dtypes[rank] if self.dtypes else self.dtype

    def gradient_dtype_of(self, rank: int) -> str:
        """The dtype in which its gradients add up: fp32, or the one that it computes in."""
        return "fp32" if self.gradient_dtype == "fp32" else self.dtype_of(rank)

    @property
    def scales_losses(self) -> bool:
        """Whether losses are scaled, on all ranks: where any computes in fp16, or all send so."""
        return "fp16" in {self.dtype, self.gradients_travel_in, *self.dtypes}

    def micro_batch_of(self, data: int) -> int:
        """Sequences of a micro-batch of a replica."""
        if not self.micro_batches:
            return self.micro_batch
        return self.micro_batches[self.replica_class[data]]

    @property
    def precision(self) -> str:
        """The numbers of the run, in words."""
        travel = travel_words(
            self.dtype,
            self.gradients_travel_in,
            self.boundaries_travel_in,
            error_feedback=self.error_feedback,
        )
        words = precision_words(self.dtype, self.gradient_dtype or self.dtype, travel)
        return f"{words}; {self.dtype_words}" if self.dtype_words else words

    @property
    def gradients_travel_in(self) -> str:
        """The dtype in which gradients are sent."""
        return self.gradient_wire or self.dtype

    @property
    def boundaries_travel_in(self) -> str:
        """The dtype in which activations between stages, and their gradients, are sent."""
        return self.boundary_wire or self.dtype

    @property
    def device_numbers(self) -> tuple[int, ...]:
        """The number of each world rank's device in the cluster."""
        return self.devices or tuple(range(self.seats.world_size))

    def collectives_of(self, unit: str) -> tuple[str, str]:
        """By which algorithms a unit's holders reduce its gradient, and gather its weights."""
        if self.collective != AUTO:
            return self.collective, self.collective
        return self.reduces_by.get(unit, DIRECT), self.gathers_by.get(unit, DIRECT)

    @cached_property
    def seats(self) -> Seats:
        return Seats(
            self.pipeline,
            self.data,
            self.replica_class,
            self.first_rank,
            self.tensor,
            self.depths,
            self.degrees,
        )


def share_of(spec: RunSpec, setup: Setup, data: int) -> tuple[int, int]:
    """Where in a step's global batch a replica's sequences begin, and how many they are: replicas
    take them in order, each as many as it has micro-batches of its size."""
    sizes = [
        setup.replicas[number].micro_batches * spec.micro_batch_of(replica)
        for replica, number in enumerate(spec.replica_class)
    ]
    return sum(sizes[:data]), sizes[data]


def site_weights(spec: RunSpec, setup: Setup) -> tuple[float, ...]:
    """How much the weights of each site count in a mean, over what they do in one of equal sites:
    as many times as it takes sequences, as those count that are added up in every step."""
    taken = dict.fromkeys(setup.sites if setup.averages else (), 0)
    for data, number in enumerate(spec.replica_class):
        site = setup.replicas[number].site
        if site in taken:
            taken[site] += share_of(spec, setup, data)[1]
    total = sum(taken.values())
    return tuple(len(taken) * count / total for count in taken.values())


@dataclass(frozen=True)
class RunFolder:
    """Names of the files of a run."""

    path: Path

    @property
    def holds_run(self) -> bool:
        """Whether a run was prepared here."""
        return (self.path / MARKER).exists() and self.program.exists()

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def report(self) -> Path:
        return self.path / "report.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def episodes(self) -> Path:
        """What programs of before have left, by their numbers."""
        return self.path / "episodes"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def secret(self) -> Path:
        """What proves that a rank belongs to the run; its owner alone may read it."""
        return self.path / "secret"

    def log(self, rank: int) -> Path:
        """What a rank printed, attempt after attempt."""
        return self.logs / f"rank-{rank:05d}.log"

    @property
    def stop_request(self) -> Path:
        """Exists when someone asked the run to stop after the current step."""
        return self.path / "stop-requested"

    @property
    def program(self) -> Path:
        return self.path / "program.txt"

    @property
    def predicted(self) -> Path:
        return self.path / "predicted.json"

    @property
    def measured(self) -> Path:
        return self.path / "measured.json"

    @property
    def notes(self) -> Path:
        """Lines for the user about what did not go as expected."""
        return self.path / "notes.txt"

    def add_note(self, line: str) -> None:
        """A line for the user, once however often the run is resumed."""
        if self.notes.exists() and line in files.read_text(self.notes).splitlines():
            return
        with self.notes.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def rank_file(self, rank: int, kind: str) -> Path:
        """A file of one rank's: `kind` is "records", "failure", ..."""
        return self.path / "ranks" / f"{kind}-{rank:05d}.json"

    def write_spec(self, spec: RunSpec, program: Program | Repeating) -> None:
        """Makes the folder, with all that ranks read, and a new secret."""
        try:
            for folder in (self.path, self.logs, self.path / "ranks", self.checkpoints):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_be_made(self.path, error) from error
        write_secret(self.secret)
        self.write_program(spec, program)

    def write_program(self, spec: RunSpec, program: Program | Repeating) -> None:
        """The program, and run.json behind it."""
        write_whole(self.program, write_text(program))
        body = {"format": FORMAT, **asdict(spec)}
        for name in _LEFT_OUT:
            if not body[name]:
                del body[name]
        write_whole(self.path / MARKER, json.dumps(body, indent=2))

    def read_spec(self) -> RunSpec:
        """What run.json says."""
        path = self.path / MARKER
        if not files.exists(path):
            raise SpecError(
                f"is not a run's folder: it has no {MARKER}",
                place=str(self.path),
                fix="give a run's folder, such as runs/quickstart-ratrain",
            )
        body, place = read_json_table(path)
        if body.pop("format", None) != FORMAT:
            raise self._another_version()
        try:
            spec = load(RunSpec, body, place)
            files.check_name(spec.job_path, f"{path} job_path")
            return spec
        except SpecError as error:
            raise SpecError(
                f"is not a run of this version, or is damaged: {error.what}",
                place=error.place,
                fix=self._another_version().fix,
            ) from error

    def _another_version(self) -> SpecError:
        return SpecError(
            "is not a run of this version",
            place=str(self.path),
            fix="start a new run; a checkpoint's weights can be carried over with `ratrain export`",
        )

    def read_program(self) -> Program:
        program = self.kept_program()
        return program.written_out() if isinstance(program, Repeating) else program

    def read_setup(self) -> Setup:
        """The program's header."""
        return self.kept_program().setup

    def kept_program(self) -> Program | Repeating:
        """The program as short as its text; a SpecError where it is not this run's."""
        program = read_any(files.read_text(self.program, PROGRAM_BYTES), str(self.program))
        marker = self.path / MARKER
        if files.exists(marker) and not plays(self.read_spec().seats, program.setup):
            raise SpecError(
                f"does not describe the ranks of {self.program.name} beside it: one of them was "
                "changed",
                place=str(marker),
                fix=self._another_version().fix,
            )
        return program

    def metrics_lines(self) -> Iterator[dict[str, Any]]:
        """All lines of the metrics, in the order in which they were written; a half-written last
        one is left out."""
        if files.exists(self.metrics):
            yield from run_files.read_metrics(self.metrics)

    def read_metrics(self) -> list[dict[str, Any]]:
        """A row for each step, with what validation and samples added. A step that was done again
        after a restart counts once, as it went last."""
        steps: dict[int, dict[str, Any]] = {}
        added: dict[int, dict[str, Any]] = {}
        for row in self.metrics_lines():
            if "loss" in row:
                steps[row["step"]] = row
            else:
                added[row["step"]] = {**added.get(row["step"], {}), **row}
        return [{**added.get(step, {}), **steps[step]} for step in sorted(steps)]


def cannot_be_made(folder: Path, error: OSError) -> SpecError:
    """The error for a run's folder that cannot be created."""
    return SpecError(
        f"cannot be created: {error.strerror}",
        place=str(folder),
        fix="choose a folder with --run that you can write to",
    )
