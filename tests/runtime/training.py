"""A whole run inside a crew, over synthetic samples: what it returned, bit by bit."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from crew import Crew, joined, network_among
from runs_made import Setting, beginning, write_job, write_plan
from torch import Tensor

from ratrain.checkpoint.reader import open_checkpoint
from ratrain.describe.job import JobSpec
from ratrain.describe.model import ModelSpec
from ratrain.devices import CPU, Device
from ratrain.models.division import Division
from ratrain.models.parameters import UnitParameters
from ratrain.models.shapes import unit_layout
from ratrain.plan.layout.jobs import load_job
from ratrain.program.actions import Kind
from ratrain.program.program import Program
from ratrain.runtime.rank.beginning import config_hash, survived
from ratrain.runtime.rank.control import Round
from ratrain.runtime.rank.joining.connections import connect_all
from ratrain.runtime.rank.joining.membership import Membership
from ratrain.runtime.rank.joining.rendezvous import listen, told_by_all
from ratrain.runtime.rank.live import NOTHING, LiveReader, live_states
from ratrain.runtime.rank.metrics import loss_of
from ratrain.runtime.rank.saver import CheckpointSaver, SaveSpec
from ratrain.runtime.rank.shares import asked_prompts
from ratrain.runtime.rank.tiers import tiers_of
from ratrain.runtime.rank.trainer import Begin, RankRun
from ratrain.runtime.rank.validation import HeldOutShare
from ratrain.runtime.run.prepare import RunRequest, prepare_run, write_run
from ratrain.runtime.run.reports.moved import against_bill
from ratrain.runtime.run_folder import RunFolder, RunSpec, share_of
from ratrain.runtime.seats import Seats, parts_of_units
from ratrain.runtime.step.allocator import memory_of
from ratrain.runtime.step.batches import ReplicaBatches
from ratrain.runtime.step.below import Tier
from ratrain.runtime.step.frozen import FROZEN
from ratrain.runtime.step.network.links import routes_of
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.schedule import LocalOp
from ratrain.runtime.step.states import RankStates
from ratrain.runtime.step.tensor_parts import StoredParts, stored_degrees, stored_sizes
from ratrain.runtime.step.unit_state import UnitState
from ratrain.simulate.moved import moved_by

Floats = npt.NDArray[np.float32]
Buffers = tuple[Floats, ...]
"""Weights and the optimizer's states: of AdamW, two moments."""


Texts = tuple[int, tuple[tuple[int, ...], ...]]
"""After which step, and the tokens that followed each prompt."""


@dataclass(frozen=True)
class RankResult:
    """What one rank has after a run: of each unit its own parts and where they begin, and the
    view that compute reads, where there is one of the whole unit."""

    losses: list[str]
    norms: list[float]
    parts: dict[str, list[tuple[int, Buffers]]]
    views: dict[str, Floats]
    dtype: str  # of the views
    loss_scale: float
    ledger_peak_bytes: int
    host_peak_bytes: int
    validated: list[tuple[int, str, int]]  # after which step, the bits of the loss, its tokens
    sampled: list[Texts]
    sent_bytes: int  # by the network, once the run was complete; 0 where it does not count
    moved: list[dict[str, Any]]  # of each tier, against the program's bill
    agreed: dict[str, tuple[int, Floats]]  # of an outer step, as `parts`: its weights


@dataclass(frozen=True)
class Result:
    """A run's losses (their bits), gradient norms, and units' buffers."""

    losses: list[str]
    norms: list[float]
    units: dict[str, Buffers]
    loss_scales: set[float]
    ledger_peaks: list[int]
    bounds: list[int]  # the verifier's, of each rank
    host_peaks: list[int]
    host_bounds: list[int]
    validated: list[tuple[int, str, int]]
    sampled: list[Texts]
    sent_bytes: list[int]  # by each rank
    moved: list[dict[str, Any]]  # of each rank and tier, against the program's bill

    @property
    def loss_values(self) -> list[float]:
        return [float.fromhex(loss) for loss in self.losses]

    def differences(self, other: Result) -> list[str]:
        """What is not the same, bit by bit."""
        differing = [] if self.losses == other.losses else [f"losses {self.losses} {other.losses}"]
        for unit in sorted({*self.units, *other.units}):
            for kind, a, b in zip("wmv", self.units[unit], other.units[unit], strict=True):
                if a.tobytes() != b.tobytes():
                    differing.append(f"{unit}/{kind}: by {abs(a - b).max():g}")
        return differing


