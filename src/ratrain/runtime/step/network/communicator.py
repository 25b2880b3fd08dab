"""Tensors between ranks by torch.distributed: NCCL between GPUs, from memory to memory of the
device; gloo between others, from and to host memory.

A rank has one communicator, of all ranks, and gives it sends and receives alone: those of one call
leave and land at once. So there are no two communicators whose order could differ between ranks,
and sums are made here, in the order that all networks have. Whoever calls has seen that the ranks
it names are there, and that no other op of its rank is under way.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ratrain.errors import SpecError
from ratrain.runtime.step.exchange.collective import Tensors
from ratrain.runtime.step.network.staged_network import Staging, fill

_SPINS_S = 0.002
"""For so long a rank looks without a pause whether a GPU has done what it was given."""
_PAUSE_S, _LOOK_S = 0.0001, 0.05
_NCCL_SETTINGS = {
    # A rank looks after its ops itself, and says which one and whose; NCCL's own threads would end
    # the process.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}

Store = Any
"""Of torch.distributed, where communicators find each other."""
DIST: Any = dist
"""Torch's stubs leave out much of what a process group has."""
IsLost = Callable[[], bool]
"""Whether a peer that is awaited is known to have ended."""


class GivenUpError(RuntimeError):
    """What is under way will not end: a peer is lost, time is up, or somebody has hung up."""


class Carrier(Protocol):
    """A communicator of one library."""

    def carry(self, leaving: Tensors, landing: Tensors, is_lost: IsLost) -> None:
        """Sends world ranks the first, and fills the second with what they send, at once; returns
        when all of it has landed, with a RuntimeError where it will not."""
        ...

    def abort(self) -> None:
        """Whoever is in `carry` gets an error; from any thread."""
        ...

    def close(self) -> None: ...


