"""Validation: the loss on held-out sequences. All ranks end with the same number."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ratrain.program.kind import Lane
from ratrain.program.passes.forward_only import forward_only
from ratrain.program.program import Program
from ratrain.runtime.rank.forwards import Forwards, Shared
from ratrain.runtime.step.batches import ReplicaBatches
from ratrain.runtime.step.mean_weights import mean_weights
from ratrain.runtime.step.network.broadcast import summed_columns


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

    def __init__(self, program: Program, shared: Shared, share: HeldOutShare) -> None:
        self._share, self._apart = share, program.setup.averages.by_turns
        self._forwards = Forwards(forward_only(program), shared, share.batches)
        self.lanes = self._forwards.lanes

    def run(self) -> Validated:
        """The loss of all held-out batches; all ranks call this together."""
        if not self._apart:
            return self._run()
        ops, states = self._forwards.ops, self._forwards.states
        with mean_weights(states.units, self._forwards.network, ops.average, ops.show) as drift:
            return replace(self._run(), drift=drift)

    def _run(self) -> Validated:
        count, forwards = self._share.count, self._forwards
        forwards.run(0, count)
        own_sums = [0.0, 0.0]
        if forwards.tells:
            losses = forwards.ops.losses
            batches = range(count) if forwards.counts else ()
            own_sums = [
                sum(float(loss) for number in range(count) for loss in losses.get(number, ())),
                float(sum(self._share.batches.counted(number) for number in batches)),
            ]
        forwards.clear()
        self._share.batches.forget()
        sums = torch.tensor(own_sums, dtype=torch.float64)
        total, tokens = forwards.network.combine(Lane.UPDATE, sums, summed_columns).tolist()
        return Validated(total / max(1.0, tokens), int(tokens))
