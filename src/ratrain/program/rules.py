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

from ratrain.program.binding import Binding, Ops
from ratrain.program.kind import Kind, Lane, Scope, new_kind

Rule = Callable[[Binding, Ops], None]

RULES: dict[Kind, Rule] = {}


def declare(name: str, lane: Lane, scope: Scope, uses: Rule, **facts: Any) -> Kind:
    """Declares a kind of op: what it says of itself (`Kind`), and the rule of what it uses."""
    kind = new_kind(name, lane, scope, **facts)
    RULES[kind] = uses
    return kind


def withdraw(kind: Kind) -> None:
    """Takes a declaration back."""
    kind.forget()
    del RULES[kind]
