"""A rank's run from its folder: everything found, put together, run, and reported."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ratrain.checkpoint.best import read_best
from ratrain.checkpoint.folder import step_name
from ratrain.corpus.held_out import HeldOut
from ratrain.corpus.identity import KEY, identity_of
from ratrain.corpus.of_job import JobData
from ratrain.corpus.samples import Samples
from ratrain.describe.job import JobSpec
from ratrain.describe.model import config_hash
from ratrain.devices import Device, Memory
from ratrain.errors import RatrainError
from ratrain.program.program import Program
from ratrain.readers.writing import write_whole
from ratrain.runtime.environment import launch_of
from ratrain.runtime.failures import status_of, tell
from ratrain.runtime.kept_metrics import lost_steps, set_damage_aside
from ratrain.runtime.ownership import Claim
from ratrain.runtime.rank.agreement import Reading, agree, read_run
from ratrain.runtime.rank.beginning import Together, begun
from ratrain.runtime.rank.calibrate import calibrate, gathered
from ratrain.runtime.rank.company import Company
from ratrain.runtime.rank.control import Round
from ratrain.runtime.rank.devices import own_device
from ratrain.runtime.rank.meeting import Meeting, meet
from ratrain.runtime.rank.metrics import MetricsLog, StepRows, validation_row
from ratrain.runtime.rank.networks import network_of
from ratrain.runtime.rank.prediction import write_prediction
from ratrain.runtime.rank.rows import Row
from ratrain.runtime.rank.run_costs import ElementBytes
from ratrain.runtime.rank.saver import CheckpointSaver, SaveSpec
from ratrain.runtime.rank.stop import StopRequests, status_when_stopped
from ratrain.runtime.rank.tenancy import Tenancy
from ratrain.runtime.rank.trackers import own_trackers
from ratrain.runtime.rank.trainer import Begin, RankRun
from ratrain.runtime.rank.validation import HeldOutShare, Validated
from ratrain.runtime.rank.voice import Voice
from ratrain.runtime.run_folder import RunFolder, RunSpec, share_of
from ratrain.runtime.seats import Seat, parts_of_units
from ratrain.runtime.secret import read_secret
from ratrain.runtime.step.allocator import memory_of
from ratrain.runtime.step.batches import ReplicaBatches
from ratrain.runtime.step.network import Network
from ratrain.runtime.step.states import DTYPES
from ratrain.runtime.step.tensor_parts import stored_sizes

JOINING_S = 120.0
"""Processes may begin this long after each other, however impatient the job is later on."""
TOKENISING_S = 3600.0
"""One host may have to tokenise the data that another has ready."""


@dataclass(frozen=True)
class Stand:
    """What a rank knows and may do once all have agreed."""

    folder: RunFolder
    spec: RunSpec
    job: JobSpec
    program: Program
    data: JobData
    seat: Seat
    company: Company
    claim: Claim
    voice: Voice


def run_rank(path: Path, rank: int, requests: StopRequests) -> int:
    """Runs a rank; the exit status. What went wrong is in the folder's failure file. `requests` to
    stop come from signals."""
    folder = RunFolder(path)
    tenancy, voice = Tenancy(folder, rank), Voice(rank)
    if tenancy.settled:
        _forget_failure(folder, rank)
    try:
        requests.tell(lambda: voice.speaks)
        finished = _run(folder, rank, tenancy, voice, requests)
        requests.ignore()
        return 0 if finished else status_when_stopped(os.environ)
    except Exception as error:
        requests.end_at_once()
        if not isinstance(error, RatrainError):
            traceback.print_exc()
        status = tell(folder, rank, error) if tenancy.settled else status_of(error)
        voice.fail(folder, error)
        return status
    finally:
        tenancy.close()


def _forget_failure(folder: RunFolder, rank: int) -> None:
    """What an earlier attempt left would be reported again."""
    folder.rank_file(rank, "failure").unlink(missing_ok=True)


def _run(
    folder: RunFolder, rank: int, tenancy: Tenancy, voice: Voice, requests: StopRequests
) -> bool:
    """Whether the last step was done."""
    reading = read_run(folder)
    timeout_s = max(reading.job.train.timeout_s if reading.job else 0.0, JOINING_S)
    meeting = meet(launch_of(os.environ), _secret(folder, reading), timeout_s)
    meeting.circle.wait_up_to(TOKENISING_S)
    stand = _agreed(folder, rank, reading, meeting, tenancy, voice)
    meeting.circle.wait_up_to(timeout_s)
    device = own_device(stand.job, stand.spec, rank, os.environ)
    torch.set_num_threads(stand.spec.threads)
    network = network_of(
        stand.program,
        stand.spec.seats,
        stand.seat,
        device,
        meeting,
        stand.job.train.timeout_s,
        stand.spec.hosts,
    )
    rows = StepRows(stand.job, stand.program.setup.budget_bytes)
    with ExitStack() as closing:
        log: MetricsLog | None = None
        if rank == 0:
            if stand.claim.is_mine:  # else the launcher did it
                _note(stand, set_damage_aside(folder))
            log = MetricsLog(folder, own_trackers(folder.path))
            closing.callback(log.close)

        def on_round(step: int, reports: Round) -> None:
            stand.claim.require_seen()
            if log is not None or voice.speaks:
                keep_row(rows.row(step, reports))

        def keep_row(row: Row) -> None:
            if log is not None:
                log.write(row)
            voice.show(row)

        return _train(stand, device, meeting, network, on_round, keep_row, requests)


def _note(stand: Stand, lines: list[str]) -> None:
    for line in lines:
        stand.voice.say(line)
        stand.folder.add_note(line)


def _secret(folder: RunFolder, reading: Reading) -> bytes:
    """The run's secret; where it is missing because all is, what was read says so better."""
    try:
        return read_secret(folder.secret)
    except RatrainError as error:
        raise reading.problem or error from None


