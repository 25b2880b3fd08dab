"""Validation: the loss on held-out sequences, by the forward part of the run's own program.

It runs between two steps, when all lanes of the rank stand still: then every view is complete and
nothing else is under way. All ranks do it together, and end with the same number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ratrain.describe.train import TrainSpec
from ratrain.devices import Device
from ratrain.program.kind import Lane
from ratrain.program.passes.forward_only import forward_only
from ratrain.program.program import Program
from ratrain.runtime.seats import Seat
from ratrain.runtime.step.batches import ReplicaBatches
from ratrain.runtime.step.clipping import Clipping
from ratrain.runtime.step.lanes import Lanes
from ratrain.runtime.step.ledger import Ledgers
from ratrain.runtime.step.mean_weights import mean_weights
from ratrain.runtime.step.network.broadcast import summed_columns
from ratrain.runtime.step.network.network import Network
from ratrain.runtime.step.ops import RankOps, Sizes
from ratrain.runtime.step.schedule import is_first_of_last_stage, schedule_of
from ratrain.runtime.step.states import RankStates


@dataclass(frozen=True)
class Validated:
    """The mean loss over the held-out tokens, and how many these are. Where replicas or sites train
    apart it is that of their mean, from which their own weights are so far (`mean_weights`)."""

    loss: float
    tokens: int
    drift: float | None = None


@dataclass(frozen=True)
class HeldOutShare:
    """A replica's share of the held-out batches."""

    batches: ReplicaBatches
    count: int


class Validation:
    """One rank's part in it."""

    def __init__(
        self,
        program: Program,
        seat: Seat,
        states: RankStates,
        network: Network,
        share: HeldOutShare,
        train: TrainSpec,
        sizes: Sizes,
        clipping: Clipping,
        ledgers: Ledgers,
        device: Device,
    ) -> None:
        schedule = schedule_of(forward_only(program), seat.program_rank)
        self._network, self._share, self._held = network, share, states.held
        self._units = states.units
        self._apart = program.setup.averages.by_turns
        # All ranks of a tensor group have the same losses: the first reports them.
        self._tells = seat.division.rank == 0 and any(unit.last for unit in schedule.units)
        self._counts = self._tells and is_first_of_last_stage(schedule)
        self._ops = RankOps(
            schedule, states, network, share.batches, train, sizes, clipping, lambda _: 0
        )
        self.lanes = Lanes(
            schedule,
            self._ops.execute,
            ledgers,
            timeout_s=train.timeout_s,
            held=states.held,
            device=device,
            meet=self._ops.meet,
            stop=network.hang_up,
        )

    def run(self) -> Validated:
        """The loss of all held-out batches; all ranks call this together."""
        if not self._apart:
            return self._run()
        ops = self._ops
        with mean_weights(self._units, self._network, ops.average, ops.show) as drift:
            return replace(self._run(), drift=drift)

    def _run(self) -> Validated:
        count = self._share.count
        self.lanes.run(0, lambda _, number: number < count)
        own_sums = [0.0, 0.0]
        if self._tells:
            losses = self._ops.losses
            batches = range(count) if self._counts else ()
            own_sums = [
                sum(float(loss) for number in range(count) for loss in losses.get(number, ())),
                float(sum(self._share.batches.counted(number) for number in batches)),
            ]
        self._ops.losses.clear()
        self._held.clear()  # nothing else is under way: these are tensors that were sent
        self._share.batches.forget()
        sums = torch.tensor(own_sums, dtype=torch.float64)
        total, tokens = self._network.combine(Lane.UPDATE, sums, summed_columns).tolist()
        return Validated(total / max(1.0, tokens), int(tokens))
