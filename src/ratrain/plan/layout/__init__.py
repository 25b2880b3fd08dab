"""Public names of this floor: parts of a job, and the rows of a search, by themselves."""

# pyright: reportUnusedImport=false

from __future__ import annotations

from typing import TYPE_CHECKING

from ratrain.faces import face

if TYPE_CHECKING:
    from ratrain.plan.layout.enumerate import Group, StateMode, kinds_of_block
    from ratrain.plan.layout.jobs import strategy_of
    from ratrain.plan.layout.links import widened
    from ratrain.plan.layout.placement import place
    from ratrain.plan.layout.plan import plan_of_row, plan_of_setup
    from ratrain.plan.layout.sizes import blocks_of_stages, parameter_balanced_layers, travels

PUBLIC, __getattr__ = face(__name__)
