"""Loss by tokens of methods that send less between sites: of the mean of all sites' weights, on
held-out text. `python benchmarks/sites/losses.py [--steps 160] [--seeds 3] [--into losses.json]
[--period 8] [--seconds NAME=0.135 ...]`: with the seconds of a step (`sites.py --model 0.4M`) also
when each method's mean of seeds first had the loss that DDP ended with, and those on the way.

Two sites on one thread of one process, by each method's rule in plain torch: the rules to which
`tests/runtime/test_site_runs.py` holds real runs. Text, batches, initial weights, AdamW and the
schedule of rates are the same for all. Each learning rate is tried with the first seed, the best
one with the others. A file of results is gone on with.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

import numpy as np
import torch
from plain_model import stage_of  # pyright: ignore[reportMissingImports]
from sites import CLUSTER, MODELS, PERIOD, ratrain
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ratrain.corpus.prepare import prepare
from ratrain.corpus.samples import Samples
from ratrain.describe.job import JobSpec
from ratrain.models.shapes import unit_names
from ratrain.plan import load_job
from ratrain.runtime.step.optimizer import learning_rate

SITES, EVERY, HELD_OUT = 2, 40, 128
LENGTH, BATCH = MODELS["0.4M"].length, MODELS["0.4M"].batch
RATES = (2e-3, 4e-3, 1e-3, 8e-3, 5e-4)
JOB = f"""
[model]
name = "config.json"
sequence_length = {LENGTH}
[cluster]
name = "cluster.toml"
devices = {SITES}
[batch]
sequences = {SITES * BATCH}
micro_batch = {BATCH}
[schedule]
dtype = "fp32"
[train]
steps = 160
warmup_steps = 20
[data]
files = ["text.jsonl"]
validation = ["held-out.jsonl"]
tokenizer = "bytes"
"""
UNITS = 5

Turn = Callable[[int, int, int], bool]
"""(unit in the order of backward, step, steps of a period) -> whether it has its turn."""


@dataclass(frozen=True)
class Method:
    """Which units meet in a step, ahead of it or behind; whether moments do too; an outer step,
    and in what a site's change since the last one is sent."""

    turn: Turn
    behind: bool = False
    moments: bool = False
    outer: tuple[float, float] | None = None  # rate and momentum
    wire: torch.dtype = torch.float32


def by_turns(unit: int, step: int, period: int) -> bool:
    """Each in a step of its own, as far apart as can be."""
    return unit * (period - 1) // (UNITS - 1) == step % period


def at_once(_unit: int, step: int, period: int) -> bool:
    return step % period == 0


def last(_unit: int, step: int, period: int) -> bool:
    return step % period == period - 1


METHODS: dict[str, Method | None] = {
    "every step (DDP)": None,
    "never": Method(lambda _unit, _step, _period: False),
    "LocalSGD, moments apart": Method(last, behind=True),
    "`local-sgd`, with moments": Method(last, behind=True, moments=True),
    "`dreamddp`, `early-start`": Method(by_turns),
    "`early-start` in bf16": Method(by_turns, outer=(1.0, 0.0), wire=torch.bfloat16),
    "DiLoCo 0.7, 0.9": Method(at_once, outer=(0.7, 0.9)),
    "DiLoCo 0.4, 0.8": Method(at_once, outer=(0.4, 0.8)),
    "DiLoCo 0.6, 0.9": Method(at_once, outer=(0.6, 0.9)),
    "torchft's DiLoCo 0.7, 0.9": Method(last, behind=True, outer=(0.7, 0.9)),
    "torchft's DiLoCo 0.6, 0.9": Method(last, behind=True, outer=(0.6, 0.9)),
    "Streaming DiLoCo 0.6, 0.9": Method(by_turns, outer=(0.6, 0.9)),
}
"""Ours meet as a step begins, and take it with the gradient of the weights before; torchft's behind
it. `diloco_steps.py` holds the outer step itself to torchft's."""


