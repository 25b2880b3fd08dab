"""Means of what replicas learnt that are sent as integers, with error feedback.

A block of values v travels as a scale s, max|v| / top in bf16, and the integers round(v / s), of
which the largest is `top`: 127 in 8 bits, 7 in 4. Every replica adds up one part of a unit's
elements, as many as any, and tells the others the mean:

    t = learnt + e            what a replica has to send, of each part
    e = t - sent(t)           what it has not sent, and sends with the next one
    m = sum of sent(t) / n    of the own part, in the order of replicas
    e = e + n (m - sent(m))   of the own part: what nobody was told of it
    learnt = sent(m)          of each part, from who adds it up: the same bits everywhere

A replica adds up its own part as it would have sent it, and takes the mean that it tells others. So
over time the sum of means is that of what was learnt, but for a mean of the last residuals e, which
do not grow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ratrain.cost.scratch import RESIDUAL_ELEMENTS
from ratrain.describe.average_wires import AVERAGE_WIRES, BLOCK, SCALE_BYTES
from ratrain.errors import RunFailed, TransportError
from ratrain.program.kind import Lane
from ratrain.runtime.seats import Holders
from ratrain.runtime.step.network.network import Network


@dataclass(frozen=True)
class Integers:
    """Of so many bits: 8, or 4, of which a byte holds one of either half of a block."""

    bits: int

    @property
    def top(self) -> int:
        return 2 ** (self.bits - 1) - 1

    def size_bytes(self, elements: int) -> int:
        """What so many elements take, which are whole blocks."""
        return elements // BLOCK * (SCALE_BYTES + BLOCK * self.bits // 8)

    def encode(self, values: Tensor, coded: Tensor) -> Tensor:
        """Writes what is sent of fp32 values into flat bytes; the values as they are read there, in
        new memory."""
        rows = values.view(-1, BLOCK)
        scales = rows.abs().amax(1, keepdim=True).div_(self.top).to(torch.bfloat16)
        if not torch.isfinite(scales).all():
            raise RunFailed(
                "what weights have learnt is not finite, and cannot be averaged as integers",
                place="[schedule] average_wire",
                fix="resume from a checkpoint, with a smaller learning rate",
            )
        room, wide = coded.view(len(rows), -1), scales.float()
        room[:, :SCALE_BYTES].view(torch.bfloat16).copy_(scales)
        # What is too small for a scale is not sent until it is not.
        numbers = rows.div(wide.where(wide > 0, torch.inf)).round_()
        body = room[:, SCALE_BYTES:]
        if self.bits == 8:
            body.view(torch.int8).copy_(numbers)
        else:
            high, low = (numbers + (self.top + 1)).chunk(2, dim=1)
            body.copy_(high.mul_(16).add_(low))
        return numbers.mul_(wide).flatten()

    def send(self, kept: Tensor, coded: Tensor) -> None:
        """Writes what is sent of what is kept, and keeps the rest."""
        for run, where in self.runs(len(kept)):
            kept[run] -= self.encode(kept[run], coded[where])

    def read(self, coded: Tensor, values: Tensor, sender: int) -> None:
        """Fills fp32 values from their bytes, which may lie in the first part of their memory: from
        the end on, so that nothing unread is overwritten."""
        for run, where in reversed(list(self.runs(len(values)))):
            values[run] = self.decode(coded[where], sender)

    def decode(self, coded: Tensor, sender: int) -> Tensor:
        """The values of flat bytes, in new memory. `sender`: whose they are, for messages."""
        room = coded.view(-1, self.size_bytes(BLOCK))
        scales, body = room[:, :SCALE_BYTES].view(torch.bfloat16).float(), room[:, SCALE_BYTES:]
        if self.bits == 8:
            numbers = body.view(torch.int8).to(torch.float32)
        else:
            halves = body.bitwise_right_shift(4), body.bitwise_and(15)
            numbers = torch.cat(halves, dim=1).to(torch.float32).sub_(self.top + 1)
        if not torch.isfinite(scales).all() or scales.amin() < 0 or numbers.amin() < -self.top:
            raise TransportError(
                f"rank {sender} sent averages that are no blocks of int{self.bits}",
                fix="run the same version of ratrain on every machine; if they do, look for a "
                "device on the way that changes data",
            )
        return numbers.mul_(scales).flatten()

    def runs(self, elements: int) -> Iterator[tuple[slice, slice]]:
        """Pieces of so many elements: those, and their bytes."""
        for begin in range(0, elements, RESIDUAL_ELEMENTS):
            end = min(begin + RESIDUAL_ELEMENTS, elements)
            yield slice(begin, end), slice(*map(self.size_bytes, (begin, end)))


INTEGERS = {name: Integers(wire.bits) for name, wire in AVERAGE_WIRES.items() if wire.has_scales}
"""By the name of a wire that sends averages so."""


@dataclass(frozen=True)
class Averaging:
    """Where the holders of something average it: this rank has a place among them."""

    network: Network
    lane: Lane
    holders: Holders
    place: int

    def average(self, integers: Integers, learnt: Tensor, kept: Tensor) -> None:
        """What holders learnt becomes the mean of what they send. `kept`: what this one had not
        sent before, and then now. Both are flat; memory besides: pieces."""
        count, places = len(self.holders), range(len(self.holders))
        parts, kept_parts = learnt.view(count, -1), kept.view(count, -1)
        size = integers.size_bytes(parts.shape[1])
        kept += learnt
        # What leaves takes at most a third of the same memory; what lands has its place behind it.
        body = learnt.view(torch.uint8)
        sent = body[: count * size].view(count, size)
        landed = iter(body[count * size :][: (count - 1) * size].view(count - 1, size))
        at = [sent[place] if place == self.place else next(landed) for place in places]
        for part, coded in zip(kept_parts, sent, strict=True):
            integers.send(part, coded)
        others = [place for place in places if place != self.place]
        leaving, landing = ({place: [of[place]] for place in others} for of in (sent, at))
        self.network.swap(self.lane, self.holders, leaving, landing)
        own, told = kept_parts[self.place], sent[self.place]
        for run, where in integers.runs(len(own)):
            mean = self._mean(integers, [coded[where] for coded in at])
            own[run] += mean.sub_(integers.encode(mean, told[where])).mul_(count)
        self.network.gather(self.lane, body[: count * size], self.holders)
        for place in reversed(places):
            integers.read(sent[place], parts[place], self.holders[place])

    def _mean(self, integers: Integers, every: list[Tensor]) -> Tensor:
        terms = (integers.decode(c, r) for c, r in zip(every, self.holders, strict=True))
        total = next(terms)
        for term in terms:
            total += term
        return total.div_(len(every))
