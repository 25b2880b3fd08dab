"""Public names of this floor: what searches found, and moves that plugins declare."""

# pyright: reportUnusedImport=false

from __future__ import annotations

from typing import TYPE_CHECKING

from ratrain.faces import face

if TYPE_CHECKING:
    from ratrain.plan.draft.draft import Draft
    from ratrain.plan.draft.space import Drafts, Side, Space, sides_of
    from ratrain.plan.search.every_plan import plan_of_job, plans_beside, searched
    from ratrain.plan.search.fit import Way, ways_of
    from ratrain.plan.search.layouts import Checked, Progress, Search, search_layouts
    from ratrain.plan.search.misfit import Misfit, misfits
    from ratrain.plan.search.moves import Move, declare_move
    from ratrain.plan.search.periods import averaging
    from ratrain.plan.search.plan_moves import PlanMove, declare_plan_move
    from ratrain.plan.search.tried import Tried

PUBLIC, __getattr__ = face(__name__)