def _agreed(
    folder: RunFolder,
    rank: int,
    reading: Reading,
    meeting: Meeting,
    tenancy: Tenancy,
    voice: Voice,
) -> Stand:
    """What all ranks have agreed on; raises the same error on all of them where they have not."""
    reading = reading.with_data(voice.counting("tokenising"))
    company = agree(folder, reading, meeting.everybody)
    voice.stands(company.speaks(rank))
    voice.say(company.words(rank))
    spec, job, program, data = reading.spec, reading.job, reading.program, reading.data
    assert spec is not None and job is not None and program is not None and data is not None
    company = tenancy.settle(company, meeting.everybody, disks=job.checkpoint.disks, say=voice.say)
    _forget_failure(folder, rank)
    if len(company.disks) > 1:
        voice.say(
            f"{folder.path} is a separate folder on each of {len(company.disks)} disks; each holds "
            "the files of the hosts that share it"
        )
    seat = spec.seats.seat(rank)
    return Stand(folder, spec, job, program, data, seat, company, tenancy.claim, voice)


def _train(
    stand: Stand,
    device: Device,
    meeting: Meeting,
    network: Network,
    on_round: Callable[[int, Round], None],
    on_validated: Callable[[Row], None],
    requests: StopRequests,
) -> bool:
    """All of a rank's run once its network is connected; whether it did the last step. `on_round`
    gets every control round, `on_validated` what validation adds to the metrics."""
    folder, rank, voice = stand.folder, stand.seat.world_rank, stand.voice
    allocator = memory_of(device)
    if rank == 0 and stand.spec.allocator and not allocator.counts:
        voice.say("what ranks allocate is neither counted nor limited: see the report")
    identity = identity_of(stand.data.prepared)
    batches = _batches(stand, device)
    best = read_best(folder.path)

    def validated(step: int, validation: Validated) -> None:
        on_validated(validation_row(step, validation))
        saver.validated(step, validation.loss)

    def built(begin: Begin) -> RankRun:
        return RankRun(
            stand.job,
            stand.program,
            stand.spec,
            stand.seat,
            network,
            batches,
            begin,
            device=device,
            on_round=on_round,
            stop_asked=lambda: requests.asked or folder.stop_request.exists(),
            allocator=allocator,
            held_out=_held_out(stand, device),
            validated=validated,
        )

    together = Together(rank, stand.company, meeting.everybody)
    run = begun(folder, stand.job, stand.spec, identity, together, built)
    if rank == 0 and stand.claim.is_mine:
        _note(stand, lost_steps(folder, run.first_step))
    meeting.everybody("")  # from here on a rank silent for the job's timeout is taken for lost
    meeting.circle.close()
    _calibrate(stand, run, network, allocator, device)
    saver = CheckpointSaver(
        _save_spec(stand, identity),
        rank,
        stand.company,
        run.states,
        network,
        state_after=run.ops.clipping.state_after,
        is_last=run.is_last,
        require_owned=stand.claim.require,
        saved=lambda step: voice.say(f"saved {step_name(step)}"),
    )
    run.save_with(saver)
    before = best and (best.step, best.validation_loss)
    voice.begin(run.first_step, stand.spec.end_step, before)
    run.run()
    body = {**run.records(), "memory": run.memory()}
    write_whole(folder.rank_file(rank, "records"), json.dumps(body))
    network.barrier()  # no rank leaves while another still communicates
    finished = run.end_step >= stand.spec.end_step
    ending = "done" if finished else "stopped and saved"
    voice.say(f"{ending}: step {run.end_step} of {stand.spec.end_step}")
    return finished


