"""What the states of a rank are while they exist: tensors and graphs, by the states' names.

An op puts what it makes and gets what it reads. When a state ends is the program's to say: the lane
lets it go behind the op that frees it, or ahead of the op that fills its slot anew. What an op
replaces stays until the op is over, since the device may still be at work on it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from ratrain.devices import CPU, Device
from ratrain.errors import MissingOrder
from ratrain.runtime.step.schedule import Key, LocalOp


class HeldStates:
    """The states that ops make and free. Lanes use it at once, each with states of its own ops."""

    def __init__(self, device: Device = CPU) -> None:
        self._device = device
        self._values: dict[Key, Any] = {}
        self._replaced = threading.local()

    def get(self, key: Key) -> Any:
        """A state's value; None where it does not exist."""
        return self._values.get(key)

    def put(self, key: Key, value: Any) -> None:
        """Makes a state, or replaces what it was."""
        before = self._values.get(key)
        if before is not None and before is not value:
            self._kept().append(before)
        self._device.name(value, key[0])
        self._values[key] = value

    def read(self, op: LocalOp, *families: str) -> Any:
        """What an op reads of one of these families; None where it reads none."""
        for family in families:
            if family in op.reads:
                if op.reads[family] not in self._values:
                    raise _absent(op, family)
                return self._values[op.reads[family]]
        return None

    def write(self, op: LocalOp, value: Any, *families: str) -> None:
        """Puts what an op makes where the program says: in that of these families that it writes.
        Nowhere where nobody reads it."""
        for family in families:
            if family in op.writes:
                self.put(op.writes[family], value)
                return

    def let_go(self, keys: Iterable[Key]) -> None:
        """These states end: nobody uses them any more."""
        for key in keys:
            self._values.pop(key, None)

    def let_replaced_go(self) -> None:
        """The lane's op is over: what it replaced ends."""
        self._kept().clear()

    def clear(self) -> None:
        """All states end."""
        self._values.clear()

    def _kept(self) -> list[Any]:
        kept: list[Any] | None = getattr(self._replaced, "values", None)
        if kept is None:
            kept = self._replaced.values = []
        return kept


def _absent(op: LocalOp, family: str) -> MissingOrder:
    return MissingOrder(
        f"{op.word} reads {family}, which no op has made yet or another has freed",
        fix="let it wait for the op that makes the state: its kind must say that it reads it",
    )
