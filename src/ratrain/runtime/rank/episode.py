"""One episode of a rank: everything found, put together, run, and reported."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from ratrain.checkpoint.best import read_best
from ratrain.checkpoint.entries import OPTIMIZER
from ratrain.checkpoint.folder import step_name
from ratrain.checkpoint.own import SITE_WEIGHTS
from ratrain.corpus.identity import KEY, identity_of
from ratrain.describe.model import config_hash
from ratrain.devices import Device
from ratrain.errors import OF_ANOTHER, PeerDown, RatrainError, RunFailed
from ratrain.objects.client import close_stores
from ratrain.plugins import named
from ratrain.program.promise import loss_words
from ratrain.runtime.attempts import begin_attempt
from ratrain.runtime.encryption import guard_of
from ratrain.runtime.environment import COMMAND, Launch
from ratrain.runtime.kept_metrics import lost_steps
from ratrain.runtime.rank.beginning import Together, begun, frozen_of
from ratrain.runtime.rank.calibration.of_run import calibrated
from ratrain.runtime.rank.checked import CheckedOps, RankCheck
from ratrain.runtime.rank.context import RankContext, RankProcess, forget_failure, note
from ratrain.runtime.rank.folder_lock import FolderLock
from ratrain.runtime.rank.joining.agreement import Reading, agree, read_run
from ratrain.runtime.rank.joining.call_back import CallBack
from ratrain.runtime.rank.joining.handshake import Gate
from ratrain.runtime.rank.joining.networks import network_of
from ratrain.runtime.rank.joining.rendezvous import Joined, join, told_by_all
from ratrain.runtime.rank.joining.seating import seated
from ratrain.runtime.rank.live import NOTHING, LiveReader, LiveStates, live_states
from ratrain.runtime.rank.metrics import samples_row, validation_row
from ratrain.runtime.rank.orders import MEETS, TRAINS
from ratrain.runtime.rank.publisher import publisher_of
from ratrain.runtime.rank.rank_log import RankLog
from ratrain.runtime.rank.sampling import Sampled
from ratrain.runtime.rank.saver import CheckpointSaver, SaveSpec
from ratrain.runtime.rank.shares import asked_prompts, in_words, own_batches, own_held_out
from ratrain.runtime.rank.telling import Telling, tell_end
from ratrain.runtime.rank.tiers import disk_folder, run_name, tiers_of
from ratrain.runtime.rank.trainer import Begin, RankRun
from ratrain.runtime.rank.validation import Validated
from ratrain.runtime.run_folder import RunFolder, site_weights
from ratrain.runtime.seats import holders_of, parts_of_units
from ratrain.runtime.secret import read_secret
from ratrain.runtime.step.below import Tier
from ratrain.runtime.step.schedule import held_sum, persistent_of
from ratrain.runtime.step.tensor_parts import stored_sizes

JOINING_S = 120.0
"""Processes may begin this long after each other, however impatient the job is later on."""
_NO_LIMIT = 1 << 60
TOKENISING_S = 3600.0
"""One host may have to tokenise the data that another has ready."""


class Episode:
    """One membership of ranks, one program, from the moment when they meet to the last step, or to
    the loss of a rank. `number`: how many this process had before; `began_s`: when, by the wall
    clock. What `run` opens is closed by `close`."""

    def __init__(self, process: RankProcess, number: int, launch: Launch, began_s: float) -> None:
        self._process, self._launch = process, launch
        self.number, self._began_s = number, began_s
        self._closing, self._call_back = ExitStack(), CallBack()
        self._run: RankRun | None = None

    def run(self) -> bool:
        """Whether the last step was done."""
        try:
            return self._ran()
        except RatrainError:
            self._call_back.require()  # what a wait ends with that was ended says less
            raise

    def _ran(self) -> bool:
        folder, lock, log = self._process.folder, self._process.lock, self._process.log
        reading = read_run(folder)
        timeout_s = max(reading.job.train.timeout_s if reading.job else 0.0, JOINING_S)
        launch, gate = self._launch, _gate(folder, reading)
        if self._process.orders is not None:
            self._process.orders.say(MEETS)
        try:
            joined = join(launch, gate, timeout_s, self._call_back)
        except RunFailed as error:
            raise reading.problem or error from None
        if launch.place is not None:
            joined = seated(joined, launch, folder, reading, gate, timeout_s)
        rank = lock.rank = log.rank = joined.rank
        joined.broadcast.wait_up_to(TOKENISING_S)
        context = _agreed(folder, rank, reading, joined, lock, log)
        joined.broadcast.wait_up_to(timeout_s)
        return self._trained(context, joined)

    def interrupt(self, error: BaseException) -> None:
        """Ends it with an error found elsewhere; from any thread."""
        self._call_back.call(error)

    def called_back(self) -> bool:
        """Once `run` has raised: whether nothing of it is at work any more, and what this rank
        keeps of it, or of the one before, is with the process."""
        if self._process.orders is None:
            return False
        if self._run is not None:
            back, failure = self._run.call_back(), self._run.lanes.failure
            if failure is not None and not isinstance(failure, OF_ANOTHER):
                raise failure  # found by a lane after others had left because of it
            if not back:
                return False
            self._process.kept = self._run.kept().beside_those(self._process.kept)
        if self._process.memory is not None:
            self._process.memory.limit(_NO_LIMIT)
        return True

    def close(self) -> None:
        """Lets go of all that it has opened."""
        self._run = None
        self._closing.close()
        gc.collect()  # gradients and activations

    def _trained(self, context: RankContext, joined: Joined) -> bool:
        process, rank = self._process, context.seat.world_rank
        folder, log = context.folder, context.log
        device, memory = process.devices(context.job, context.spec, context.membership)
        if context.spec.threads:  # else as the environment says, since torch was loaded
            torch.set_num_threads(context.spec.threads)
        live = self._live(context, joined)
        network, links = network_of(
            context.program,
            context.spec.seats,
            context.seat,
            device,
            joined,
            context.job.train.timeout_s,
            context.spec.hosts,
            live.needs(rank) if live else (),
        )
        self._call_back.ends(network.hang_up)
        self._closing.callback(network.close)
        process.kept = process.kept.at(live.step) if live else NOTHING
        reader = live and LiveReader(live, rank, process.kept, links)
        if reader is not None:
            self._call_back.ends(reader.hang_up)
        telling = Telling(context, self._began_s)
        self._closing.callback(telling.close)
        if live:
            telling.of_survivors(live)
        tiers = self._closing.enter_context(_tiers(context, device))
        if rank == 0 and context.spec.allocator and not memory.counts:
            log.say("what ranks allocate is neither counted nor limited: see the report")
        identity = identity_of(context.data.prepared)
        frozen = frozen_of(context.job, context.spec)
        batches = own_batches(context, device)
        best = read_best(folder.path)
        check = RankCheck(device, folder.path) if context.spec.check == "compare" else None

        def validated(step: int, validation: Validated) -> None:
            telling.keep(validation_row(step, validation))
            saver.validated(step, validation.loss)

        def sampled(step: int, texts: Sampled) -> None:
            telling.keep(samples_row(step, in_words(context.job, texts), texts.took_s))

        def built(begin: Begin) -> RankRun:
            return RankRun(
                context.job,
                context.program,
                context.spec,
                context.seat,
                network,
                batches,
                begin,
                device=device,
                on_round=telling.on_round,
                stop_asked=lambda: process.requests.asked or folder.stop_request.exists(),
                allocator=memory,
                held_out=own_held_out(context, device),
                validated=validated,
                prompts=asked_prompts(context.job, context.spec),
                sampled=sampled,
                failing=process.tell_cause,
                tiers=tiers,
                ops=named(context.job.backend.ops) if check is None else CheckedOps,
            )

        together = Together(rank, context.membership, joined.everybody)
        live_states = (live, reader) if live and reader else None
        run = begun(folder, context.job, context.spec, identity, together, built, live_states)
        self._run = run
        self._call_back.ends(lambda: run.fail(self._call_back.error or PeerDown("called back")))
        close_stores()
        if device.kind == "cuda" and context.job.train.graphs and not run.records_graphs:
            context.log.say(
                "graphs: compute cannot be recorded here; kernels are launched one by one"
            )
        if rank == 0 and (self.number or context.claim.is_mine):
            note(context, lost_steps(folder, run.first_step))
        # From here on a rank that is silent for the job's timeout is taken for lost. Where an
        # engine starts ranks again, what was timed before is still good: our own launcher removes
        # it.
        is_timed = bool(run.first_step and folder.predicted.exists())
        timed = joined.everybody("timed" if is_timed else "")
        process.kept = NOTHING  # all have what they need
        if timed[0] != "timed":
            calibrated(context, run, network, memory, device)
        joined.broadcast.close()
        saving = _save_spec(context, {KEY: identity, **frozen})
        saver = CheckpointSaver(
            saving,
            rank,
            context.membership,
            run.states,
            network,
            state_after=run.ops.clipping.state_after,
            is_last=run.is_last,
            require_owned=telling.require_owned,
            saved=lambda step: log.say(f"saved {step_name(step)}"),
        )
        publisher = publisher_of(context, saving, run.states, network)
        if publisher is not None:
            self._closing.callback(publisher.close)
        run.save_with(*filter(None, (publisher, saver)))
        if check is not None:
            check.begin(run)
        before = best and (best.step, best.validation_loss)
        log.begin(run.first_step, context.spec.end_step, before)
        if rank == 0 and (context.claim.is_mine or COMMAND in os.environ):
            begin_attempt(folder, run.first_step, lab=False, restarts=0)  # `ratrain train` does
        if process.orders is not None:
            if rank == 0 and not self.number:
                note(context, [f"restarts: {_loss_words(context)}"])
            process.orders.say(TRAINS)
        run.run()
        if live and live.step >= context.spec.end_step:
            run.save_held()
        saver.arrived()
        tell_end(context, run, check)
        network.barrier()  # no rank leaves while another still communicates
        saver.remove_sent()
        finished = run.end_step >= context.spec.end_step
        ending = "done" if finished else "stopped and saved"
        log.say(f"{ending}: step {run.end_step} of {context.spec.end_step}")
        return finished

    def _live(self, context: RankContext, joined: Joined) -> LiveStates | None:
        """What survivors of an episode hold together, where that is enough to go on from."""
        setup, rank = context.program.setup, context.seat.program_rank
        budget_bytes, room_bytes = setup.budget_of(rank), None
        if budget_bytes is not None:
            room_bytes = budget_bytes - held_sum(persistent_of(context.program.table, rank))
        words = self._process.kept.words(room_bytes, survived=self.number > 0)
        told = told_by_all(joined.everybody(words))
        live = live_states(context.job.model.spec, setup, context.spec.seats, told)
        if context.seat.world_rank == 0 and any(of_rank["survived"] for of_rank in told):
            source = "what the survivors hold" if live else "the latest checkpoint"
            note(context, [f"ranks were lost or came: the run goes on from {source}"])
        return live


def _tiers(context: RankContext, device: Device) -> AbstractContextManager[Mapping[str, Tier]]:
    """The tiers below the device that the rank's states wait in."""
    rank = context.seat.world_rank
    return tiers_of(
        context.program,
        context.seat,
        device,
        lambda: disk_folder(context.job, context.spec.device_numbers[rank], context.folder.path),
        run_name(context.folder.path),
        timeout_s=context.job.train.timeout_s,
        say=lambda line: note(context, [f"rank {rank}: {line}"]),
    )


