"""Jobs drawn at random, each run as a user would: whole, then cut somewhere and resumed.

A job is refused with one message before any rank has started, or it trains: the resumed run has
the bits of the uninterrupted one, and its losses are those of one process of plain torch.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from launched import assert_same_end, ranks_of, steps_done
from plain_numbers import plain_losses
from runs_made import Setting, write_job, write_plan, write_text
from torch import Tensor

from ratrain.checkpoint.listing import listed
from ratrain.corpus.of_job import data_of_job
from ratrain.describe.job import JobSpec
from ratrain.errors import SAVED_NOT_FINISHED
from ratrain.models.initialise import initial_range
from ratrain.models.shapes import unit_layout, unit_names
from ratrain.plan.layout.jobs import load_job
from ratrain.program.skeletons import SKELETONS
from ratrain.program.strategies import PASSES, STRATEGIES
from ratrain.runtime.run_folder import RunFolder

MOST_PROCESSES = 8
REFUSED = (2, 3, 4)
"""Exit statuses of what is wrong with a job, before ranks start."""
RANK_FAILED = 8
LIMIT_S = 240.0

CUTS = ("steps", "stop", "kill")
"""How a run ends early: by --steps, by SIGINT, by the death of a rank."""


@dataclass(frozen=True)
class DrawnJob:
    """A job, and how and when its second run is cut."""

    seed: int
    setting: Setting
    cut: str
    cut_step: int
    calibrate: bool
    moved: Setting | None  # another layout, which resumes from one of the first one's checkpoints
    sibling: Setting | None = None  # another schedule that must have the same bits

    def __str__(self) -> str:
        words = [str(self.setting), f"cut by {self.cut} at {self.cut_step}"]
        words += [] if self.calibrate else ["not calibrated"]
        if self.moved is not None:
            degrees = self.moved.pipeline, self.moved.data, self.moved.tensor
            to = " and ".join(map(str, self.moved.unlike)) or "{} x {} x {}".format(*degrees)
            words.append(f"moved to {to}")
        if self.sibling is not None:
            words.append(f"as {self.sibling.name} at level {self.sibling.sharding}")
        return f"{self.seed}: {'; '.join(words)}"


@dataclass(frozen=True)
class Outcome:
    """How a drawn job went: `refusal` is the message of one that was refused, "" otherwise."""

    refusal: str
    compared_to_plain: bool


# ---- drawing ------------------------------------------------------------------------------------


def draw(seed: int) -> DrawnJob:
    """The job of a seed. Most can be trained; some contradict themselves."""
    dice = random.Random(seed)
    cut = dice.choice(CUTS)
    steps, every = 4 if cut == "steps" else 12, dice.choice((1, 1, 2, 3))
    setting = replace(_tuned(_placed(dice), dice), steps=steps, every=every, keep=20)
    setting = _joined(_of_two_kinds(_divided(wired(setting, seed), seed), seed), seed)
    return DrawnJob(
        seed,
        setting,
        cut,
        cut_step=dice.randint(1, 3),
        calibrate=dice.random() < 0.7,
        moved=_of_two_kinds(_divided(moved_to(setting, dice), -seed), -seed)
        if dice.random() < 0.25
        else None,
    )


def moved_to(setting: Setting, dice: random.Random) -> Setting:
    """The same training on another layout that its model and batch divide into."""
    model = dict(setting.model)
    counts = [model[f"num_{name}"] for name in ("attention_heads", "key_value_heads")]
    counts += [model["intermediate_size"], model["vocab_size"]]
    degrees = [
        (pipeline, data, tensor)
        for pipeline in range(1, int(str(model["num_hidden_layers"])) + 1)
        for data in range(1, 5)
        for tensor in range(1, 5)
        if pipeline * data * tensor <= 4
        and setting.sequences % data == 0
        and all(int(str(count)) % tensor == 0 for count in counts)
    ]
    pipeline, data, tensor = dice.choice(degrees)
    return replace(
        setting,
        name=dice.choice(("ratrain", "1f1b", "zb-h1")),
        pipeline=pipeline,
        data=data,
        tensor=tensor,
        sequence_parallel=False,
        virtual=1,
        joined=(),
        micro_batch=1,
        layers="equal",
        planned=False,
        devices_per_host=None,
        sharding=dice.choice((None, 2, 3)),
        accumulation="local",
    )


def _placed(dice: random.Random) -> Setting:
    """Degrees, and a model that most of them divide."""
    name = dice.choice(sorted(STRATEGIES))
    least_tensor = 2 if name == "tensor-parallel-heavy" and dice.random() < 0.9 else 1
    while True:
        pipeline, data, tensor = (dice.randint(1, 7) for _ in range(3))
        if pipeline * data * tensor <= MOST_PROCESSES and tensor >= least_tensor:
            break
    chunks = SKELETONS[STRATEGIES[name].skeleton].chunks
    virtual = dice.choice((1, 2)) if chunks else 1
    layers = max(pipeline * virtual, dice.randint(1, 7))
    micro_batch = dice.randint(1, 3)
    micro_batches = dice.randint(1, 5)
    if chunks and dice.random() < 0.9:
        micro_batches = pipeline * dice.randint(1, 2)
    stray = int(dice.random() < 0.05)  # now and then a number that divides nothing
    planned = dice.random() < 0.25
    devices = pipeline * data * tensor
    per_host = dice.choice([n for n in range(1, 8) if devices % n == 0]) if planned else None
    return Setting(
        name=name,
        pipeline=pipeline,
        data=data,
        tensor=tensor,
        virtual=virtual,
        sequences=data * micro_batch * micro_batches + stray,
        micro_batch=micro_batch,
        sequence_length=dice.randint(9, 17),
        layers=_layers(layers, pipeline * virtual, dice),
        planned=planned,
        devices_per_host=per_host,
        model=_model(layers, tensor, dice),
    )


def _layers(layers: int, stages: int, dice: random.Random) -> str | tuple[int, ...]:
    """Layers of each stage: equal, balanced, or any numbers."""
    if dice.random() < 0.5:
        return dice.choice(("equal", "balanced"))
    least = [int(0 < stage < stages - 1) for stage in range(stages)]
    if dice.random() < 0.05:
        least = [0] * stages  # a stage between others may hold nothing then, which is refused
    counts = list(least)
    for _ in range(layers - sum(least)):
        counts[dice.randrange(stages)] += 1
    return tuple(counts)


def _model(layers: int, tensor: int, dice: random.Random) -> tuple[tuple[str, object], ...]:
    family = dice.choice(("llama", "llama", "qwen2", "baichuan"))
    kv_heads = tensor * dice.randint(1, 2)
    heads = kv_heads * (1 if family == "baichuan" else dice.randint(1, 3))
    head_dim = 2 * dice.randint(1, 4)
    vocab = tensor * dice.randint(-(-260 // tensor), 340 // tensor)
    config: dict[str, object] = {
        "model_type": family,
        "hidden_size": heads * head_dim,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": tensor * dice.randint(3, 17),
        "vocab_size": vocab + dice.choice((0,) * 19 + (1,)),
        "tie_word_embeddings": dice.random() < 0.4,
    }
    if family == "baichuan":
        config["position_embedding"] = dice.choice(("ROPE", "ALIBI"))
        config["norm_head"] = dice.random() < 0.5
    return tuple(config.items())


def _tuned(setting: Setting, dice: random.Random) -> Setting:
    """Everything else that a job may say."""
    tied = dict(setting.model)["tie_word_embeddings"]
    sharded = dice.random() < (0.05 if tied else 0.3)
    dtype = dice.choice(("fp32", "fp32", "bf16", "fp16"))
    return replace(
        setting,
        dtype=dtype,
        gradient_dtype=dice.choice((None, None, "fp32", dtype)),
        without=tuple(pass_name for pass_name in PASSES if dice.random() < 0.15),
        sharding=dice.choice((None, 2, 3) if sharded else (None, None, 0, 1, 2, 3)),
        recovery=dice.choice(("auto", "auto", "keep-all", "exempt-last", "everywhere")),
        recovery_buffer=dice.choice((None, None, 1, 3)),
        recover_heads=dice.choice((None, None, True, False)),
        accumulation="sharded" if sharded else dice.choice(("auto", "local")),
        clip_norm=dice.choice((None, 0.5, 100.0)),
        learning_rate=1e-3,
        timeout_s=60.0,
    )


def wired(setting: Setting, seed: int) -> Setting:
    """Some fp32 jobs send in bf16, and some whose gradients are rounded feed errors back. Their
    dice are their own, so that the rest of a job does not depend on it."""
    dice, wires = random.Random(f"wires of {seed}"), (None, None, None, "bf16")
    if setting.dtype == "fp32":
        chosen = {"gradient_wire": dice.choice(wires), "boundary_wire": dice.choice(wires)}
        setting = replace(setting, **chosen)
    wide = setting.dtype == "fp32" or setting.gradient_dtype in (None, "fp32")
    rounds = wide and (setting.gradient_wire or setting.dtype) != "fp32"
    return replace(setting, error_feedback=True) if rounds and dice.random() < 0.5 else setting


def _divided(setting: Setting, seed: int) -> Setting:
    """Half of the tensor groups that can divide their sequences do, with dice of their own."""
    divides = setting.tensor > 1 and setting.sequence_length % setting.tensor == 0
    chance = random.Random(f"sequences of {seed}").random()
    return replace(setting, sequence_parallel=divides and chance < 0.5)


def _of_two_kinds(setting: Setting, seed: int) -> Setting:
    """Some hosts of every third job in 16 bits compute in a dtype of their own, with dice of their
    own."""
    dice = random.Random(f"kinds of {seed}")
    if setting.dtype == "fp32" or dice.random() > 0.35:
        return replace(setting, old=(), older=(), dtypes=())
    hosts = -(-8 // (setting.devices_per_host or setting.tensor))
    return of_kinds(setting, hosts, dice)


def of_kinds(setting: Setting, hosts: int, dice: random.Random) -> Setting:
    """A setting some of whose hosts compute in fp32 alone, and every other time some in fp16 alone,
    beside bf16 then."""
    old = tuple(host for host in range(hosts) if dice.random() < 0.5)
    drawn = tuple(host for host in range(hosts) if host not in old and dice.random() < 0.5)
    older = drawn if dice.random() < 0.5 else ()
    dtypes = [("old", "fp32")] if old else []
    dtypes += [("older", "fp16"), ("process", "bf16")] if older else []
    return replace(setting, old=old, older=older, dtypes=tuple(dtypes))


def _joined(setting: Setting, seed: int) -> Setting:
    """Stages of a third of the pipelines join micro-batches, with dice of their own; orders that
    have no place for that are refused."""
    dice = random.Random(f"joined of {seed}")
    micro_batches = setting.sequences // (setting.data * setting.micro_batch)
    sizes = [size for size in (1, 2, 4) if micro_batches % size == 0]
    cannot = setting.planned or setting.virtual > 1 or setting.sequence_parallel
    if setting.pipeline == 1 or cannot or dice.random() > 1 / 3:
        return setting
    return replace(setting, joined=(*dice.choices(sizes, k=setting.pipeline - 1), 1))


# ---- running ------------------------------------------------------------------------------------


class Wrong(AssertionError):
    """A drawn job that neither trained as it should nor was refused as it should."""


@dataclass(frozen=True)
class _Ran:
    status: int
    err: str


def run_job(drawn: DrawnJob, folder: Path) -> Outcome:
    """Runs a drawn job in an empty folder; `Wrong` says what was not as it should be."""
    write_text(folder / "text.txt", seed=drawn.seed)
    job = write_job(folder, replace(drawn.setting, files=("text.txt",)))
    whole, cut = RunFolder(folder / "whole"), RunFolder(folder / "cut")
    plan = plan_options(folder, drawn.setting)
    flags = [*plan, *([] if drawn.calibrate else ["--no-calibrate"])]
    ran = ratrain(folder, "train", job, "--run", whole.path, *flags)
    if ran.status in REFUSED:
        return Outcome(refusal_of(ran, whole), compared_to_plain=False)
    require(ran.status == 0, ran)
    _check_report(whole, drawn)
    _cut_short(drawn, job, cut, plan)
    resumed = ("train", job, "--run", cut.path, "--resume", "--no-calibrate")
    ran = ratrain(folder, *resumed, "--steps", drawn.setting.steps)
    require(ran.status == 0, ran)
    _check_same(whole, cut)
    if drawn.sibling is not None:
        _check_sibling(drawn.sibling, whole, folder)
    if drawn.moved is not None:
        _check_moved(drawn.moved, drawn.cut_step, whole, folder)
    plain = _compare_to_plain(whole, load_job(job), folder / "cache/ratrain/corpus")
    for path in (whole.path, cut.path):
        shutil.rmtree(path)
    return Outcome("", compared_to_plain=plain)


def _arguments(folder: Path, arguments: tuple[object, ...]) -> tuple[list[str], dict[str, str]]:
    code = "from ratrain.cli.main import main; main()"
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    return [sys.executable, "-c", code, *map(str, arguments), "--threads", "1"], environment


def ratrain(folder: Path, *arguments: object) -> _Ran:
    command, environment = _arguments(folder, arguments)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return _Ran(done.returncode, done.stderr)


def plan_options(folder: Path, setting: Setting) -> list[object]:
    """The options with which a job is run by the plan file that its setting has, if it has one."""
    plan = write_plan(folder, setting)
    return [] if plan is None else ["--plan", plan]


def _cut_short(drawn: DrawnJob, job: Path, run: RunFolder, plan: list[object]) -> None:
    """A run of the job that ends early; what is in its folder can be resumed."""
    more = ("--steps", drawn.cut_step) if drawn.cut == "steps" else ()
    arguments = ("train", job, "--run", run.path, "--no-calibrate", *plan, *more)
    command, environment = _arguments(run.path.parent, arguments)
    log = run.path.parent / "cut.log"
    with log.open("w") as err:
        process = subprocess.Popen(command, env=environment, stdout=err, stderr=err)
        try:
            expected = _disturb(drawn, run, process)
            status = process.wait(timeout=LIMIT_S)
        finally:
            process.kill()
            process.wait()
    ended_first = steps_done(run) >= drawn.setting.steps
    require(status in (expected, *((0,) if ended_first else ())), _Ran(status, log.read_text()))
    require(not ranks_of(run), _Ran(status, "ranks are left behind"))


def _disturb(drawn: DrawnJob, run: RunFolder, process: subprocess.Popen[bytes]) -> int:
    """Stops or kills a run once it has done some steps; the exit status that follows."""
    if drawn.cut == "steps":
        return 0
    end_s = time.monotonic() + LIMIT_S
    while steps_done(run) < drawn.cut_step and process.poll() is None:
        if time.monotonic() > end_s:
            raise Wrong("the run to be cut does not begin")
        time.sleep(0.002)
    if drawn.cut == "stop":
        process.send_signal(signal.SIGINT)
        return SAVED_NOT_FINISHED
    ranks = ranks_of(run)
    if ranks:
        os.kill(random.Random(drawn.seed).choice(sorted(ranks.values())), signal.SIGKILL)
    return RANK_FAILED


# ---- judging ------------------------------------------------------------------------------------


def require(holds: bool, ran: _Ran) -> None:
    if not holds:
        raise Wrong(f"status {ran.status}\n{ran.err[-3000:]}")


def refusal_of(ran: _Ran, run: RunFolder) -> str:
    """The message of a refused job: one, with its fix, and nothing left behind."""
    lines = [line for line in ran.err.splitlines() if not line.startswith("tokenise")]
    require(not run.path.exists(), ran)
    require(len(lines) >= 1 and lines[0].startswith("error: "), ran)
    require("Traceback" not in ran.err and sum("fix:" in line for line in lines) <= 1, ran)
    return "\n".join(lines)


def _check_report(run: RunFolder, drawn: DrawnJob) -> None:
    """The run has come to its end inside what was proved, and predicted itself."""
    report = json.loads(run.report.read_text())
    if report["steps"]["done"] != drawn.setting.steps:
        raise Wrong(f"{report['steps']}")
    if drawn.calibrate and not report["step_time_s"]["predicted"] > 0:
        raise Wrong("nothing was predicted")
    for rank in report["memory"]:
        for name in ("ledger_peak_bytes", "allocated_peak_bytes"):
            if rank[name] is not None and not 0 < rank[name] <= rank["bound_bytes"]:
                raise Wrong(f"rank {rank['rank']}: {name} {rank[name]} of {rank['bound_bytes']}")


def _check_same(whole: RunFolder, cut: RunFolder) -> None:
    """The same losses and the same last checkpoint, bit by bit."""
    losses = [[row["loss_bits"] for row in run.read_metrics()] for run in (whole, cut)]
    if losses[0] != losses[1]:
        raise Wrong(f"other losses than the uninterrupted run:\n{losses[0]}\n{losses[1]}")
    assert_same_end(whole, cut)


def _check_sibling(setting: Setting, whole: RunFolder, folder: Path) -> None:
    """Another schedule of the same assignment has the same bits, unless it is refused."""
    beside = folder / "sibling"
    job = write_job(beside, replace(setting, files=("../text.txt",)))
    run = RunFolder(beside / "run")
    plan = plan_options(beside, setting)
    ran = ratrain(folder, "train", job, "--run", run.path, "--no-calibrate", *plan)
    if ran.status in REFUSED:
        refusal_of(ran, run)
        return
    require(ran.status == 0, ran)
    _check_same(whole, run)


def _check_moved(setting: Setting, step: int, whole: RunFolder, folder: Path) -> None:
    """Another layout resumes from a checkpoint of the whole run, with the same losses."""
    moved = folder / "moved"
    job = write_job(moved, replace(setting, files=("../text.txt",)))
    run = RunFolder(moved / "run")
    plan = plan_options(moved, setting)
    ran = ratrain(folder, "train", job, "--run", run.path, "--prepare-only", *plan)
    if setting.unlike and ran.status in REFUSED:
        refusal_of(ran, run)
        return
    require(ran.status == 0, ran)
    saved = [checkpoint for checkpoint in listed(whole.checkpoints) if checkpoint.step >= step]
    shutil.copytree(str(saved[0].path), run.checkpoints / saved[0].path.name)
    ran = ratrain(folder, "train", job, "--run", run.path, "--resume", "--no-calibrate")
    require(ran.status == 0, ran)
    ours = {row["step"]: row["loss"] for row in run.read_metrics()}
    theirs = {row["step"]: row["loss"] for row in whole.read_metrics() if row["step"] in ours}
    computed = (setting.dtype, *dict(setting.dtypes).values())
    tolerance = narrowest_tolerance(*computed, setting.gradient_wire, setting.boundary_wire)
    if len(ours) != setting.steps - saved[0].step or ours != pytest.approx(theirs, rel=tolerance):
        raise Wrong(f"other losses on another layout:\n{ours}\n{theirs}")


TOLERANCE = {"fp32": 1e-5, "bf16": 0.02, "fp16": 0.02}
"""Relative, of each step's loss, by the narrowest dtype that a run computes or sends in."""


