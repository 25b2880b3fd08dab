"""What the executor needs of the network between ranks, as the cost model mirrors it.

Reductions are among the ranks that hold a unit, its holders, which may be other ranks for another
unit. In a direct exchange each receives the part that it owns from every peer and adds the parts in
the order of replicas; other collectives (`cost.algorithms`) send sums on, in rounds. Each has one
order of adding, so the sum has the same bits whatever the timing, and at every sharding level.
Each lane has connections of its own, so that lanes do not wait for each other.

`socket_network` carries it out; `staged_network` does where tensors lie in a device's own memory,
`direct_network` where a communicator carries them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from ratrain.cost.algorithms import DIRECT
from ratrain.models.division import Division
from ratrain.models.tensor_group import TensorGroup
from ratrain.program.kind import Lane
from ratrain.runtime.seats import Holders
from ratrain.runtime.step.exchange.collective import Tensors
from ratrain.runtime.step.exchange.unlike_views import UnlikeView
from ratrain.runtime.step.network.broadcast import By


class Copy(NamedTuple):
    """Gradients of a piece of a tied matrix, and the part of the matrix that they are in: it tells
    which rank at the pipeline's other end has the same piece."""

    part: Division
    gradient: Tensor


class Network(Protocol):
    """What the executor needs of a network. Every call blocks its lane, and no other."""

    def send(self, lane: Lane, tensor: Tensor, pipeline: int) -> None:
        """Sends a flat tensor to a pipeline position of the own replica: to the rank with the own
        number there, or where tensor degrees differ the own part of it (`step.cells`). Where
        tensor groups divide rows, the tensor is the own part."""
        ...

    def receive(self, lane: Lane, tensor: Tensor, pipeline: int) -> None:
        """Fills a flat tensor with what is sent there; all of it, whatever the degrees."""
        ...

    def await_sender(self, lane: Lane, pipeline: int) -> None:
        """Waits until those who send from there have come to their `send`."""
        ...

    def reduce(
        self,
        flat: Tensor,
        out: Tensor,
        holders: Holders,
        by: str = DIRECT,
        lane: Lane = Lane.REDUCE,
    ) -> None:
        """Adds up all holders' `flat` by the collective of a name; the own part of the sum goes to
        `out`."""
        ...

    def gather(self, lane: Lane, flat: Tensor, holders: Holders, by: str = DIRECT) -> None:
        """Fills `flat` with every holder's part; the own part is already there."""
        ...

    def gather_unlike(self, lane: Lane, view: UnlikeView, by: str = DIRECT) -> None:
        """Fills a view with every holder's part, each in this rank's dtype, by the collective of a
        name."""
        ...

    def swap(self, lane: Lane, holders: Holders, leaving: Tensors, landing: Tensors) -> None:
        """Sends some of the holders the first tensors, and fills the second with what they send, at
        once; both by place among the holders."""
        ...

    def add_copies(self, copies: Sequence[Copy]) -> None:
        """Adds up a tied matrix' gradients of the pipeline's two ends, which have the same pieces
        in the same order; both get the same bits."""
        ...

    def tensor_group(self, lane: Lane) -> TensorGroup | None:
        """The own tensor group, as the compute or the tensor lane reaches it; None: no others."""
        ...

    def combine(self, lane: Lane | None, values: Tensor, by: By) -> Tensor:
        """What rank 0 makes of every rank's flat values, for this rank: `by` is called there alone,
        and gives values for each rank. `None`: the control channel."""
        ...

    def barrier(self) -> None:
        """Waits, on the control channel, until all ranks have come here."""
        ...

    def exchange_bytes(self, body: bytes, hearers: Collection[int] | None = None) -> list[bytes]:
        """Every world rank's bytes, by rank, over the disk lane's channel; none to ranks that are
        not among the `hearers`."""
        ...

    @property
    def sent_bytes(self) -> int | None:
        """What this rank has sent so far, tensors and words; None: nobody counts it."""
        ...

    def sent_to(self) -> dict[int, int]:
        """The same by the rank that it went to, as sockets were given it."""
        ...

    def hang_up(self) -> None:
        """Whoever waits in a call of it, here or on a peer, is told that the connection is lost.
        From any thread."""
        ...

    def close(self) -> None:
        """Peers see the end of every stream."""
        ...
