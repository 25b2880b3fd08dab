"""A network for ranks whose tensors lie in a device's own memory: what is sent is copied to host
memory first, and what arrives is copied back.

Sums over ranks are made on the host, in the order in which ranks on CPUs make them. A copy waits
for the stream of the lane that asks for it, and for no other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ratrain.cost.algorithms import DIRECT
from ratrain.models.division import Division
from ratrain.models.tensor_group import TensorGroup
from ratrain.program.kind import Lane
from ratrain.runtime.seats import Holders
from ratrain.runtime.step.exchange.collective import Tensors
from ratrain.runtime.step.exchange.unlike_views import UnlikeView
from ratrain.runtime.step.network.broadcast import By
from ratrain.runtime.step.network.network import Copy, Network


class Staging:
    """Pieces of host memory beside tensors of a device; `pinned`: the device copies from and to
    them by itself."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned

    def room(self, tensor: Tensor) -> Tensor:
        """Host memory for what will be in a tensor."""
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=self._pinned)

    def leaving(self, tensor: Tensor) -> Tensor:
        """A tensor's values in host memory."""
        return self.room(tensor).copy_(tensor)

    def all_leaving(self, tensors: Tensors) -> dict[int, list[Tensor]]:
        """The same of several for each peer."""
        return {peer: [self.leaving(t) for t in group] for peer, group in tensors.items()}


class StagedNetwork:
    """`inner` moves tensors in host memory."""

    def __init__(self, inner: Network, staging: Staging) -> None:
        self._inner, self._staging = inner, staging
        self._groups: dict[Lane, TensorGroup] = {}

    def send(self, lane: Lane, tensor: Tensor, pipeline: int) -> None:
        self._inner.send(lane, self._staging.leaving(tensor), pipeline)

    def receive(self, lane: Lane, tensor: Tensor, pipeline: int) -> None:
        room = self._staging.room(tensor)
        self._inner.receive(lane, room, pipeline)
        tensor.copy_(room)

    def await_sender(self, lane: Lane, pipeline: int) -> None:
        self._inner.await_sender(lane, pipeline)

    def reduce(
        self,
        flat: Tensor,
        out: Tensor,
        holders: Holders,
        by: str = DIRECT,
        lane: Lane = Lane.REDUCE,
    ) -> None:
        total = self._staging.room(out)
        self._inner.reduce(self._staging.leaving(flat), total, holders, by, lane)
        out.copy_(total)

    def gather(self, lane: Lane, flat: Tensor, holders: Holders, by: str = DIRECT) -> None:
        whole = self._staging.leaving(flat)
        self._inner.gather(lane, whole, holders, by)
        flat.copy_(whole)

    def gather_unlike(self, lane: Lane, view: UnlikeView, by: str = DIRECT) -> None:
        whole = self._staging.leaving(view.flat)
        master = self._staging.leaving(view.master)
        self._inner.gather_unlike(lane, replace(view, flat=whole, master=master), by)
        view.flat.copy_(whole)

    def swap(self, lane: Lane, holders: Holders, leaving: Tensors, landing: Tensors) -> None:
        rooms = {peer: [self._staging.room(t) for t in group] for peer, group in landing.items()}
        self._inner.swap(lane, holders, self._staging.all_leaving(leaving), rooms)
        fill(landing, rooms)

    def add_copies(self, copies: Sequence[Copy]) -> None:
        staged = [Copy(part, self._staging.leaving(gradient)) for part, gradient in copies]
        self._inner.add_copies(staged)
        for copy, (_, total) in zip(copies, staged, strict=True):
            copy.gradient.copy_(total)

    def tensor_group(self, lane: Lane) -> TensorGroup | None:
        inner = self._inner.tensor_group(lane)
        if inner is None:
            return None
        return self._groups.setdefault(lane, StagedGroup(inner, self._staging))

    def combine(self, lane: Lane | None, values: Tensor, by: By) -> Tensor:
        return self._inner.combine(lane, values.cpu(), by)

    def barrier(self) -> None:
        self._inner.barrier()

    def exchange_bytes(self, body: bytes, hearers: Collection[int] | None = None) -> list[bytes]:
        return self._inner.exchange_bytes(body, hearers)

    @property
    def sent_bytes(self) -> int | None:
        return self._inner.sent_bytes

    def sent_to(self) -> dict[int, int]:
        return self._inner.sent_to()

    def hang_up(self) -> None:
        self._inner.hang_up()

    def close(self) -> None:
        """Peers see the end of every stream."""
        self._inner.close()


class StagedGroup:
    """A tensor group whose parts lie in a device's memory."""

    def __init__(self, inner: TensorGroup, staging: Staging) -> None:
        self._inner, self._staging = inner, staging

    @property
    def division(self) -> Division:
        return self._inner.division

    @property
    def divides_rows(self) -> bool:
        return self._inner.divides_rows

    def sum_(self, part: Tensor) -> None:
        total = self._staging.leaving(part)
        self._inner.sum_(total)
        part.copy_(total)

    def sum_rows(self, parts: Tensor) -> Tensor:
        return self._inner.sum_rows(self._staging.leaving(parts)).to(parts.device)

    def gather_rows(self, rows: Tensor) -> Tensor:
        return self._inner.gather_rows(self._staging.leaving(rows)).to(rows.device)

    def gather(self, values: Tensor) -> list[Tensor]:
        heard = self._inner.gather(self._staging.leaving(values))
        return [one.to(values.device) for one in heard]


def fill(landing: Tensors, rooms: Mapping[int, Sequence[Tensor]]) -> None:
    """Copies what has landed in host memory to where it belongs."""
    for peer, group in landing.items():
        for tensor, room in zip(group, rooms[peer], strict=True):
            tensor.copy_(room)
