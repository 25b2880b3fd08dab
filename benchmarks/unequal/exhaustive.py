"""The planner's plans of unequal devices against every plan there is, on random small clusters.

    python benchmarks/unequal/exhaustive.py                       # 12 clusters of up to 5 devices
    python benchmarks/unequal/exhaustive.py --devices 8 --cases 3 --seed 7 --limit 600

Every plan: each set of replicas, of any depth, on any of the devices in any order, some idle; every
tensor degree of every stage; every cut of the layers; every share of the batch in micro-batches of
every size; every way to share states; sequence parallelism or none. One is passed over only where
its compute alone takes as long as the best plan known: a stage computes its micro-batches one after
another, and begins when the first has come through the stages before it. All others are read from a
plan file, proved and simulated. Devices of a kind stand in hosts of their own, or all in one, so
they are the same. Plans whose stages have several members, or micro-batches of unequal sizes, are
not among them; where the planner's is faster than its other ones, it is printed.

With `--limit` a cluster is given up whose plans take more seconds of processor time than that; what
was faster until then is printed all the same.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from ratrain.describe.job import Batch, JobSpec, LayoutSpec
from ratrain.errors import ProgramError, SpecError
from ratrain.plan.compute_times import times_in_layout
from ratrain.plan.enumerate import kinds_of_block
from ratrain.plan.every_plan import every_plan
from ratrain.plan.jobs import load_job
from ratrain.plan.plan_file import parse_plan
from ratrain.plan.uneven_case import UnevenCase
from ratrain.plan.uneven_read import uneven_plan
from ratrain.plan.uneven_setup import UnevenPlan, has_members
from ratrain.simulate.long import simulate_proved

WANTED = 0.01
"""How much slower than the best of all plans a found one may be."""
MODES = ((0, "local"), (1, "local"), (2, "sharded"), (3, "local"))

DEVICE = """
[[device]]
name = "{name}"
launch = "10us"
launch_source = "random"
memory_efficiency = 0.8
memory_efficiency_source = "random"

[[device.tiers]]
name = "RAM"
capacity = "4GB"
bandwidth = "{memory}GB/s"
source = "random"

[[device.rates]]
dtype = "fp32"
peak = "{rate}GFLOP/s"
gemm = "{rate}GFLOP/s"
source = "random"

