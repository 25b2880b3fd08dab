"""Buckets: a unit's gradient on its way from backward to its owners, never whole.

The compute lane fills them, in the order in which backward makes the unit's parameters; the reduce
lane empties them. Both work on the same unit and micro-batch at a time. Backward waits while every
bucket is full or leaving.

What goes into which bucket follows from the unit's layout and the order of its functions alone, so
all ranks that hold the unit have the same buckets, whatever the timing. A parameter that fits into
a bucket is never cut, so its product is the one that a whole gradient would get; a larger one is
cut between rows: where gradients are wider than what they are made of, on any rank, between the
pieces in which `models.weights` adds up products anyway; else behind multiples of BUCKET_ROWS.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ratrain.cost.scratch import BUCKET_ROWS
from ratrain.devices import Device, Mark
from ratrain.models.parameters import ALIGN, Parameter, aligned
from ratrain.models.weights import rows_at_once
from ratrain.program.kind import Lane
from ratrain.runtime.step.ledger import Stopped

_ADDED_ELEMENTS = 1 << 14
"""Added to a shard at once: widened, one of the small things that `cost.scratch` counts."""


@dataclass(frozen=True)
class Span:
    """Elements of a bucket, and where in the unit's flat buffer they belong."""

    at: int
    begin: int
    count: int


@dataclass
class Bucket:
    """A piece of memory, and what of a unit's gradient it holds."""

    memory: Tensor
    made: Mark | None = None  # where the device has filled it
    left: Mark | None = None  # where the device has sent what was in it before
    used: int = 0
    spans: list[Span] = field(default_factory=list[Span])

    def filled(self, holders: int) -> Tensor:
        """The elements that are sent: equally many for each holder."""
        return self.memory[: aligned(self.used, ALIGN * holders)]

    def add_to(self, shard: Tensor, owned: slice, values: Tensor, *, first: bool) -> None:
        """Adds those of the bucket's `values` that a rank owns to its shard; `first`: they are what
        it begins with. Memory beside it: a piece, widened."""
        for span in self.spans:
            low, high = max(span.begin, owned.start), min(span.begin + span.count, owned.stop)
            for begin in range(low, high, _ADDED_ELEMENTS):
                end = min(begin + _ADDED_ELEMENTS, high)
                into = shard[begin - owned.start : end - owned.start]
                part = values[begin - span.begin + span.at : end - span.begin + span.at]
                if first:
                    into.copy_(part)
                else:
                    into += part


class Filler:
    """Takes a unit's gradient into one bucket after the other (`models.weights.Sink`)."""

    def __init__(
        self, take: Callable[[], Bucket], leave: Callable[[Bucket], None], *, in_pieces: bool
    ) -> None:
        self._take, self._leave, self._in_pieces = take, leave, in_pieces
        self._bucket: Bucket | None = None

    def places(self, parameter: Parameter) -> Iterator[tuple[slice, Tensor]]:
        rows, width = parameter.rows, parameter.elements // parameter.rows
        begin = 0
        while begin < rows:
            bucket = self._bucket or self._next()
            count = self._rows_that_fit(bucket, parameter, rows - begin, width)
            if not count:
                self._send(bucket)
                continue
            at = aligned(bucket.used)
            bucket.used = at + count * width
            bucket.spans.append(Span(at, parameter.offset + begin * width, count * width))
            shape = (count, width)[: len(parameter.shape)]
            yield slice(begin, begin + count), bucket.memory[at : bucket.used].view(shape)
            begin += count

    def finish(self) -> None:
        """Lets the last bucket leave."""
        if self._bucket is not None:
            self._send(self._bucket)

    def _rows_that_fit(self, bucket: Bucket, parameter: Parameter, rows: int, width: int) -> int:
        """How many of a parameter's next rows go into what is left of a bucket."""
        size, left = len(bucket.memory), len(bucket.memory) - aligned(bucket.used)
        if parameter.elements <= size:
            return rows if rows * width <= left else 0
        piece = rows_at_once(width) if self._in_pieces else BUCKET_ROWS
        fitting = max(left, 0) // width
        return rows if rows <= fitting else fitting // piece * piece

    def _next(self) -> Bucket:
        self._bucket = self._take()
        self._bucket.memory.zero_()
        self._bucket.used = 0
        self._bucket.spans = []
        return self._bucket

    def _send(self, bucket: Bucket) -> None:
        self._bucket = None
        self._leave(bucket)