class Site:
    """A model, by units in the order of backward, and its optimizer."""

    def __init__(self, job: JobSpec) -> None:
        spec = job.model.spec
        self.module = stage_of(
            spec, unit_names(spec), LENGTH, seed=job.train.seed, recovery=False, emulation=None
        )
        self.units = [list(unit.parameters()) for unit in reversed(self.module.units)]
        parameters = list(self.module.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        keys = job.train.keys
        self.optimizer = torch.optim.AdamW(
            groups, betas=(keys.beta1, keys.beta2), eps=keys.epsilon, foreach=True
        )

    def learn(self, samples: Samples, step: int, first: int, count: int) -> None:
        """The gradient of some of a step's sequences."""
        batch = samples.batch(step, first, count)
        loss_on(self.module, batch.tokens, batch.targets).backward()

    def update(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()


def loss_on(module: nn.Module, tokens: object, targets: object) -> Tensor:
    x, y = torch.as_tensor(tokens), torch.as_tensor(targets)
    return cross_entropy(module(x).flatten(0, 1), y.flatten())


class Outer:
    """Nesterov's step by what the mean has gained since the last one, of one parameter."""

    def __init__(self, weights: Tensor, rate: float, momentum: float) -> None:
        self.weights, self.rate, self.momentum = weights.clone(), rate, momentum
        self.velocity = torch.zeros_like(weights)

    def goes_on(self, mean: Tensor) -> Tensor:
        gradient = self.weights - mean
        self.velocity.mul_(self.momentum).add_(gradient)
        self.weights -= self.rate * (gradient + self.momentum * self.velocity)
        return self.weights


@torch.no_grad()
def meet(sites: list[Site], unit: int, method: Method, outer: dict[tuple[int, int], Outer]) -> None:
    """A unit's weights become their mean over sites, or what an outer step makes of it."""
    for place, copies in enumerate(zip(*(site.units[unit] for site in sites), strict=True)):
        if method.outer is None:
            mean = torch.stack(copies).mean(0)
        else:
            since = outer[unit, place]
            changes = [(copy - since.weights).to(method.wire).float() for copy in copies]
            mean = since.goes_on(since.weights + torch.stack(changes).mean(0))
        for copy in copies:
            copy.copy_(mean)
        if method.moments:
            states = [s.optimizer.state[p] for s, p in zip(sites, copies, strict=True)]
            for kind in ("exp_avg", "exp_avg_sq"):
                middle = torch.stack([state[kind] for state in states]).mean(0)
                for state in states:
                    state[kind].copy_(middle)


@torch.no_grad()
def held_out_loss(sites: list[Site], held_out: Samples, room: nn.Module) -> float:
    """Of the mean of all sites' weights."""
    modules = [site.module.parameters() for site in sites]
    for target, *copies in zip(room.parameters(), *modules, strict=True):
        target.copy_(torch.stack(copies).mean(0))
    batch = held_out.at(np.arange(min(HELD_OUT, held_out.count), dtype=np.int64))
    return float(loss_on(room, batch.tokens, batch.targets))


def trained(
    job: JobSpec, method: Method | None, text: Samples, held_out: Samples, period: int
) -> list[float]:
    """Losses every few steps."""
    count = 1 if method is None else SITES
    sites, room = [Site(job) for _ in range(count)], Site(job).module
    outer: dict[tuple[int, int], Outer] = {}
    if method is not None and method.outer is not None:
        outer = {
            (unit, place): Outer(parameter.detach(), *method.outer)
            for unit, parameters in enumerate(sites[0].units)
            for place, parameter in enumerate(parameters)
        }
    share, losses = SITES * BATCH // count, list[float]()
    for step in range(job.train.steps):
        for number, site in enumerate(sites):
            site.learn(text, step, number * share, share)
        rate = learning_rate(job.train, step)
        turns = [u for u in range(UNITS) if method is not None and method.turn(u, step, period)]
        if method is not None and not method.behind:
            for unit in turns:
                meet(sites, unit, method, outer)
        for site in sites:
            site.update(rate)
        if method is not None and method.behind:
            for unit in turns:
                meet(sites, unit, method, outer)
        if (step + 1) % EVERY == 0:
            losses.append(held_out_loss(sites, held_out, room))
    return losses


def prepared(folder: Path) -> tuple[JobSpec, Samples, Samples]:
    """A job, its text, and a twelfth of the documents that is held out."""
    (folder / "config.json").write_text(json.dumps(MODELS["0.4M"].config))
    (folder / "cluster.toml").write_text(CLUSTER.format(rate=100))
    (folder / "job.toml").write_text(JOB)
    ratrain(folder, "data", "--sample-text", "all.jsonl")
    lines = (folder / "all.jsonl").read_text().splitlines(keepends=True)
    kept = (line for place, line in enumerate(lines) if place % 12)
    parts: dict[str, Iterable[str]] = {"text": kept, "held-out": lines[::12]}
    for name, documents in parts.items():
        (folder / f"{name}.jsonl").write_text("".join(documents))
    job = load_job(folder / "job.toml")
    assert job.data is not None

    def samples(files: tuple[str, ...]) -> Samples:
        assert job.data is not None
        data = replace(job.data, files=files, validation=())
        store = prepare(data, folder, place="FILE", sequence_length=LENGTH).store
        return Samples(store, LENGTH, job.batch.sequences, 0, shuffle=True)

    return job, samples(job.data.files), samples(job.data.validation)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4 * EVERY)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--into", type=Path, default=Path("losses.json"), help="of one period")
    parser.add_argument("--period", type=int, default=PERIOD, help="steps between averages")
    parser.add_argument("--rates", type=float, nargs="+", help="those alone")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seconds", nargs="+", default=[], metavar="NAME=SECONDS")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[float]] = (
        json.loads(asked.into.read_text()) if asked.into.exists() else {}
    )

    def tried(name: str) -> list[float]:
        return [rate for rate in asked.rates or RATES if f"{name}|{rate}|0" in found]

    def best(name: str) -> float:
        return min(tried(name), key=lambda rate: found[f"{name}|{rate}|0"][-1])

    with tempfile.TemporaryDirectory(prefix="losses-") as folder:
        job, text, held_out = prepared(Path(folder))

        def run(name: str, rate: float, seed: int) -> None:
            key = f"{name}|{rate}|{seed}"
            if key in found:
                return
            train = replace(job.train, learning_rate=rate, seed=seed, steps=asked.steps)
            of_seed = replace(text, seed=seed)
            of_rate = replace(job, train=train)
            found[key] = trained(of_rate, METHODS[name], of_seed, held_out, asked.period)
            asked.into.write_text(json.dumps(found))
            print(key, " ".join(f"{loss:.3f}" for loss in found[key]), flush=True)

        for name in asked.methods:
            for rate in asked.rates or RATES:  # on, while the best is the last on its side
                if (
                    asked.rates
                    or rate in RATES[:3]
                    or best(name) in (max(tried(name)), min(tried(name)))
                ):
                    run(name, rate, 0)
        for seed in range(1, asked.seeds):
            for name in asked.methods:
                run(name, best(name), seed)
    say(asked.methods, found, best, asked.seeds)
    seconds = dict(word.rsplit("=", 1) for word in asked.seconds)
    if seconds:
        say_times(
            {
                name: (float(step_s), mean_curve(found, f"{name}|{best(name)}", asked.seeds))
                for name, step_s in seconds.items()
            }
        )


