"""A short calibration before the first step: what will run is timed on the rank that runs it.

All ranks calibrate at the same time, so that they disturb each other as they will. The model's
weights, gradients and data order are left as they were. From the times of all ranks come the
costs that the simulator predicts this very run with (`run_costs`).
"""

from __future__ import annotations

from math import prod

import torch

from ratrain.describe.train import TrainSpec
from ratrain.devices import Device, Memory
from ratrain.models.units import MicroBatch
from ratrain.profile.processor import Processor, processor_share
from ratrain.program.kind import Lane
from ratrain.runtime.rank.calibration.compute import unit_times
from ratrain.runtime.rank.calibration.lanes import between_ops_s
from ratrain.runtime.rank.calibration.links import (
    across_times,
    collective_times,
    gather_times,
    median_s,
    message_times,
    tensor_times,
)
from ratrain.runtime.rank.calibration.measured import (
    Calibration,
    read_calibration,
    write_calibration,
)
from ratrain.runtime.rank.calibration.moves import with_moves
from ratrain.runtime.seats import Seat, Seats
from ratrain.runtime.step.captured import can_be_recorded, share_waited_for
from ratrain.runtime.step.network.broadcast import summed
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.ops import Sizes
from ratrain.runtime.step.schedule import Schedule
from ratrain.runtime.step.states import RankStates


def calibrate(
    schedule: Schedule,
    states: RankStates,
    network: Network,
    seats: Seats,
    seat: Seat,
    train: TrainSpec,
    sizes: Sizes,
    vocab: int,
    allocator: Memory,
    device: Device,
) -> Calibration:
    """This rank's calibration. All ranks must call it together: they time links in pairs."""
    joined = sizes.of_joined(max(member.joined for _, member in schedule.held))
    batch = _random_batch(joined.boundary, vocab, states.device)
    network.barrier()
    group = network.tensor_group(Lane.COMPUTE)
    rows = joined.rows_of(group)
    units, busy = unit_times(schedule, states, train, rows, batch, allocator, group, device)
    network.barrier()
    views = [unit.shard_view if unit.view is None else unit.view for unit in states.units]
    between_s = between_ops_s(schedule, views, train.timeout_s, device)
    if can_be_recorded(train, schedule, device):
        between_s *= share_waited_for(schedule)
    network.barrier()
    processor = Processor(processor_share(torch.get_num_threads() + 1), busy)
    network.barrier()
    beside = torch.get_num_threads() if processor.computes else 0
    units = with_moves(units, states, beside)
    network.barrier()
    ends = (states, network, seats, seat, beside, prod(sizes.boundary))
    divides_rows = schedule.program.setup.sequence_parallel
    forward, arrival = message_times(Lane.SEND_F, +1, *ends, divides_rows=divides_rows)
    backward, arrival_back = message_times(Lane.SEND_B, -1, *ends, divides_rows=divides_rows)
    collective = collective_times(states, network)
    gather = gather_times(states, network)
    across = across_times(states, network)
    exchange_s = median_s(lambda: network.combine(Lane.UPDATE, torch.zeros(8), summed))
    tensor = tensor_times(states.device, network)
    return Calibration(
        seat.program_rank,
        units,
        forward,
        backward,
        arrival,
        arrival_back,
        collective,
        exchange_s,
        processor.delay_s_per_cpu_s,
        tensor,
        between_s,
        gather,
        across,
    )


def gathered(calibration: Calibration, network: Network) -> list[Calibration]:
    """All ranks' calibrations, by world rank: on rank 0, which predicts; elsewhere none."""
    bodies = network.exchange_bytes(write_calibration(calibration), hearers=(0,))
    return [read_calibration(body) for body in bodies]


def _random_batch(boundary: tuple[int, int, int], vocab: int, device: torch.device) -> MicroBatch:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab, boundary[:2], generator=generator).to(device)
    return MicroBatch(tokens, tokens)