def _batches(stand: Stand, device: Device) -> ReplicaBatches:
    """The replica's part of the global batch: replicas take it in order, by their sizes."""
    return _share(stand, stand.data.samples, device, stand.spec.data_from)


def _held_out(stand: Stand, device: Device) -> HeldOutShare | None:
    """The same of the held-out batches."""
    held_out = stand.data.held_out
    return held_out and HeldOutShare(_share(stand, held_out, device), held_out.batches)


def _share(
    stand: Stand, source: Samples | HeldOut, device: Device, data_from: int = 0
) -> ReplicaBatches:
    """A replica's part of `source`, whose first batch is that of step `data_from`."""
    spec, seat = stand.spec, stand.seat
    first, sequences = share_of(spec, stand.program.setup, seat.data)

    def read(step: int, begin: int, count: int) -> tuple[Any, Any]:
        batch = source.batch(step - data_from, begin, count)
        return batch.tokens, batch.targets

    def counted(step: int, begin: int, count: int) -> int:
        return source.counted(step - data_from, begin, count)

    size = spec.micro_batch_of(seat.data)
    return ReplicaBatches(read, first, sequences, size, device.place, count=counted)


def _save_spec(stand: Stand, identity: dict[str, Any]) -> SaveSpec:
    job = stand.job
    return SaveSpec(
        run=stand.folder.path,
        every=job.checkpoint.every,
        validated_every=job.train.validate_every,
        keep=job.checkpoint.keep,
        model=job.model.spec.name,
        config_hash=config_hash(job.model.spec),
        unit_sizes=stored_sizes(job.model.spec, parts_of_units(stand.program.setup)),
        state={KEY: identity},
    )


def _computed_bytes(stand: Stand) -> tuple[int, ...]:
    """Of each program rank the bytes of an element in the dtype that it computes in."""
    spec, ranks = stand.spec, stand.program.setup.ranks
    dtypes = {seat.program_rank: spec.dtype_of(seat.world_rank) for seat in spec.seats.all()}
    return tuple(DTYPES[dtypes[rank]].itemsize for rank in range(ranks))


def _calibrate(
    stand: Stand, run: RankRun, network: Network, allocator: Memory, device: Device
) -> None:
    """Times this run's ops, and leaves rank 0's prediction in the folder."""
    if not stand.spec.calibrate:
        return
    if device.kind != "cpu":
        stand.voice.say(f"computes on {device.words}")
    stand.voice.say("timing the ops of a step")
    own_times = calibrate(
        run.schedule,
        run.states,
        network,
        stand.spec.seats,
        stand.seat,
        stand.job.train,
        run.sizes,
        stand.job.model.spec.vocab,
        allocator,
        device,
    )
    calibrations = gathered(own_times, network)
    if stand.seat.world_rank == 0:
        wire = run.states.wire
        element_bytes = ElementBytes(
            _computed_bytes(stand), wire.gradients.itemsize, wire.boundaries.itemsize
        )
        agrees = run.ops.clipping.by_unit and stand.program.setup.sharding > 0
        write_prediction(
            stand.folder,
            stand.program,
            calibrations,
            stand.spec.seats,
            element_bytes,
            agrees=agrees,
        )
    network.barrier()
