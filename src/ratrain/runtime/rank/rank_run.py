"""A rank's run from its folder: everything found, put together, run, and told."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ratrain.corpus.identity import KEY, identity_of
from ratrain.corpus.of_job import data_of_job
from ratrain.corpus.samples import Samples
from ratrain.describe.job import JobSpec, load_job
from ratrain.errors import RatrainError
from ratrain.program.program import Program
from ratrain.runtime.failures import tell
from ratrain.runtime.rank.beginning import begun, config_hash
from ratrain.runtime.rank.calibrate import calibrate, gathered
from ratrain.runtime.rank.control import Round
from ratrain.runtime.rank.meeting import join
from ratrain.runtime.rank.metrics import MetricsLog
from ratrain.runtime.rank.run_costs import costs_of_run
from ratrain.runtime.rank.saver import CheckpointSaver, SaveSpec
from ratrain.runtime.rank.trackers import own_trackers
from ratrain.runtime.rank.trainer import Begin, RankRun
from ratrain.runtime.run_folder import RunFolder, RunSpec
from ratrain.runtime.seats import Seat
from ratrain.runtime.step.allocator import Allocator
from ratrain.runtime.step.batches import ReplicaBatches
from ratrain.runtime.step.network import TorchNetwork
from ratrain.runtime.step.states import DTYPES
from ratrain.runtime.step.tensor_parts import stored_sizes
from ratrain.runtime.step.tied import require_tied
from ratrain.simulate.simulate import simulate, timeline_of
from ratrain.timeline.timeline import write_timeline, write_whole

JOINING_S = 120.0
"""Processes may begin this long after each other, however impatient the job is later on."""


def run_rank(path: Path, rank: int) -> int:
    """Runs a rank; the exit status. What went wrong is in the folder's failure file."""
    folder = RunFolder(path)
    # One that an earlier attempt left would be told again.
    folder.rank_file(rank, "failure").unlink(missing_ok=True)
    try:
        _run(folder, rank)
        return 0
    except Exception as error:
        if not isinstance(error, RatrainError):
            traceback.print_exc()
        return tell(folder, rank, error)


def _run(folder: RunFolder, rank: int) -> None:
    spec = folder.read_spec()
    torch.set_num_threads(spec.threads)
    job = load_job(spec.job_path)
    program = folder.read_program()
    require_tied(job.model.spec, program)
    seat = spec.seats.seat(rank)
    device = _device(rank)
    backend = "nccl" if device.type == "cuda" else "gloo"
    backends = "gloo" if backend == "gloo" else "cpu:gloo,cuda:nccl"
    join(backends, max(job.train.timeout_s, JOINING_S))
    network = TorchNetwork(
        spec.seats,
        seat,
        backend=backend,
        timeout_s=job.train.timeout_s,
        tied=program.setup.tied,
    )
    if rank != 0:
        _train(folder, job, program, spec, seat, device, network, lambda _step, _reports: None)
        return
    budget_bytes = program.setup.budget_bytes
    with closing(MetricsLog(folder, job, budget_bytes, own_trackers(folder.path))) as log:
        _train(folder, job, program, spec, seat, device, network, log.write)


def _train(
    folder: RunFolder,
    job: JobSpec,
    program: Program,
    spec: RunSpec,
    seat: Seat,
    device: torch.device,
    network: TorchNetwork,
    heard: Callable[[int, Round], None],
) -> None:
    """All of a rank's run once its network stands; `heard` gets every control round."""
    allocator = Allocator(device)
    data = data_of_job(job)
    identity = identity_of(data.prepared)
    batches = _batches(data.samples, program, spec, seat, device)

    def built(begin: Begin) -> RankRun:
        return RankRun(
            job,
            program,
            spec,
            seat,
            network,
            batches,
            begin,
            device=device,
            heard=heard,
            stop_asked=folder.stop_request.exists,
            allocator=allocator,
        )

    run = begun(folder, job, spec, identity, built)
    dist.barrier()  # from here on a rank that is silent for the job's timeout is taken for lost
    _calibrate(folder, job, program, spec, seat, run, network, allocator)
    run.save_with(
        CheckpointSaver(
            _save_spec(job, spec, folder, identity),
            seat.world_rank,
            run.states,
            network,
            run.ops.clipping.state_after,
            run.is_last,
        )
    )
    run.run()
    body = {**run.records(), "memory": run.memory()}
    write_whole(folder.rank_file(seat.world_rank, "records"), json.dumps(body))
    network.exchange(None, torch.zeros(1))  # nobody leaves while another still talks
    dist.destroy_process_group()


def _device(rank: int) -> torch.device:
    """This rank's GPU where the machine has them, else the CPU."""
    if torch.cuda.is_available():
        number = int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count()
        torch.cuda.set_device(number)
        return torch.device("cuda", number)
    return torch.device("cpu")


def _batches(
    samples: Samples, program: Program, spec: RunSpec, seat: Seat, device: torch.device
) -> ReplicaBatches:
    """The replica's part of the global batch: replicas take it in order, by their sizes."""
    counts = [program.setup.replicas[c].micro_batches for c in spec.replica_class]
    first = sum(counts[: seat.data]) * spec.micro_batch
    own = counts[seat.data] * spec.micro_batch

    def read(step: int, begin: int, count: int) -> tuple[Any, Any]:
        batch = samples.batch(step, begin, count)
        return batch.tokens, batch.targets

    return ReplicaBatches(read, first, own, spec.micro_batch, device)


def _save_spec(
    job: JobSpec, spec: RunSpec, folder: RunFolder, identity: dict[str, Any]
) -> SaveSpec:
    return SaveSpec(
        run=folder.path,
        every=job.checkpoint.every,
        keep=job.checkpoint.keep,
        model=job.model.spec.name,
        config_hash=config_hash(job),
        unit_sizes=stored_sizes(job.model.spec, spec.tensor),
        state={KEY: identity},
    )


def _calibrate(
    folder: RunFolder,
    job: JobSpec,
    program: Program,
    spec: RunSpec,
    seat: Seat,
    run: RankRun,
    network: TorchNetwork,
    allocator: Allocator,
) -> None:
    """Times this run's ops, and leaves rank 0's prediction in the folder."""
    if not spec.calibrate:
        return
    own = calibrate(
        run.schedule,
        run.states,
        network,
        spec.seats,
        seat,
        job.train,
        run.sizes.boundary,
        job.model.spec.vocab,
        allocator,
    )
    found = gathered(own, network)
    if seat.world_rank == 0:
        element_bytes = torch.empty(0, dtype=DTYPES[spec.dtype]).element_size()
        costs = costs_of_run(program, found, element_bytes)
        simulation = simulate(program, costs)
        write_timeline(timeline_of(simulation), folder.predicted)
        body = {
            "step_time_s": simulation.step_time_s,
            "ranks": [
                {
                    "rank": times.rank,
                    "compute_s": times.compute_s,
                    "recovery_s": times.recovery_s,
                    "driving_s": times.driving_s,
                    "waiting_s": {kind.value: s for kind, s in times.waiting_s.items()},
                }
                for times in simulation.ranks
            ],
            "bound_bytes": [bound.total_bytes for bound in simulation.verdict.bounds],
            "bound_items": [bound.by_family for bound in simulation.verdict.bounds],
            "calibration": [asdict(one) for one in found],
        }
        write_whole(folder.path / "prediction.json", json.dumps(body, indent=1))
    network.exchange(None, torch.zeros(1))
