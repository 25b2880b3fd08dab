"""Public names of this floor: compute orders compared and searched."""

# pyright: reportUnusedImport=false

from __future__ import annotations

from typing import TYPE_CHECKING

from ratrain.faces import face

if TYPE_CHECKING:
    from ratrain.plan.orders.schedules import Comparison, LaidOut, Predicted, compare, laid_out
    from ratrain.plan.orders.search import Limits, SearchedOrder, SearchResult, search_compared

PUBLIC, __getattr__ = face(__name__)
