"""Plays the steps of a software collective on a system: DMA copies, additions, barriers."""

from __future__ import annotations

from dataclasses import dataclass

from ratrain.chip.noc.endpoint import Done, Group, System
from ratrain.chip.noc.opcodes import Format, Opcode
from ratrain.chip.noc.schedules import Combine, Copy, Step
from ratrain.chip.noc.workload import Place

Waiting = dict[Place, Done]
"""What each cluster has to wait for before it continues."""


@dataclass(frozen=True)
class StepPlayer:
    """`incoming_at`: where copies land in the target's memory (0: over the payload itself)."""

    system: System
    incoming_at: int = 0
    payload_at: int = 0
    op: Opcode = Opcode.FP_ADD
    form: Format = Format.FP64
    is_pipeline: bool = False
    """A pipelined chain: each step pays the loop overhead."""

    def play(self, group: Group, steps: list[Step], waiting: Waiting) -> Waiting:
        """The steps, with a hardware barrier of the group between them."""
        for number, step in enumerate(steps):
            if number:
                waiting = self.system.barrier(group, waiting)
            done: Waiting = {m: list(waiting.get(m, [])) for m in group.members}
            for action in step:
                place = action.source if isinstance(action, Copy) else action.place
                done[place] += self._act(action, waiting.get(place, []))
            waiting = done
        return waiting

    def _act(self, action: Copy | Combine, after: Done) -> Done:
        loop = self.system.chip.endpoint.iteration_cycles if self.is_pipeline else 0
        payload, incoming = self.payload_at + action.start, self.incoming_at + action.start
        if isinstance(action, Copy):
            ready = self.system.wait(action.source, loop, after)
            return self.system.copy(
                action.source, action.target, payload, incoming, action.size, ready
            )
        ready = self.system.wait(action.place, loop, after)
        return self.system.combine(
            action.place, incoming, payload, action.size, self.op, self.form, ready
        )