def mean_curve(found: dict[str, list[float]], run: str, seeds: int) -> list[float]:
    curves = [found[f"{run}|{seed}"] for seed in range(seeds)]
    return [fmean(losses) for losses in zip(*curves, strict=True)]


def say_times(methods: dict[str, tuple[float, list[float]]]) -> None:
    """Seconds until each loss: those of the first method after a half, three quarters, and all."""
    first = next(iter(methods.values()))[1]
    wanted = [first[len(first) * part // 4 - 1] for part in (2, 3, 4)]
    print("| method | seconds a step | " + " | ".join(f"to {loss:.3f}" for loss in wanted) + " |")
    print("|---" * (len(wanted) + 2) + "|")
    for name, (step_s, curve) in methods.items():
        steps = [next((i for i, it in enumerate(curve, 1) if it <= loss), 0) for loss in wanted]
        cells = [f"{EVERY * count * step_s:.1f}" if count else "never" for count in steps]
        print(f"| {name} | {step_s} | " + " | ".join(cells) + " |")


def say(
    methods: list[str],
    found: dict[str, list[float]],
    best: Callable[[str], float],
    seeds: int,
) -> None:
    count = len(next(iter(found.values())))
    shown = sorted({max(1, count * part // 4) for part in range(1, 5)})
    print("| method | rate | " + " | ".join(f"step {EVERY * at}" for at in shown), end="")
    print(" | of the seeds | swept |")
    print("|---" * (len(shown) + 4) + "|")
    for name in methods:
        curve = mean_curve(found, f"{name}|{best(name)}", seeds)
        means = " | ".join(f"{curve[at - 1]:.3f}" for at in shown)
        ends = ", ".join(f"{found[f'{name}|{best(name)}|{s}'][-1]:.3f}" for s in range(seeds))
        swept = {rate: found.get(f"{name}|{rate}|0") for rate in sorted(RATES)}
        tried = ", ".join(f"{it[-1]:.3f} at {rate:.0e}" for rate, it in swept.items() if it)
        print(f"| {name} | {best(name):.0e} | {means} | {ends} | {tried} |")


if __name__ == "__main__":
    main()
