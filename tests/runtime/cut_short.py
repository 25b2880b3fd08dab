"""Runs whose ranks are threads of this process, one of which ends amid a step; and what the others
then hold together."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

import torch
from in_one_process import networks
from runs_made import Setting, beginning, write_job, write_plan
from torch import Tensor

from ratrain.devices import CPU
from ratrain.errors import PeerDown
from ratrain.plan import load_job
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.readers.json import parse_json
from ratrain.runtime.rank.live import Kept, LiveStates, live_states
from ratrain.runtime.rank.trainer import Begin, RankRun
from ratrain.runtime.run.prepare import PreparedRun, RunRequest, prepare_run
from ratrain.runtime.run_folder import share_of
from ratrain.runtime.step.allocator import memory_of
from ratrain.runtime.step.batches import ReplicaBatches
from ratrain.runtime.step.network.links import routes_of
from ratrain.runtime.step.network.socket_network import SocketNetwork
from ratrain.runtime.step.schedule import LocalOp
from ratrain.runtime.step.unit_state import UnitState

States = dict[tuple[int, str, str], Tensor]
"""By version, unit and kind of state: all elements, in fp32."""


class Lost(Exception):
    """A rank ends here."""


@dataclass(frozen=True)
class Cut:
    """`rank` ends in a step, ahead of or behind the op of a number. `half`: in the Commit of rank
    0, once it has answered rank 1, and nobody else."""

    rank: int
    step: int
    op: int
    behind: bool = False
    half: bool = False


@cache
def prepared(setting: Setting) -> PreparedRun:
    folder = Path(mkdtemp(prefix="ratrain-cut-"))
    job = write_job(folder, replace(setting, files=("none.txt",)))
    plan = write_plan(folder, setting)
    return prepare_run(RunRequest(job, threads=1, calibrate=False, plan_path=plan))


def program_of(setting: Setting) -> Program:
    program = prepared(setting).proved.program
    assert isinstance(program, Program)
    return program


@dataclass
class Ended:
    """How one rank's run ended. `kept`: what it holds then; None: it was lost, or did all."""

    run: RankRun
    kept: Kept | None = None
    commits: int = 0  # that had ended


def run_cut(setting: Setting, cut: Cut | None) -> tuple[list[Ended], States]:
    """How each rank ended, and every version of every state that any has made."""
    of_run = prepared(setting)
    spec, program = of_run.spec, program_of(setting)
    routes = routes_of(program, spec.seats)
    hosts = spec.hosts or (0,) * spec.seats.world_size
    crowd = networks(spec.seats, routes, hosts)
    made: States = {}
    lock = threading.Lock()
    ends = [Ended(_rank_run(setting, of_run, rank, crowd[rank])) for rank in range(len(crowd))]

    def keep(unit: UnitState) -> None:
        part = unit.part
        end = min(part.end, unit.unit.layout.size)
        buffers = [part.weights, *(state.values() for state in part.states)]
        with lock:
            for kind, values in zip(("weights", "m", "v"), buffers, strict=True):
                whole = made.setdefault(
                    (unit.version, unit.name, kind),
                    torch.full((unit.unit.layout.size,), float("nan")),
                )
                whole[part.begin : end] = values[: end - part.begin]

    def watched(end: Ended, rank: int, execute: Callable[[LocalOp, int], None]) -> None:
        def watch(op: LocalOp, step: int) -> None:
            here = cut is not None and (rank, step, op.number) == (cut.rank, cut.step, cut.op)
            if here and cut is not None and not cut.behind:
                if cut.half:
                    _answer_one(crowd[rank])
                raise Lost
            execute(op, step)
            if op.kind is Kind.UpdateShard:
                keep(end.run.states.units[op.unit])
            end.commits += op.kind is Kind.Commit
            if here:
                raise Lost

        end.run.ops.execute = watch

    def work(rank: int) -> None:
        end = ends[rank]
        try:
            end.run.complete()
            for unit in end.run.states.units:
                keep(unit)
            end.run.run()
        except (Lost, PeerDown):
            crowd[rank].hang_up()
            if cut is not None and rank != cut.rank:
                assert end.run.call_back()
                end.kept = end.run.kept()

    for rank, end in enumerate(ends):
        watched(end, rank, end.run.ops.execute)
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(crowd))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends, made


def _answer_one(network: SocketNetwork) -> None:
    """Rank 0's part in a Commit, as far as its answer to rank 1."""
    others = network._broadcasts[Lane.UPDATE]._connections  # pyright: ignore[reportPrivateUsage]
    words = [other.receive_bytes(64) for other in others.values()]
    others[1].send(words[0])


def _rank_run(setting: Setting, of_run: PreparedRun, rank: int, network: SocketNetwork) -> RankRun:
    spec, program = of_run.spec, program_of(setting)
    job, seat = load_job(spec.job_path), spec.seats.seat(rank)
    begins, share = share_of(spec, program.setup, seat.data)
    size = spec.micro_batch_of(seat.data)
    source = partial(beginning, job.model.spec, division=seat.division)
    return RankRun(
        job,
        program,
        spec,
        seat,
        network,
        ReplicaBatches(setting.samples, begins, share, size, CPU.place),
        Begin(0, source, job.train.loss_scale),
        device=CPU,
        on_round=lambda *_: None,
        stop_asked=lambda: False,
        allocator=memory_of(CPU),
        tiers={},
    )


def agreed(after: Setting, ends: list[Ended]) -> tuple[LiveStates | None, list[Kept]]:
    """What the survivors go on from, as the ranks of another setting, and what they hold of it."""
    of_run = prepared(after)
    kept = [end.kept for end in ends if end.kept is not None]
    told = [parse_json(each.words(None).encode(), "a survivor")[0] for each in kept]
    model = load_job(of_run.spec.job_path).model.spec
    live = live_states(model, of_run.proved.program.setup, of_run.spec.seats, told)
    return live, [each.at(live.step) for each in kept] if live is not None else kept


def read_whole(live: LiveStates, kept: list[Kept], kinds: Mapping[str, str]) -> States:
    """All that rank 0 would read; `kinds`: what a checkpoint calls each kind of state."""
    whole: States = {}
    sizes: dict[str, int] = defaultdict(int)
    copies = [copy for copy in live.copies if copy.target == 0]
    for copy in copies:
        sizes[copy.needed.name] = max(sizes[copy.needed.name], copy.needed.columns[1])
    for copy in copies:
        begin, end = copy.needed.columns
        for short, kind in kinds.items():
            key = live.step, copy.needed.name, short
            values = whole.setdefault(key, torch.full((sizes[copy.needed.name],), float("nan")))
            values[begin:end] = kept[copy.source].read(copy.needed.name, kind, begin, end)
    return whole


def ops_of(setting: Setting, rank: int, *kinds: Kind) -> list[int]:
    """The numbers of a rank's ops of some kinds; of all, where none are given."""
    of_run = prepared(setting)
    network = networks(
        of_run.spec.seats, routes_of(program_of(setting), of_run.spec.seats), (0,) * 16
    )[rank]
    ops = _rank_run(setting, of_run, rank, network).schedule.ops
    return [op.number for op in ops if not kinds or op.kind in kinds]