def train(
    crew: Crew,
    setting: Setting,
    folder: Path,
    delays: int | None = None,
    checkpoint: Path | None = None,
    *,
    saves: bool = False,
    make_device: Callable[[int], Device] | None = None,
    live: bool = False,
) -> Result:
    """A run of a setting. `delays`: a seed of sleeps before ops, on every lane of every rank.
    `checkpoint`: where it begins. `saves`: it saves as its job says, in `folder`/run.
    `make_device`: a rank's device; left out, the CPU. `live`: it begins with what the crew's last
    run has left in its members."""
    job = write_job(folder, replace(setting, files=("none.txt",)))
    plan = write_plan(folder, setting)
    prepared = prepare_run(RunRequest(job, threads=1, calibrate=False, plan_path=plan))
    write_run(prepared, RunFolder(folder / "run"))
    device = (make_device,) if make_device or live else ()
    more = (*device, *((True,) if live else ()))
    ranks: list[RankResult] = crew.ask(
        setting.world_size, train_rank, setting, folder, delays, checkpoint, saves, *more
    )
    assert all(rank.losses == ranks[0].losses for rank in ranks)
    assert all(rank.validated == ranks[0].validated for rank in ranks)
    assert all(rank.sampled == ranks[0].sampled for rank in ranks)
    of_rank = {bound.rank: bound.total_bytes for bound in prepared.verdict.bounds}
    return Result(
        ranks[0].losses,
        ranks[0].norms,
        _joined(ranks, prepared.spec.seats, prepared.case.job),
        {rank.loss_scale for rank in ranks},
        [rank.ledger_peak_bytes for rank in ranks],
        [of_rank[seat.program_rank] for seat in prepared.spec.seats.all()],
        [rank.host_peak_bytes for rank in ranks],
        [
            bound.total_bytes
            for seat in prepared.spec.seats.all()
            for bound in prepared.verdict.lower_bounds
            if bound.rank == seat.program_rank
        ],
        ranks[0].validated,
        ranks[0].sampled,
        [rank.sent_bytes for rank in ranks],
        [row for rank in ranks for row in rank.moved],
    )


def _joined(ranks: list[RankResult], seats: Seats, job: JobSpec) -> dict[str, Buffers]:
    """Units put together from their owners' parts. What several ranks hold must be the same on all
    of them, bit by bit: views of one dtype, and what every rank of a tensor group has whole."""
    spec, units = job.model.spec, dict[str, Buffers]()
    kinds = 1 + len(job.train.rule.states)
    for name in dict.fromkeys(name for rank in ranks for name in rank.parts):
        size = unit_layout(spec, name).size
        filled = [(np.zeros(size, np.float32), np.zeros(size, bool)) for _ in range(kinds)]
        views = {rank.dtype: (np.zeros(size, np.float32), np.zeros(size, bool)) for rank in ranks}
        for seat, rank in zip(seats.all(), ranks, strict=True):
            layout = unit_layout(spec, name, seat.division)
            for begin, buffers in rank.parts.get(name, []):
                for (whole, known), values in zip(filled, buffers, strict=True):
                    _place(spec, name, layout, begin, values, whole, known)
            if name in rank.views:
                _place(spec, name, layout, 0, rank.views[name][: layout.size], *views[rank.dtype])
        for parameter in unit_layout(spec, name).parameters:
            assert all(known[parameter.offset : parameter.end].all() for _, known in filled)
        units[name] = tuple(whole for whole, _ in filled)
    return units


