"""From a job to a program with costs: which ranks hold what, how large it is, how long it takes.

The room has floors, each of which imports only those before it:

- `layout`: where a job's parts stand, how large they are, and every configuration of it;
- `file`: the plan as JSON that people read and edit, and plans whose replicas differ;
- `price`: what memory a plan takes, and how long its ops and its step take;
- `case`: a job or a plan made ready to prove and simulate;
- `draft`: a plan before it has devices: its replicas, about how long it takes, its plans;
- `search`: the plans that are tried, of identical replicas (`layouts`) and of any (`unequal`);
- `orders`: compute orders, compared and searched;
- `words`: all of it in words and as JSON.

Other rooms import the names below, from here, and nothing else of this room. Each is loaded when it
is first used.
"""

# pyright: reportUnusedImport=false

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratrain.plan.case.case import Case, case_of_plan
    from ratrain.plan.case.kinds import KindPart, kind_parts
    from ratrain.plan.case.of_layout import case_as_asked, case_of
    from ratrain.plan.case.standing import Standing
    from ratrain.plan.draft.draft import Draft
    from ratrain.plan.draft.space import Side, Space, sides_of
    from ratrain.plan.file.form import (
        FORMAT,
        Mode,
        PlanCluster,
        PlanFile,
        PlanMember,
        PlanModel,
        PlanReplica,
        PlanStage,
        load_plan,
    )
    from ratrain.plan.file.reading import plan_of_file
    from ratrain.plan.file.writing import write_plan
    from ratrain.plan.layout.enumerate import Group, StateMode, kinds_of_block
    from ratrain.plan.layout.gradient_groups import widened
    from ratrain.plan.layout.jobs import load_job, load_job_to_plan, strategy_of
    from ratrain.plan.layout.other_clusters import kinds_of
    from ratrain.plan.layout.placement import place
    from ratrain.plan.layout.plan import Plan, plan_of_row, plan_of_setup
    from ratrain.plan.layout.sizes import blocks_of_stages, parameter_balanced_layers, travels
    from ratrain.plan.orders.schedules import Comparison, LaidOut, Predicted, compare, laid_out
    from ratrain.plan.orders.search import Limits
    from ratrain.plan.orders.searched import SearchedOrder, SearchResult, search_compared
    from ratrain.plan.price.bill import bill
    from ratrain.plan.price.durations import declare_cost
    from ratrain.plan.price.places import costs_of
    from ratrain.plan.search.case_of_job import case_of_job
    from ratrain.plan.search.every_plan import EveryPlan, every_plan
    from ratrain.plan.search.fit import Way, ways_of
    from ratrain.plan.search.known_plans import plan_of_job, plans_beside, searched
    from ratrain.plan.search.layouts import Checked, Progress, Search, search_layouts
    from ratrain.plan.search.misfit import Misfit, misfits
    from ratrain.plan.search.moves import Drafts, Move, declare_move
    from ratrain.plan.search.tried import Tried
    from ratrain.plan.words.explain import (
        NEAR,
        binding,
        explain,
        explanation_json,
        explanation_text,
    )
    from ratrain.plan.words.explain_kinds import binding_words, busy_words
    from ratrain.plan.words.schedules import compared_json, compared_text
    from ratrain.plan.words.searched import order_found_json, order_found_text, settings
    from ratrain.plan.words.tables import peaks_in_words, simulated_json
    from ratrain.plan.words.unequal import every_json, every_text

_HOME = {
    "case.kinds": "KindPart kind_parts",
    "case.case": "Case case_of_plan",
    "case.of_layout": "case_as_asked case_of",
    "case.standing": "Standing",
    "file.form": (
        "FORMAT Mode PlanCluster PlanFile PlanMember PlanModel PlanReplica PlanStage load_plan"
    ),
    "file.reading": "plan_of_file",
    "file.writing": "write_plan",
    "layout.enumerate": "Group StateMode kinds_of_block",
    "layout.gradient_groups": "widened",
    "layout.jobs": "load_job load_job_to_plan strategy_of",
    "layout.other_clusters": "kinds_of",
    "layout.placement": "place",
    "layout.plan": "Plan plan_of_row plan_of_setup",
    "layout.sizes": "blocks_of_stages parameter_balanced_layers travels",
    "orders.schedules": "Comparison LaidOut Predicted compare laid_out",
    "orders.search": "Limits",
    "orders.searched": "SearchResult SearchedOrder search_compared",
    "price.bill": "bill",
    "price.durations": "declare_cost",
    "price.places": "costs_of",
    "search.case_of_job": "case_of_job",
    "draft.draft": "Draft",
    "search.every_plan": "EveryPlan every_plan",
    "search.fit": "Way ways_of",
    "search.known_plans": "plan_of_job plans_beside searched",
    "search.layouts": "Checked Progress Search search_layouts",
    "search.misfit": "Misfit misfits",
    "search.moves": "Drafts Move declare_move",
    "draft.space": "Side Space sides_of",
    "search.tried": "Tried",
    "words.explain": "NEAR binding explain explanation_json explanation_text",
    "words.explain_kinds": "binding_words busy_words",
    "words.schedules": "compared_json compared_text",
    "words.searched": "order_found_json order_found_text settings",
    "words.tables": "peaks_in_words simulated_json",
    "words.unequal": "every_json every_text",
}
"""The public names of each module."""
PUBLIC = {name: module for module, names in _HOME.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(f"{__name__}.{PUBLIC[name]}"), name))
