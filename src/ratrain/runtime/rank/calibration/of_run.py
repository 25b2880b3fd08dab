"""Times a run's ops before its first step, and predicts its step from them."""

from __future__ import annotations

from ratrain.describe.average_wires import AVERAGE_WIRES
from ratrain.devices import Device, Memory
from ratrain.runtime.rank.calibration.calibrate import calibrate, gathered
from ratrain.runtime.rank.calibration.prediction import write_prediction
from ratrain.runtime.rank.calibration.run_costs import ElementBytes
from ratrain.runtime.rank.context import RankContext
from ratrain.runtime.rank.trainer import RankRun
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.states import DTYPES


def _computed_bytes(context: RankContext) -> tuple[int, ...]:
    """Of each program rank the bytes of an element in the dtype that it computes in."""
    spec, ranks = context.spec, context.program.setup.ranks
    dtypes = {seat.program_rank: spec.dtype_of(seat.world_rank) for seat in spec.seats.all()}
    return tuple(DTYPES[dtypes[rank]].itemsize for rank in range(ranks))


def _averaged_bytes(context: RankContext) -> tuple[float, float]:
    """Of a parameter what replicas that average it send, and tell the others of their site."""
    setup = context.program.setup
    if not setup.averages.by_turns:
        saved = context.job.train.rule.saved_bytes
        return saved, saved
    wire = AVERAGE_WIRES[setup.average_wire or "fp32"]
    return wire.bytes_per_param, wire.told_bytes_per_param


def calibrated(
    context: RankContext, run: RankRun, network: Network, allocator: Memory, device: Device
) -> None:
    """Times this run's ops, and leaves rank 0's prediction in the folder."""
    if not context.spec.calibrate:
        return
    if device.kind != "cpu":
        context.log.say(f"computes on {device.words}")
    context.log.say("timing the ops of a step")
    own_times = calibrate(
        run.schedule,
        run.states,
        network,
        context.spec.seats,
        context.seat,
        context.job.train,
        run.sizes,
        context.job.model.spec.vocab,
        allocator,
        device,
    )
    calibrations = gathered(own_times, network)
    if context.seat.world_rank == 0:
        wire = run.states.wire
        element_bytes = ElementBytes(
            _computed_bytes(context),
            wire.gradients.itemsize,
            wire.boundaries.itemsize,
            DTYPES[context.spec.gradient_dtype_of(0)].itemsize,
            *_averaged_bytes(context),
        )
        agrees = run.ops.clipping.by_unit and context.program.setup.sharding > 0
        write_prediction(
            context.folder,
            context.program,
            calibrations,
            context.spec.seats,
            element_bytes,
            agrees=agrees,
        )
    network.barrier()
