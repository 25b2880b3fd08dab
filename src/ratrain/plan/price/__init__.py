"""Public names of this floor: bills, and costs that plugins declare."""

# pyright: reportUnusedImport=false

from __future__ import annotations

from typing import TYPE_CHECKING

from ratrain.faces import face

if TYPE_CHECKING:
    from ratrain.plan.price.bill import bill_of
    from ratrain.plan.price.durations import declare_cost
    from ratrain.plan.price.places import costs_of

PUBLIC, __getattr__ = face(__name__)