class Buckets:
    """A rank's buckets, and what its two lanes tell each other of them."""

    def __init__(self, memory: Sequence[Tensor], device: Device, *, in_pieces: bool) -> None:
        self._in_pieces, self._device = in_pieces, device
        self._changed = threading.Condition()
        self._all = [Bucket(tensor) for tensor in memory]
        self._free = deque(self._all)
        self._full: deque[Bucket | None] = deque()  # None: the unit's gradient is complete
        self._met = {Lane.COMPUTE: 0, Lane.REDUCE: 0}
        self._stopped = False
        self._stalled_s = 0.0

    def meet(self, lane: Lane) -> None:
        """Waits until the other lane has come to its op about the same unit and micro-batch, too:
        in the program they happen together. Both lanes have these ops in one order."""
        with self._changed:
            self._met[lane] += 1
            turn = self._met[lane]
            self._changed.notify_all()
            self._wait_for(lambda: min(self._met.values()) >= turn)

    def filler(self) -> Filler:
        """For a unit's backward; what it fills goes to `filled`."""
        return Filler(self._take, self._leave, in_pieces=self._in_pieces)

    def refilled(self) -> Filler:
        """Fills the first bucket again and again: for a backward of which nothing is kept."""
        return Filler(lambda: self._all[0], lambda _: None, in_pieces=self._in_pieces)

    def complete(self) -> None:
        """All of the unit's buckets have been filled."""
        self._put(None)

    def filled(self) -> Iterator[Bucket]:
        """A unit's buckets as they are filled. One is free again when the next is asked for."""
        while True:
            with self._changed:
                self._wait_for(lambda: bool(self._full))
                bucket = self._full.popleft()
            if bucket is None:
                return
            if bucket.made is not None:
                bucket.made.wait()
            yield bucket
            bucket.left = self._device.mark()
            bucket.left.wait()
            with self._changed:
                self._free.append(bucket)
                self._changed.notify_all()

    def stop(self) -> None:
        """Ends all waiting, now and later."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def take_stalled_s(self) -> float:
        """How long backward has waited for buckets since it was last asked; on the compute lane."""
        stalled_s, self._stalled_s = self._stalled_s, 0.0
        return stalled_s

    def _leave(self, bucket: Bucket) -> None:
        """The device may still be filling it."""
        bucket.made = self._device.mark()
        self._put(bucket)

    def _take(self) -> Bucket:
        began_s = time.perf_counter()
        with self._changed:
            self._wait_for(lambda: bool(self._free))
            bucket = self._free.popleft()
        self._stalled_s += time.perf_counter() - began_s
        if bucket.left is not None:
            bucket.left.wait()
        return bucket

    def _put(self, bucket: Bucket | None) -> None:
        with self._changed:
            self._full.append(bucket)
            self._changed.notify_all()

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._stopped or ready())
        if self._stopped:
            raise Stopped


def made_buckets(
    count: int,
    size_bytes: int,
    most_elements: int,
    owners: int,
    dtype: torch.dtype,
    device: Device,
    *,
    widest: int,
    in_pieces: bool,
) -> Buckets:
    """Buckets of that size, or smaller where no gradient has as many elements. All ranks must have
    the same, with elements of any dtype: `widest` has the most bytes of an element, `in_pieces` one
    of them whose gradients are wider than what they are made of."""
    elements = min(size_bytes // widest, most_elements)
    size = aligned(elements, ALIGN * owners)
    memory = [torch.zeros(size, dtype=dtype, device=device.place) for _ in range(count)]
    return Buckets(memory, device, in_pieces=in_pieces)