[[host]]
name = "{name}"
device = "{name}"
devices = {devices}
count = {hosts}
"""

Stage = tuple[int, int]
"""A kind of device, and how many of them hold the stage."""


@dataclass(frozen=True)
class Kind:
    rate: int  # GFLOP/s
    count: int
    one_host: bool


@dataclass(frozen=True)
class Cluster:
    kinds: tuple[Kind, ...]
    link: str
    layers: int
    sequences: int

    @property
    def devices(self) -> int:
        return sum(kind.count for kind in self.kinds)

    @property
    def words(self) -> str:
        kinds = " + ".join(
            f"{kind.count} x {kind.rate}{' in a host' if kind.one_host else ''}"
            for kind in self.kinds
        )
        return f"{kinds}, {self.link}, {self.layers} layers, {self.sequences} sequences"


def random_cluster(rng: Random, most: int) -> Cluster:
    """Two or three kinds, up to so many devices."""
    rates = rng.sample([5, 10, 15, 20, 30, 40, 60], rng.choice([2, 2, 3]))
    counts = [1] * len(rates)
    for _ in range(rng.randint(1, most - len(rates))):
        counts[rng.randrange(len(counts))] += 1
    kinds = tuple(
        Kind(rate, count, count > 1 and rng.random() < 0.4)
        for rate, count in zip(rates, counts, strict=True)
    )
    link = rng.choice(["200Mbit/s", "1Gbit/s", "10Gbit/s"])
    layers = rng.choice([3, 4, 4, 5]) if most <= 5 else rng.choice([3, 4])
    return Cluster(kinds, link, layers, rng.choice([4, 6, 8]))


def write_job(folder: Path, cluster: Cluster) -> Path:
    """The job on all devices, with its files beside it."""
    text = 'name = "random"\nsource = "random"\n'
    for number, kind in enumerate(cluster.kinds):
        text += DEVICE.format(
            name=f"kind-{number}",
            rate=kind.rate,
            memory=kind.rate / 5,
            devices=kind.count if kind.one_host else 1,
            hosts=1 if kind.one_host else kind.count,
        )
    text += '\n[links.host]\nlatency = "5us"\nbandwidth = "8GB/s"\nsource = "random"\n'
    text += f'\n[links.room]\nlatency = "200us"\nbandwidth = "{cluster.link}"\n'
    text += 'shared_by = "host"\nsource = "random"\n'
    (folder / "cluster.toml").write_text(text)
    config = {
        "model_type": "llama", "_name_or_path": "random", "hidden_size": 256,
        "num_hidden_layers": cluster.layers, "num_attention_heads": 4, "num_key_value_heads": 4,
        "intermediate_size": 512, "vocab_size": 2048, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    path = folder / "job.toml"
    path.write_text(
        '[model]\nname = "config.json"\nsequence_length = 128\n'
        f'[cluster]\nname = "cluster.toml"\ndevices = {cluster.devices}\n'
        f"[batch]\nsequences = {cluster.sequences}\n"
        '[schedule]\nname = "ratrain"\ndtype = "fp32"\n'
    )
    return path


# ---- every plan ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Replica:
    """Stages with their layers, a share of the step, and the least that its compute takes."""

    stages: tuple[Stage, ...]
    layers: tuple[int, ...]
    size: int
    count: int
    least_s: float


class Every:
    """Every plan of a job whose compute alone takes less than `best_s`, which falls as plans are
    simulated."""

    def __init__(self, job: JobSpec, cluster: Cluster, best_s: float, limit_s: float) -> None:
        self.job, self.cluster, self.best_s = job, cluster, best_s
        self.simulated = self.looked_at = 0
        self.is_whole = True
        self._ends_s = time.process_time() + limit_s
        self.best_words = ""
        self.seconds = cache(self._seconds)
        self.replicas = cache(self._replicas)

    def search(self) -> None:
        """Simulates all of them, those of the least compute first, until its time is over."""
        plans: list[tuple[float, int, tuple[Replica, ...]]] = []
        for number, replicas in enumerate(self._plans()):
            plans.append((max(replica.least_s for replica in replicas), number, replicas))
            if self._is_over():
                return
        self.looked_at = len(plans)
        for least_s, _, replicas in sorted(plans):
            if least_s >= self.best_s or self._is_over():
                return
            wide = any(degree > 1 for replica in replicas for _, degree in replica.stages)
            for divided in (False, True) if wide else (False,):
                for mode in MODES if len(replicas) > 1 else MODES[:1]:
                    self._simulate(replicas, *mode, divided=divided)

    def _is_over(self) -> bool:
        self.is_whole = time.process_time() < self._ends_s
        return not self.is_whole

    def _plans(self) -> Iterator[tuple[Replica, ...]]:
        free = tuple(kind.count for kind in self.cluster.kinds)
        for shapes in _sets(self._shapes(free), free, self.cluster.sequences):
            yield from self._shared(shapes, self.cluster.sequences)

    def _shapes(self, free: tuple[int, ...]) -> list[tuple[Stage, ...]]:
        """Every order of stages on what is free."""
        shapes: list[tuple[Stage, ...]] = []

        def longer(shape: tuple[Stage, ...], left: tuple[int, ...]) -> None:
            if shape:
                shapes.append(shape)
            if len(shape) == self.cluster.layers:
                return
            for kind, count in enumerate(left):
                for degree in (1, 2, 4):
                    alone = degree == 1 or self.cluster.kinds[kind].one_host
                    if alone and degree <= count:
                        rest = (*left[:kind], count - degree, *left[kind + 1 :])
                        longer((*shape, (kind, degree)), rest)

        longer((), free)
        return shapes

    def _shared(
        self, shapes: Sequence[tuple[Stage, ...]], sequences: int
    ) -> Iterator[tuple[Replica, ...]]:
        """The batch shared out among shapes in every way, and each one's layers cut in every way.
        Equal shapes take their replicas in one order."""
        if not shapes:
            if sequences == 0:
                yield ()
            return
        for taken in range(1, sequences - len(shapes) + 2):
            for replica in self.replicas(shapes[0], taken):
                if replica.least_s < self.best_s:
                    for others in self._shared(shapes[1:], sequences - taken):
                        same = others and others[0].stages == replica.stages
                        if not same or _order(others[0]) >= _order(replica):
                            yield (replica, *others)

    def _replicas(self, shape: tuple[Stage, ...], sequences: int) -> list[Replica]:
        return [
            Replica(shape, layers, size, sequences // size,
                    self._least_s(shape, layers, size, sequences // size))
            for size in range(1, sequences + 1)
            if sequences % size == 0
            for layers in _cuts(self.cluster.layers, len(shape))
        ]  # fmt: skip

    def _least_s(
        self, shape: tuple[Stage, ...], layers: tuple[int, ...], size: int, count: int
    ) -> float:
        """What compute alone takes: each stage waits for the first micro-batch to come, and its
        gradient goes back the same way."""
        ahead_s = longest_s = 0.0
        for number, (stage, held) in enumerate(zip(shape, layers, strict=True)):
            embedding_s, layer_s, head_s = self.seconds(stage, size)
            busy_s = held * layer_s
            busy_s += embedding_s * (number == 0) + head_s * (number == len(shape) - 1)
            longest_s = max(longest_s, ahead_s + count * busy_s)
            ahead_s += busy_s
        return longest_s

    def _seconds(self, stage: Stage, size: int) -> tuple[float, float, float]:
        """Forward and backward of an embedding, a layer and a head."""
        layout = LayoutSpec(1, 1, stage[1])
        batch = Batch(self.job.batch.sequences, size)
        sized = JobSpec(self.job.model, self.job.cluster, batch, layout, self.job.schedule)
        kind = self.job.cluster.spec.device[stage[0]]
        times = [
            times_in_layout(sized, layout, block, kind, None) for block in kinds_of_block(self.job)
        ]
        embedding_s, layer_s, head_s = (time.forward_s + time.backward_s for time in times)
        return embedding_s, layer_s, head_s

    def _simulate(
        self, replicas: Sequence[Replica], sharding: int, accumulation: str, *, divided: bool
    ) -> None:
        plan = {
            **self._file(replicas, sharding, accumulation),
            **({"sequence_parallel": True} if divided else {}),
        }
        text = json.dumps(plan)
        file = str(self.job.path)
        try:
            case = UnevenCase(uneven_plan(parse_plan(text, file), file))
            proved = case.proved
        except (SpecError, ProgramError):  # no program has such replicas
            return
        self.simulated += 1
        if proved.verdict.sound:
            step_s = simulate_proved(proved, case.costs, steps=3).step_time_s
            if step_s < self.best_s:
                self.best_s, self.best_words = step_s, text

    def _file(
        self, replicas: Sequence[Replica], sharding: int, accumulation: str
    ) -> dict[str, Any]:
        firsts = [0]
        for kind in self.cluster.kinds:
            firsts.append(firsts[-1] + kind.count)
        entries: list[dict[str, Any]] = []
        for replica in replicas:
            stages: list[dict[str, Any]] = []
            for (kind, degree), layers in zip(replica.stages, replica.layers, strict=True):
                devices = range(firsts[kind], firsts[kind] + degree)
                firsts[kind] += degree
                stages.append({
                    "devices": ", ".join(map(str, devices)), "tensor": degree, "layers": layers,
                    "micro_batch": replica.size, "recovery": "none", "sharding": sharding,
                })  # fmt: skip
            entries.append({"count": 1, "micro_batches": replica.count, "stages": stages})
        return {
            "format": "ratrain plan 1",
            "model": {"name": "config.json", "sequence_length": 128},
            "cluster": {"name": "cluster.toml", "devices": self.cluster.devices},
            "sequences": self.cluster.sequences,
            "dtype": "fp32", "schedule": "ratrain", "skeleton": "1f1b", "without": [],
            "accumulation": accumulation, "recovery_buffer": 2, "prefetch": True,
            "replicas": entries,
        }  # fmt: skip


def _order(replica: Replica) -> tuple[object, ...]:
    return replica.size, replica.count, replica.layers


def _cuts(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every cut of layers into stages of one at least."""
    for ends in combinations(range(1, layers), stages - 1):
        yield tuple(b - a for a, b in zip((0, *ends), (*ends, layers), strict=True))