def narrowest_tolerance(*dtypes: str | None) -> float:
    return max(TOLERANCE[dtype] for dtype in dtypes if dtype)


def _compare_to_plain(run: RunFolder, job: JobSpec, cache: Path) -> bool:
    """Holds losses to one process of plain torch, where that computes the model."""
    spec = job.model.spec
    if spec.family == "baichuan":
        return False
    losses = plainly_trained(job, cache)
    ours = [row["loss"] for row in run.read_metrics()]
    schedule = job.schedule
    computed = (schedule.dtype, *schedule.dtypes.values())
    tolerance = narrowest_tolerance(*computed, schedule.gradient_wire, schedule.boundary_wire)
    if ours != pytest.approx(losses, rel=tolerance):
        raise Wrong(f"other losses than plain torch:\n{ours}\n{losses}")
    return True


def plainly_trained(job: JobSpec, cache: Path) -> list[float]:
    """The losses of the reference, on the job's own data."""
    spec, samples = job.model.spec, data_of_job(job, cache=cache).samples
    leaves: dict[str, Tensor] = {}
    for unit in unit_names(spec):
        layout = unit_layout(spec, unit)
        flat = initial_range(spec, unit, layout, 0, layout.size, job.train.seed)
        for parameter in layout.parameters:
            leaves[f"{unit}.{parameter.name}"] = (
                flat[parameter.offset : parameter.end].view(parameter.shape).clone()
            )
    batches: list[tuple[Tensor, Tensor]] = []
    for step in range(job.train.steps):
        tokens, targets = samples.batch(step, 0, job.batch.sequences)
        batches.append((torch.from_numpy(tokens), torch.from_numpy(targets)))
    losses, _ = plain_losses(spec, leaves, job.train, batches)
    return losses
