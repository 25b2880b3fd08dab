"""Inputs run in forked processes: fast, and a hang, a crash or lost memory costs one of them.

A worker has a copy of the world of its own, runs inputs one after the other in its own process
through the command line's own `main`, and writes a line for each. Its parent watches: an input that
takes more than LIMIT_S of processor time (or WALL_S of any) is a hang, and a new worker goes on.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from fuzz_lines import command_line
from fuzz_oracles import Answer, problems
from fuzz_targets import TARGETS, Made, Target
from fuzz_values import CHANGE, REJECT, SAME

LIMIT_S = 10.0
MEASURING_S = 60.0
"""The same of `profile`, which times layers for as long as it needs for steady figures."""
WALL_S = 60.0
MEMORY_BYTES = 12 << 30
"""Of addresses: torch alone takes several GB of them."""
LINES_SHARE = 0.15
"""Of inputs that are command lines rather than files."""


@dataclass(frozen=True)
class Tried:
    """One input and what was wrong with its answer."""

    seed: int
    index: int
    target: str
    what: str
    arguments: list[str]
    status: int | None
    problems: list[tuple[str, str]]
    cpu_s: float
    error: str = ""


class World:
    """A worker's copy of the world: one file of it is changed, a command run, all put back."""

    def __init__(self, original: Path, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(original, folder, ignore=shutil.ignore_patterns("cache"))
        os.mkfifo(folder / "pipe")
        (folder / "locked").write_text("x")
        (folder / "locked").chmod(0)
        self.path, self._original = folder, original
        self._files = self._stats()
        self._baselines: dict[tuple[str, ...], str] = {}

    def enter(self) -> None:
        """This process works in it from now on."""
        os.chdir(self.path)
        os.environ["XDG_CACHE_HOME"] = str(self.path / "cache")
        run_here(["data", "job.toml", "--json"])
        self.tidy()
        self._files = self._stats()

    def baseline(self, arguments: tuple[str, ...]) -> str:
        """What a command shows of the world as it is."""
        if arguments not in self._baselines:
            answer = run_here(list(arguments))
            self._baselines[arguments] = shown(answer)
            self.tidy()
            assert answer.status == 0, (arguments, answer)
        return self._baselines[arguments]

    def _stats(self) -> dict[Path, tuple[int, int]]:
        files = (path for path in self.path.rglob("*") if "cache" not in path.parts)
        return {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in files}

    def restore(self) -> None:
        """Puts back what a command line wrote over, and removes what it made."""
        now = self._stats()
        for path in sorted(now.keys() - self._files.keys(), reverse=True):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path, stat in self._files.items():
            if path.is_file() and now.get(path) != stat and path.name != "locked":
                shutil.copy2(self._original / path.relative_to(self.path), path)
        self._files = self._stats()

    def tidy(self) -> None:
        """Removes what commands left."""
        for left in ("new", "out", "fresh", "runs"):
            shutil.rmtree(left, ignore_errors=True)
        Path("out").mkdir(exist_ok=True)


def shown(answer: Answer) -> str:
    """Everything a command said and wrote that tells of its input."""
    names = ("new/case.json", "new/run.json", "new/program.txt")
    return answer.out + "".join(Path(name).read_text() for name in names if Path(name).exists())


def run_here(arguments: list[str]) -> Answer:
    """One command line in this process; it ends as `ratrain` would."""
    from ratrain.cli.main import main

    out, err = io.BytesIO(), io.BytesIO()
    before = sys.stdout, sys.stderr, sys.argv
    sys.stdout = io.TextIOWrapper(out, "utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(err, "utf-8", write_through=True)
    sys.argv = ["ratrain", *arguments]
    status: int | None = None
    failure = detail = ""
    began_s = time.process_time()
    try:
        main()
        failure, detail = "status", "main returned"
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        failure, detail = "traceback", traceback.format_exc()[-1500:]
    finally:
        streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr, sys.argv = before
    printed, told = (raw.getvalue().decode("utf-8", "replace") for raw in (out, err))
    del streams
    return Answer(status, printed, told, failure, detail, time.process_time() - began_s)


def try_input(world: World, seed: int, index: int) -> Iterator[Tried | tuple[str, str, list[str]]]:
    """First what is tried, so that a hang can be told; then what came of it."""
    rng = random.Random(f"{seed}/{index}")
    if rng.random() < LINES_SHARE:
        arguments = command_line(rng)
        yield "command line", "", arguments
        answer = run_here(arguments)
        world.tidy()
        world.restore()
        yield _tried(seed, index, "command line", "", arguments, answer, [], ())
        return
    target = rng.choices(TARGETS, [target.weight for target in TARGETS])[0]
    path = target.find(Path())
    content = path.read_bytes()
    made = target.make(content, rng)
    arguments = list(_command(target, made, rng))
    if made.expect == SAME and target.shown and arguments == list(target.shown):
        world.baseline(target.shown)
    if made.expect == CHANGE and arguments == list(target.shown):
        world.baseline(target.shown)
    yield target.file, made.what, arguments
    path.write_bytes(made.content)
    try:
        answer = run_here(arguments)
        named = () if made.content == content else (path.name, path.stem, *target.named)
        broken = _broken(world, target, made, arguments, answer)
    finally:
        path.write_bytes(content)
    yield _tried(seed, index, target.file, made.what, arguments, answer, broken, named)


def _command(target: Target, made: Made, rng: random.Random) -> tuple[str, ...]:
    """A command that reads the file; the one that shows it all where that can tell."""
    if target.shown and made.expect in (CHANGE, SAME):
        return target.shown
    return rng.choice(target.commands)


def _broken(
    world: World, target: Target, made: Made, arguments: list[str], answer: Answer
) -> list[tuple[str, str]]:
    """Nonsense that was accepted, changes that show nowhere, and sense that was refused."""
    if answer.failure:
        return []
    keys = ".".join(map(str, made.keys))
    if made.expect == REJECT and answer.status == 0:
        free = not target.strict or (target.free and keys.rsplit(".")[-1].startswith(target.free))
        return [] if free else [("accepted", f"{keys}: {made.what}")]
    if made.expect == CHANGE and answer.status == 0 and tuple(arguments) == target.shown:
        hidden = any(keys.startswith(prefix) or keys.endswith(prefix) for prefix in target.hidden)
        if not hidden and shown(answer) == world.baseline(target.shown):
            return [("no effect", f"{keys}: {made.what}")]
    if made.expect == SAME and target.shown and answer.status != 0:
        return [("refused", f"{made.what}: {answer.err[:200]}")]
    return []


def _tried(
    seed: int,
    index: int,
    target: str,
    what: str,
    arguments: list[str],
    answer: Answer,
    broken: list[tuple[str, str]],
    named: tuple[str, ...],
) -> Tried:
    wrong = [*problems(arguments, answer, named), *broken]
    error = answer.err.split("\n")[0][:200] if answer.status else ""
    return Tried(
        seed, index, target, what[:200], arguments, answer.status, wrong, answer.cpu_s, error
    )


# ---- processes --------------------------------------------------------------------------


def work(original: Path, folder: Path, seed: int, indices: range, report: int) -> None:
    """A worker's life: a line before each input and one behind it."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    silent = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(silent, handle)
    world = World(original, folder)
    world.enter()
    world.tidy()
    for index in indices:
        for said in try_input(world, seed, index):
            body = asdict(said) if isinstance(said, Tried) else {"trying": said}
            line = json.dumps({"index": index, "at_s": time.process_time(), **body})
            os.write(report, line.encode() + b"\n")
        world.tidy()


class Watched:
    """A worker and what it said so far; restarted behind an input that hangs or kills it."""

    def __init__(self, original: Path, folder: Path, seed: int, indices: range) -> None:
        self._original, self._folder, self._seed = original, folder, seed
        self._left = indices
        self._start()

    @property
    def done(self) -> bool:
        return not self._left and self._pid == 0

    def _start(self) -> None:
        self._text, self._trying, self._since_s = b"", None, time.monotonic()
        self._pid = 0
        if not self._left:
            return
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(read)
                os.setpgid(0, 0)
                work(self._original, self._folder, self._seed, self._left, write)
                status = 0
            except BaseException:
                with suppress(OSError):
                    os.write(write, json.dumps({"died": traceback.format_exc()}).encode() + b"\n")
            finally:
                os._exit(status)
        os.close(write)
        os.set_blocking(read, False)
        self._pid, self._pipe = pid, read

    def poll(self) -> list[Tried]:
        """What has been tried since the last call."""
        if not self._pid:
            return []
        tried = self._read()
        ended, status = os.waitpid(self._pid, os.WNOHANG)
        if ended:
            tried += self._read()
            os.close(self._pipe)
            self._pid = 0
            if self._left:
                tried += self._lost("died", f"status {status}")
                self._start()
        elif self._trying is not None and self._too_long():
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self._pipe)
            self._pid = 0
            tried += self._lost("hang", f"over {LIMIT_S:g} s")
            self._start()
        return tried

    def _read(self) -> list[Tried]:
        with suppress(BlockingIOError):
            while data := os.read(self._pipe, 1 << 16):
                self._text += data
        *lines, self._text = self._text.split(b"\n")
        tried: list[Tried] = []
        for line in lines:
            body: dict[str, Any] = json.loads(line)
            if "died" in body:
                raise RuntimeError(body["died"])
            index, at_s = body.pop("index"), body.pop("at_s")
            if "trying" in body:
                self._trying = (index, at_s, body["trying"])
                self._since_s = time.monotonic()
                continue
            tried.append(Tried(index=index, **body))
            self._trying = None
            self._left = range(index + 1, self._left.stop)
        return tried

    def _too_long(self) -> bool:
        assert self._trying is not None
        waited_s = time.monotonic() - self._since_s
        used_s = _processor_s(self._pid) - self._trying[1]
        measures = self._trying[2][2][:1] == ["profile"]
        return waited_s > WALL_S or used_s > (MEASURING_S if measures else LIMIT_S)

    def _lost(self, kind: str, detail: str) -> list[Tried]:
        """The input that a worker was at when it ended."""
        if self._trying is None:
            raise RuntimeError(f"a worker ended between two inputs: {detail}")
        index, _, (target, what, arguments) = self._trying
        self._left = range(index + 1, self._left.stop)
        lost = Tried(self._seed, index, target, what, arguments, None, [(kind, detail)], LIMIT_S)
        return [lost]


def _processor_s(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def run_inputs(
    original: Path,
    scratch: Path,
    seed: int,
    count: int,
    workers: int,
    each: Callable[[Tried], None],
    first: int = 0,
) -> None:
    """Tries `count` inputs of a seed."""
    preload()
    edges = [first + count * number // workers for number in range(workers + 1)]
    watched = [
        Watched(original, scratch / f"worker-{number}/in/side", seed, range(low, high))
        for number, (low, high) in enumerate(pairwise(edges))
    ]
    while not all(worker.done for worker in watched):
        for worker in watched:
            for tried in worker.poll():
                each(tried)
        time.sleep(0.02)


def preload() -> None:
    """Imports once what every worker would import anew."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch

    torch.set_num_threads(1)
    import importlib

    from ratrain.cli.main import VERBS

    for verb, folder in VERBS.items():
        importlib.import_module(f"ratrain.cli.{folder}.{verb}")
    for module in (
        *(
            "ratrain.runtime.run.reports.report",
            "ratrain.runtime.run.reports.difference",
            "ratrain.models.sample",
        ),
        *(
            "ratrain.runtime.run.prepare",
            "ratrain.runtime.run.session",
            "ratrain.plan.words.explain",
        ),
        *(
            "ratrain.runtime.run.export",
            "ratrain.validate.report",
            "ratrain.runtime.run.reports.run_pair",
        ),
        *("ratrain.transport.uses.netcheck", "ratrain.chip.noc.collectives", "pyarrow.parquet"),
        *(
            "tokenizers",
            "rich.progress",
            "ratrain.checkpoint.comparison",
            "ratrain.plan.search.misfit",
        ),
    ):
        importlib.import_module(module)