def _place(
    spec: ModelSpec,
    name: str,
    layout: UnitParameters,
    begin: int,
    values: Floats,
    whole: Floats,
    known: npt.NDArray[np.bool_],
) -> None:
    """Writes a piece of a rank's buffer to where the model has it; what is known already must be
    the same."""
    for parameter, low, high in layout.overlaps(begin, begin + len(values)):
        in_model = unit_layout(spec, name).by_name[parameter.name]
        places = np.arange(in_model.offset, in_model.end).reshape(in_model.shape)
        at = places[parameter.window].reshape(-1)[low:high]
        piece = values[parameter.offset + low - begin :][: high - low]
        again = known[at]
        assert whole[at][again].tobytes() == piece[again].tobytes(), f"other copies of {name}"
        whole[at], known[at] = piece, True


def train_rank(
    rank: int,
    _world_size: int,
    setting: Setting,
    folder: Path,
    delays: int | None,
    checkpoint: Path | None = None,
    saves: bool = False,
    make_device: Callable[[int], Device] | None = None,
    live: bool = False,
) -> RankResult:
    """One rank of `train`."""
    run_folder = RunFolder(folder / "run")
    spec, program = run_folder.read_spec(), run_folder.read_program()
    seat, device = spec.seats.seat(rank), CPU if make_device is None else make_device(rank)
    with tiers_of(
        program, seat, device, lambda: folder / "tier", "run", timeout_s=60, say=lambda _: None
    ) as tiers:
        return _train_rank(
            rank, setting, folder, delays, checkpoint, saves, make_device, tiers, live
        )


def _train_rank(
    rank: int,
    setting: Setting,
    folder: Path,
    delays: int | None,
    checkpoint: Path | None,
    saves: bool,
    make_device: Callable[[int], Device] | None,
    tiers: Mapping[str, Tier],
    live: bool,
) -> RankResult:
    global _kept
    run_folder = RunFolder(folder / "run")
    spec, program = run_folder.read_spec(), run_folder.read_program()
    job = load_job(spec.job_path)
    seat, device = spec.seats.seat(rank), CPU if make_device is None else make_device(rank)
    begins, share = share_of(spec, program.setup, seat.data)
    size, first = spec.micro_batch_of(seat.data), setting.first + begins
    losses: list[str] = []
    norms: list[float] = []
    validated: list[tuple[int, str, int]] = []
    texts: list[Texts] = []
    held_out = HeldOutShare(
        ReplicaBatches(setting.held_out_samples, begins, share, size, device.place),
        setting.held_out_batches,
    )

    def heard(_step: int, reports: Round) -> None:
        losses.append(loss_of(reports).hex())

    reader: LiveReader | None = None
    if live:
        begin, reader = _survived_begin(job, program, spec, rank, setting.timeout_s)
    else:
        begin = _begin(job, seat.division, checkpoint)
    network = network_among(
        spec.seats,
        seat,
        routes_of(program, spec.seats),
        setting.network if make_device is None or setting.network == "direct" else "staged",
        timeout_s=setting.timeout_s,
        hosts=spec.hosts,
        device=device,
    )
    run = RankRun(
        job,
        program,
        spec,
        seat,
        network,
        ReplicaBatches(setting.samples, first, share, size, device.place),
        begin,
        device=device,
        on_round=heard,
        stop_asked=lambda: False,
        allocator=memory_of(device),
        held_out=held_out if setting.validate_every else None,
        validated=lambda step, validation: validated.append(
            (step, validation.loss.hex(), validation.tokens)
        ),
        prompts=asked_prompts(job, spec),
        sampled=lambda step, sampled: texts.append((step, sampled.tokens)),
        tiers=tiers,
    )
    _watch(run, norms, delays if delays is None else delays * 1000 + rank)
    if reader is not None:
        reader.finish()
    run.complete()
    if saves:
        run.save_with(_saver(run_folder.path, job, program, spec.seats, rank, run, network))
    began_bytes = network.sent_bytes or 0
    run.run()
    _kept = run.kept()
    return RankResult(
        losses,
        norms,
        {unit.name: _parts(run.states, unit) for unit in run.states.units},
        {unit.name: _numpy(unit.view) for unit in run.states.units if unit.view is not None},
        str(run.states.dtype),
        run.ops.clipping.scale,
        run.ledger.peak.size_bytes,
        sum(ledger.peak.size_bytes for ledger in run.ledgers.others.values()),
        validated,
        texts,
        (network.sent_bytes or 0) - began_bytes,
        list(against_bill(run.memory()["moved"], moved_by(program.table), seat.program_rank)),
        {
            unit.name: (unit.parts[0].begin, _numpy(unit.outer.weights))
            for unit in run.states.units
            if unit.outer is not None
        },
    )