class Gloo:
    """`address`: of this rank, as the others reach it. Nothing ends a wait of gloo's before its
    time, so a thread of its own waits: whoever gives up leaves that behind, with the tensors."""

    def __init__(
        self, store: Store, rank: int, world_size: int, timeout_s: float, address: str
    ) -> None:
        self._store, self._patience, self._aborted = store, timedelta(seconds=timeout_s), False
        options = DIST.ProcessGroupGloo._Options()
        options._devices = [DIST.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = self._patience
        self._group = DIST.ProcessGroupGloo(store, rank, world_size, options)
        self._begun: SimpleQueue[Sequence[dist.Work]] = SimpleQueue()
        self._over: SimpleQueue[RuntimeError | None] = SimpleQueue()
        threading.Thread(target=self._wait, name="gloo", daemon=True).start()

    def carry(self, leaving: Tensors, landing: Tensors, is_lost: IsLost) -> None:
        self._begun.put(
            [
                post([tensor], peer, number)
                for post, tensors in ((self._group.send, leaving), (self._group.recv, landing))
                for peer, of_peer in tensors.items()
                for number, tensor in enumerate(of_peer)
            ]
        )
        while True:
            try:
                error = self._over.get(timeout=_LOOK_S)
                break
            except Empty:
                _require_hope(is_lost, aborted=self._aborted)
        if error is not None:
            raise error

    def _wait(self) -> None:
        while ended := self._ended():
            self._over.put(ended[0])

    def _ended(self) -> tuple[RuntimeError | None] | None:
        """How the next works end, which are let go then; None where there are no more."""
        works = self._begun.get()
        try:
            for work in works:
                work.wait(self._patience)
        except RuntimeError as error:
            return (error,)
        return (None,) if works else None

    def abort(self) -> None:
        self._aborted = True

    def close(self) -> None:
        """Its connections end with it."""
        self._begun.put(())


class Nccl:
    """On a GPU that no other rank uses. Nobody has run it on two GPUs yet."""

    def __init__(
        self, store: Store, rank: int, world_size: int, timeout_s: float, place: torch.device
    ) -> None:
        require_nccl()
        for name, value in _NCCL_SETTINGS.items():
            os.environ.setdefault(name, value)
        self._store, self._timeout_s, self._aborted = store, timeout_s, False
        # With its device all ranks make it now; else the first op would, of whichever ranks.
        dist.init_process_group(
            "nccl",
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
            device_id=place,
        )

    def carry(self, leaving: Tensors, landing: Tensors, is_lost: IsLost) -> None:
        sends = [dist.P2POp(dist.isend, t, peer) for peer, of in leaving.items() for t in of]
        receives = [dist.P2POp(dist.irecv, t, peer) for peer, of in landing.items() for t in of]
        for work in dist.batch_isend_irecv([*sends, *receives]):
            work.wait()  # the lane's stream does, not this thread
        over = torch.cuda.Event()
        over.record()
        self._await(over, is_lost)

    def _await(self, over: torch.cuda.Event, is_lost: IsLost) -> None:
        """What a GPU waits for has no end where a peer is lost, so that is looked after here."""
        began_s = looked_s = time.monotonic()
        while not over.query():
            now_s = time.monotonic()
            if now_s - began_s > self._timeout_s:
                raise GivenUpError("time is up")
            if now_s - looked_s > _LOOK_S:
                looked_s = now_s
                _require_hope(is_lost, aborted=self._aborted)
            if now_s - began_s > _SPINS_S:
                time.sleep(_PAUSE_S)

    def abort(self) -> None:
        self._aborted = True
        dist.distributed_c10d._abort_process_group()

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def _require_hope(is_lost: IsLost, *, aborted: bool) -> None:
    if aborted:
        raise GivenUpError("it was ended here")
    if is_lost():
        raise GivenUpError("the peer has ended")


def require_nccl() -> None:
    """Refuses a build of torch that has none."""
    if not dist.is_nccl_available():
        raise SpecError(
            f"this build of torch ({torch.__version__}) has no NCCL",
            place="[train] network",
            fix='install one that has, or set network = "sockets"',
        )


class Communicator:
    """What a rank sends over a carrier; `staging`: of a device whose memory that does not reach."""

    def __init__(self, carrier: Carrier, staging: Staging | None = None) -> None:
        self._carrier, self._staging, self._ended = carrier, staging, False
        self.sent_bytes: dict[int, int] = defaultdict(int)  # by world rank

    def exchange(self, leaving: Tensors, landing: Tensors, is_lost: IsLost) -> None:
        """Sends world ranks the first, and fills the second, at once; by world rank. A RuntimeError
        says that it will not end."""
        leaving, landing = _of_any(leaving), _of_any(landing)
        if not (leaving or landing):
            return
        for peer, tensors in leaving.items():
            self.sent_bytes[peer] += sum(tensor.nbytes for tensor in tensors)
        if self._staging is None:
            self._carry(leaving, landing, is_lost)
            return
        rooms = {peer: [*map(self._staging.room, tensors)] for peer, tensors in landing.items()}
        self._carry(self._staging.all_leaving(leaving), rooms, is_lost)
        fill(landing, rooms)

    def _carry(self, leaving: Tensors, landing: Tensors, is_lost: IsLost) -> None:
        if self._ended:
            raise GivenUpError("it has ended")
        try:
            self._carrier.carry(leaving, landing, is_lost)
        except RuntimeError:
            self.abort()  # what is under way has no end
            raise

    def abort(self) -> None:
        """Whoever waits in an exchange gets an error, and so do all later ones; from any thread."""
        if not self._ended:
            self._ended = True
            self._carrier.abort()

    def close(self) -> None:
        """Nothing is sent any more."""
        self._ended = True
        self._carrier.close()


def _of_any(tensors: Tensors) -> Mapping[int, Sequence[Tensor]]:
    """Those of any elements: libraries differ in what they make of none."""
    kept = {peer: [each for each in of if each.numel()] for peer, of in tensors.items()}
    return {peer: of for peer, of in kept.items() if of}
