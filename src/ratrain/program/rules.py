"""The rules: what each kind of op reads, writes and frees. They are the meaning of a program.

A use names a state and a version: version 0 is what the step begins with, and every write makes
the next one. An op waits for the versions it reads; a write waits for the readers of the
version before; a free waits for all readers. Nothing else orders ops of different lanes.

A rule is applied to all ops of its kind at once, so `Ops` and `Ref` hold arrays. It is declared
together with its kind, in `kinds/` or in a third-party package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ratrain.program.binding import Binding
from ratrain.program.kind import Kind, Lane, Partners, Scope
from ratrain.program.uses import Ops

Rule = Callable[[Binding, Ops], None]


def declare(name: str, lane: Lane, scope: Scope, uses: Rule, **facts: Any) -> Kind:
    """Declares a kind of op: what it says of itself (`Kind`), and the rule of what it uses."""
    facts = {"waiting": lane.waiting, **facts}
    kind = Kind.declared("kind of op", name, lane=lane, scope=scope, uses=uses, **facts)
    about_rank = scope in (Scope.RANK, Scope.RANK_REDUCTION)
    kind.is_message = scope is Scope.STAGE_MICRO_BATCH
    kind.is_collective = kind.partners in (Partners.HOLDERS, Partners.PEERS)
    kind.is_tie = kind.partners is Partners.TIED
    kind.is_barrier = about_rank and not kind.method
    kind.is_state_work = kind.is_barrier or not (kind.is_message or lane is Lane.COMPUTE)
    kind.whole_stage = kind.is_message or about_rank
    kind.names_micro_batch = kind.is_message or scope is Scope.UNIT_MICRO_BATCH
    kind.changes_weights = bool(kind.renews or kind.synchronises)
    kind.is_reduction = scope in (Scope.UNIT_REDUCTION, Scope.RANK_REDUCTION)
    kind.uses_buckets = kind.adds_gradient or scope is Scope.UNIT_REDUCTION
    computes = lane is Lane.COMPUTE and not kind.is_message
    kind.words = kind.words or (name if computes else kind.waiting.words)
    return kind