def _sets(
    shapes: Sequence[tuple[Stage, ...]], free: tuple[int, ...], most: int
) -> Iterator[tuple[tuple[Stage, ...], ...]]:
    """Every set of shapes, up to so many, that the free devices have room for."""
    for number, shape in enumerate(shapes):
        left = list(free)
        for kind, degree in shape:
            left[kind] -= degree
        if min(left) >= 0:
            yield (shape,)
            if most > 1:
                for others in _sets(shapes[number:], tuple(left), most - 1):
                    yield (shape, *others)


# ---- the comparison ------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """A cluster: the step of the planner's fastest plan, and of the fastest of all."""

    cluster: Cluster
    alike_s: float
    found_s: float
    best_s: float
    best: str
    looked_at: int
    simulated: int
    search_s: float
    every_s: float
    is_whole: bool  # whether every plan was looked at
    beyond_s: float  # of the fastest plan that is not among all plans; infinite where none is

    @property
    def loss(self) -> float:
        return self.found_s / self.best_s - 1


def _is_beyond(plan: UnevenPlan) -> bool:
    """Whether a plan has stages of several members, or in micro-batches of other sizes."""
    return has_members(plan) or any(replica.joined for replica in plan.replicas)


def compare(cluster: Cluster, limit_s: float = inf) -> Compared:
    """The planner on a cluster, then every plan, in so many seconds at most."""
    with tempfile.TemporaryDirectory() as folder:
        job = load_job(write_job(Path(folder), cluster))
        began = time.process_time()
        plans = every_plan(job)
        assert plans.alike is not None, "memory is ample"
        assert plans.unequal is not None, "devices are of several kinds"
        found = (*plans.unequal.trainable, *plans.unequal.others)
        steps_s = [plans.alike.best.step_s]
        steps_s += [plan.step_s for plan in found if not _is_beyond(plan.plan)]
        beyond_s = [plan.step_s for plan in found if _is_beyond(plan.plan)]
        searched = time.process_time()
        every = Every(job, cluster, min(steps_s), limit_s)
        every.search()
        return Compared(
            cluster,
            steps_s[0],
            min(steps_s),
            every.best_s,
            every.best_words,
            every.looked_at,
            every.simulated,
            searched - began,
            time.process_time() - searched,
            every.is_whole,
            min(beyond_s, default=inf),
        )


