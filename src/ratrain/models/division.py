"""How a tensor group divides a unit's parameters (arXiv 1909.08053).

Matrices that widen (queries, keys, values, gate, up) and those with a row a word (embedding,
logits) are cut by rows; those that narrow again (attention output, down) by columns. Norms, and
biases that are added behind a sum, are whole on every rank. Of experts, and of the router that has
a row for each, every rank has as many.
"""

from __future__ import annotations

from dataclasses import dataclass

from ratrain.describe.held import SCALES
from ratrain.describe.model import ModelSpec
from ratrain.describe.parameters import EXPERTS, LOGITS, ROUTER
from ratrain.describe.trained import LORA_A, NARROWING
from ratrain.errors import SpecError

ROWS, COLUMNS = 0, 1
_BY_ROWS = (
    *("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up"),
    *(ROUTER, *EXPERTS),
)
_BY_COLUMNS = tuple(f"{module}.weight" for module in NARROWING)
_BY_WORDS = ("embedding.tokens", LOGITS, f"{LOGITS}.bias")


@dataclass(frozen=True)
class Division:
    """One rank's part of what a tensor group shares: number `rank` of `degree` equal parts."""

    rank: int = 0
    degree: int = 1

    def of(self, count: int) -> slice:
        """This rank's part of `count` things in a row."""
        share = count // self.degree
        return slice(self.rank * share, (self.rank + 1) * share)


WHOLE = Division()


def cut_dim(parameter: str) -> int | None:
    """The dimension along which a parameter is cut; None: every rank has all of it."""
    parameter = parameter.removesuffix(SCALES)
    module, _, kind = parameter.rpartition(".")
    if kind == LORA_A:  # reads what its matrix reads
        return COLUMNS if module in NARROWING else None
    if parameter in _BY_COLUMNS:
        return COLUMNS
    by_rows = parameter in _BY_WORDS or module in _BY_ROWS
    return ROWS if by_rows else None


def check_divides(spec: ModelSpec, degree: int, place: str = "[layout] tensor") -> None:
    """Raises SpecError where `degree` ranks cannot share the model evenly; `place` names where the
    degree stands."""
    if degree > 1 and spec.qk_norm == "width":
        raise SpecError(
            f"{spec.name} normalises queries and keys over all heads, which a tensor group divides",
            place=place,
            fix="use tensor = 1",
        )
    counts = spec.divided
    for name, count in counts.items():
        if count % degree:
            fits = [d for d in range(1, degree) if not any(c % d for c in counts.values())]
            raise SpecError(
                f"{spec.name} has {name} = {count}, which {degree} ranks cannot share evenly",
                place=place,
                fix=f"use tensor = {fits[-1]}",
            )
