"""The forward part of a run's own program, run between two of its steps: all lanes of the rank
stand still then, every view is complete and nothing else is under way. All ranks do it together."""

from __future__ import annotations

from dataclasses import dataclass

from ratrain.describe.train import TrainSpec
from ratrain.devices import Device
from ratrain.program.program import Program
from ratrain.runtime.seats import Seat
from ratrain.runtime.step.clipping import Clipping
from ratrain.runtime.step.lanes import Lanes
from ratrain.runtime.step.ledger import Ledgers
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.ops import Batches, RankOps, Sizes
from ratrain.runtime.step.schedule import is_first_of_last_stage, schedule_of
from ratrain.runtime.step.states import RankStates


@dataclass(frozen=True)
class Shared:
    """What these forwards have of the rank's training."""

    seat: Seat
    states: RankStates
    network: Network
    train: TrainSpec
    sizes: Sizes
    clipping: Clipping
    ledgers: Ledgers
    device: Device
    ops: type[RankOps]


class Forwards:
    """One rank's part in them. `tells`: it has what the last unit gives; all ranks of a tensor
    group have the same, of which the first tells. `counts`: and speaks for its replica."""

    def __init__(
        self,
        program: Program,
        shared: Shared,
        batches: Batches,
        ops: type[RankOps] | None = None,
    ) -> None:
        schedule = schedule_of(program, shared.seat.program_rank)
        self.network, self.states = shared.network, shared.states
        self.tells = shared.seat.division.rank == 0 and any(unit.last for unit in schedule.units)
        self.counts = self.tells and is_first_of_last_stage(schedule)
        self.ops = (ops or shared.ops)(
            schedule,
            shared.states,
            shared.network,
            batches,
            shared.train,
            shared.sizes,
            shared.clipping,
            lambda _: 0,
        )
        self.lanes = Lanes(
            schedule,
            self.ops.execute,
            shared.ledgers,
            timeout_s=shared.train.timeout_s,
            held=shared.states.held,
            device=shared.device,
            meet=self.ops.meet,
            stop=shared.network.hang_up,
        )

    def run(self, first: int, end: int) -> None:
        """Steps of this program, counted by themselves; all ranks call it together."""
        self.lanes.run(first, lambda _, number: number < end)

    def clear(self) -> None:
        """Nothing else is under way: what is held are tensors that were sent."""
        self.ops.losses.clear()
        self.states.held.clear()
