"""The ledger: every state's bytes, by family and memory tier, under a hard budget.

An op asks before it brings states to life, and waits while they would not fit. The verifier has
proved that no wait is for ever; one that is all the same ends with an error, not with a hang.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ratrain.errors import Infeasible
from ratrain.program.families import DEVICE
from ratrain.runtime.step.schedule import HeldState, Schedule, held_sum


class Stopped(Exception):
    """Another lane failed; raised inside lanes only."""


@dataclass(frozen=True)
class Peak:
    """The most that was held at once, and what it was."""

    size_bytes: int
    items: dict[str, int]


class Ledgers:
    """Counts one rank's states, each tier by itself."""

    def __init__(self, device: Ledger, **others: Ledger) -> None:
        self.device = device
        self._of = {DEVICE: device, **others}

    @property
    def others(self) -> dict[str, Ledger]:
        """The ledgers of tiers below the device, by name."""
        return {tier: ledger for tier, ledger in self._of.items() if tier != DEVICE}

    def take(self, states: tuple[HeldState, ...], who: str, timeout_s: float) -> None:
        """Holds these states from now on; waits until they fit."""
        for tier, part in _by_tier(states).items():
            self._of[tier].take(part, who, timeout_s)

    def give(self, states: tuple[HeldState, ...]) -> None:
        """Holds these states no longer."""
        for tier, part in _by_tier(states).items():
            self._of[tier].give(part)

    def stop(self) -> None:
        """Those who wait for memory, now or later, wait no longer."""
        for ledger in self._of.values():
            ledger.stop()


def ledgers_of(schedule: Schedule, *, limited: bool = True) -> Ledgers:
    """A rank's ledgers, holding what exists all the time; `limited`: under their budgets."""
    setup, persistent = schedule.program.setup, _by_tier(schedule.persistent)
    tiers = {state.tier for op in schedule.ops for state in op.births} | set(persistent)

    def ledger(tier: str) -> Ledger:
        budget = setup.budget_of(schedule.rank, tier) if limited else None
        return Ledger(persistent.get(tier, ()), budget, tier or setup.tier)

    return Ledgers(ledger(DEVICE), **{tier: ledger(tier) for tier in tiers - {DEVICE}})


def _by_tier(states: tuple[HeldState, ...]) -> dict[str, tuple[HeldState, ...]]:
    if all(state.tier == DEVICE for state in states):
        return {DEVICE: states} if states else {}
    tiers = dict.fromkeys(state.tier for state in states)
    return {tier: tuple(state for state in states if state.tier == tier) for tier in tiers}


class Ledger:
    """Counts one rank's states in one tier."""

    def __init__(
        self, persistent: Iterable[HeldState], budget_bytes: int | None, tier: str
    ) -> None:
        self._held: dict[str, int] = defaultdict(int)
        self._budget_bytes = budget_bytes
        self._tier = tier
        self._room = threading.Condition()
        self._total = 0
        self._waits = 0
        self._peak = Peak(0, {})
        self._stopped = False
        self._add(persistent)
        if budget_bytes is not None and self._total > budget_bytes:
            raise Infeasible(
                f"views and optimizer alone take {self._total:,} bytes of {tier}, the budget is "
                f"{budget_bytes:,}",
                place="[schedule] memory_budget",
                fix="plan again with this budget",
            )

    def take(self, states: tuple[HeldState, ...], who: str, timeout_s: float) -> None:
        """Holds these states from now on; waits until they fit."""
        if not states:
            return
        size = held_sum(states)
        with self._room:
            if not self._fits(size):
                self._waits += 1
                fitted = self._room.wait_for(lambda: self._stopped or self._fits(size), timeout_s)
                if self._stopped:
                    raise Stopped
                if not fitted:
                    raise Infeasible(
                        f"{who} waited {timeout_s:g} s for {size:,} bytes of {self._tier}; "
                        f"{self._total:,} of {self._budget_bytes:,} are held: {self.items()}",
                        place=who,
                        fix="this is a bug in the program's proof: please report it",
                    )
            self._add(states)

    def give(self, states: tuple[HeldState, ...]) -> None:
        """Holds these states no longer."""
        if not states:
            return
        with self._room:
            for state in states:
                self._held[state.family] -= state.size_bytes
                self._total -= state.size_bytes
            self._room.notify_all()

    def stop(self) -> None:
        """Those who wait for memory, now or later, wait no longer: none will be freed."""
        with self._room:
            self._stopped = True
            self._room.notify_all()

    def items(self) -> dict[str, int]:
        """Bytes held now, by family."""
        return {name: size for name, size in self._held.items() if size}

    @property
    def total_bytes(self) -> int:
        return self._total

    @property
    def peak(self) -> Peak:
        return self._peak

    @property
    def waits(self) -> int:
        """How often an op had to wait for memory."""
        return self._waits

    def _fits(self, size: int) -> bool:
        return self._budget_bytes is None or self._total + size <= self._budget_bytes

    def _add(self, states: Iterable[HeldState]) -> None:
        for state in states:
            self._held[state.family] += state.size_bytes
            self._total += state.size_bytes
        if self._total > self._peak.size_bytes:
            self._peak = Peak(self._total, self.items())