_kept = NOTHING
"""In a member of a crew: what it holds since its last run."""


def forget(_rank: int, _world_size: int) -> None:
    """A member of a crew holds nothing any more."""
    global _kept
    _kept = NOTHING


def _survived_begin(
    job: JobSpec, program: Program, spec: RunSpec, rank: int, timeout_s: float
) -> tuple[Begin, LiveReader]:
    """Where a run begins that has the states of the members' last one, and what reads them."""
    met = joined()
    told = told_by_all(met.everybody(_kept.words(None)))
    live = live_states(job.model.spec, program.setup, spec.seats, told)
    assert live is not None, "the members do not hold enough"
    listener = listen("127.0.0.1")
    ports = met.everybody(str(listener.getsockname()[1]))
    book = tuple(("127.0.0.1", int(port)) for port in ports)
    apart = replace(met, listener=listener, book=book)
    reader = LiveReader(live, rank, _kept, connect_all(apart, live.needs(rank), timeout_s))
    return survived(job, spec, spec.seats.seat(rank).division, live, reader), reader


def _saver(
    folder: Path,
    job: JobSpec,
    program: Program,
    seats: Seats,
    rank: int,
    run: RankRun,
    network: Network,
) -> CheckpointSaver:
    spec = job.model.spec
    alone = (0,) * seats.world_size
    return CheckpointSaver(
        SaveSpec(
            folder,
            job.checkpoint.every,
            0,
            job.checkpoint.keep,
            spec.name,
            config_hash(spec),
            stored_sizes(spec, parts_of_units(program.setup)),
            job.train.rule,
            {},
        ),
        rank,
        Membership(("here",) * len(alone), alone, alone),
        run.states,
        network,
        state_after=run.ops.clipping.state_after,
        is_last=run.is_last,
        require_owned=lambda: None,
        saved=lambda _: None,
    )


def _begin(job: JobSpec, division: Division, checkpoint: Path | None) -> Begin:
    if checkpoint is None:
        return Begin(0, partial(beginning, job.model.spec, division=division), job.train.loss_scale)
    saved, spec = open_checkpoint(checkpoint), job.model.spec
    degrees = stored_degrees(spec, saved.manifest.meta.units)
    parts = StoredParts(
        spec, degrees, lambda *element_range: torch.from_numpy(saved.read_range(*element_range))
    )
    return Begin(
        saved.manifest.meta.step,
        lambda unit, kind, low, high: (
            beginning(spec, unit, kind, low, high, division)
            if kind == FROZEN
            else parts.read_range(unit, division, kind, low, high)
        ),
        job.train.loss_scale,
    )


def _parts(states: RankStates, unit: UnitState) -> list[tuple[int, Buffers]]:
    """Where each of a rank's parts begins, and the part, without what only fills the buffer up."""
    parts: list[tuple[int, Buffers]] = []
    with states.away["optimizer"].present(unit.local.index):
        for part, share in product(unit.parts, unit.shares):
            end = min(share.stop, unit.unit.layout.size)
            if part.begin <= share.start < min(end, part.end):
                at = slice(share.start - part.begin, end - part.begin)
                buffers = (part.weights, *(state.values() for state in part.states))
                parts.append((share.start, tuple(_numpy(buffer[at]) for buffer in buffers)))
    return parts


def _watch(run: RankRun, norms: list[float], seed: int | None) -> None:
    """Keeps the gradient norms, and sleeps before ops at random where a seed is given."""
    execute = run.ops.execute
    chance = random.Random(seed)

    def watched(op: LocalOp, step: int) -> None:
        if seed is not None and chance.random() < 0.3:
            time.sleep(chance.choice((0.0, 0.0005, 0.002, 0.006)))
        execute(op, step)
        if op.kind is Kind.ClipNorm:
            norms.append(run.ops.gradient_norm[step])

    run.ops.execute = watched


def _numpy(tensor: Tensor) -> Floats:
    return tensor.detach().float().cpu().numpy().copy()