def main() -> None:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--cases", type=int, default=12)
    asked.add_argument("--devices", type=int, default=5, help="at most")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--limit", type=float, default=inf, help="seconds for each cluster")
    chosen = asked.parse_args()
    losses: list[float] = []
    for case in range(chosen.cases):
        cluster = random_cluster(Random(1000 * chosen.seed + case), chosen.devices)
        compared = compare(cluster, chosen.limit)
        over = "" if compared.is_whole else ", given up"
        beyond_s = compared.beyond_s
        beyond = f"; beyond these {beyond_s * 1e3:.1f} ms" if beyond_s < compared.found_s else ""
        print(f"{case}: {compared.cluster.words}")
        print(
            f"   alike {compared.alike_s * 1e3:.1f} ms, found {compared.found_s * 1e3:.1f} ms "
            f"({compared.search_s:.1f} s), "
            f"best of all {compared.best_s * 1e3:.1f} ms: {compared.loss:.2%} more; "
            f"{compared.looked_at:,} plans, {compared.simulated:,} simulated "
            f"({compared.every_s:.0f} s{over}){beyond}",
            flush=True,
        )
        if compared.loss > WANTED:
            print(f"   {compared.best}", flush=True)
        if compared.is_whole or compared.loss > WANTED:
            losses.append(compared.loss)
    print(distribution(losses, chosen.cases - len(losses)))


def distribution(losses: Sequence[float], given_up: int) -> str:
    """How many plans are how near the best of all."""
    exact, near, within = (
        sum(loss <= most for loss in losses) for most in (1e-5, WANTED / 10, WANTED)
    )
    worst = max(losses, default=0.0)
    return (
        f"{len(losses)} clusters: {exact} at 0.00%, {near} within {WANTED / 10:.1%}, "
        f"{within} within {WANTED:.0%}, worst: {worst:.2%} (wanted: {WANTED:.0%})"
        + (f"; {given_up} given up" if given_up else "")
    )


if __name__ == "__main__":
    main()