def _loss_words(context: RankContext) -> str:
    """What a loss would cost from here on."""
    setup, seats, hosts = context.program.setup, context.spec.seats, context.spec.hosts
    sharing = [
        [hosts[rank] for rank in ranks]
        for tensor in range(setup.tensor)
        for ranks in holders_of(setup, seats, tensor).values()
        if hosts
    ]
    return loss_words(setup, hosts, sharing)


def _gate(folder: RunFolder, reading: Reading) -> Gate:
    """What all ranks must prove to each other; where the secret is missing because all is, what was
    read says so better."""
    try:
        return Gate(read_secret(folder.secret), guard_of(reading.tls))
    except RatrainError as error:
        raise reading.problem or error from None


def _agreed(
    folder: RunFolder,
    rank: int,
    reading: Reading,
    joined: Joined,
    lock: FolderLock,
    log: RankLog,
) -> RankContext:
    """What all ranks have agreed on; raises the same error on all of them where they have not."""
    reading = reading.with_data(log.counting("tokenising"))
    membership = agree(folder, reading, joined.everybody)
    log.set_first_on_host(membership.logs(rank))
    log.say(membership.words(rank, all_hosts=log.for_all_hosts))
    spec, job, program, data = reading.spec, reading.job, reading.program, reading.data
    assert spec is not None and job is not None and program is not None and data is not None
    membership = lock.settle(membership, joined.everybody, disks=job.checkpoint.disks, say=log.say)
    forget_failure(folder, rank)
    if len(membership.disks) > 1:
        log.say(
            f"{folder.path} is a separate folder on each of {len(membership.disks)} disks; each "
            "holds the files of the hosts that share it"
        )
    seat = spec.seats.seat(rank)
    return RankContext(folder, spec, job, program, data, seat, membership, lock.claim, log)


def _save_spec(context: RankContext, began_with: dict[str, Any]) -> SaveSpec:
    job = context.job
    of_sites = site_weights(context.spec, context.program.setup)
    weights = {SITE_WEIGHTS: of_sites} if len(set(of_sites)) > 1 else {}
    return SaveSpec(
        run=context.folder.path,
        every=job.checkpoint.every,
        validated_every=job.train.validate_every,
        keep=job.checkpoint.keep,
        model=job.model.spec.name,
        config_hash=config_hash(job.model.spec),
        unit_sizes=stored_sizes(job.model.spec, parts_of_units(context.program.setup)),
        optimizer=job.train.rule,
        state={**began_with, OPTIMIZER: job.train.optimizer, **weights},
        token=context.claim.token,
        patience_s=job.train.timeout_s,
    )
