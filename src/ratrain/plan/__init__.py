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

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratrain.plan.case.case import Case as Case
    from ratrain.plan.case.case import case_of_plan as case_of_plan
    from ratrain.plan.case.kinds import KindPart as KindPart
    from ratrain.plan.case.kinds import kind_parts as kind_parts
    from ratrain.plan.case.of_layout import case_as_asked as case_as_asked
    from ratrain.plan.case.of_layout import case_of as case_of
    from ratrain.plan.case.standing import Standing as Standing
    from ratrain.plan.draft.draft import Draft as Draft
    from ratrain.plan.draft.space import Side as Side
    from ratrain.plan.draft.space import Space as Space
    from ratrain.plan.draft.space import sides_of as sides_of
    from ratrain.plan.file.form import FORMAT as FORMAT
    from ratrain.plan.file.form import Mode as Mode
    from ratrain.plan.file.form import PlanCluster as PlanCluster
    from ratrain.plan.file.form import PlanFile as PlanFile
    from ratrain.plan.file.form import PlanMember as PlanMember
    from ratrain.plan.file.form import PlanModel as PlanModel
    from ratrain.plan.file.form import PlanReplica as PlanReplica
    from ratrain.plan.file.form import PlanStage as PlanStage
    from ratrain.plan.file.form import load_plan as load_plan
    from ratrain.plan.file.reading import plan_of_file as plan_of_file
    from ratrain.plan.file.writing import write_plan as write_plan
    from ratrain.plan.layout.enumerate import Group as Group
    from ratrain.plan.layout.enumerate import StateMode as StateMode
    from ratrain.plan.layout.enumerate import kinds_of_block as kinds_of_block
    from ratrain.plan.layout.gradient_groups import widened as widened
    from ratrain.plan.layout.jobs import load_job as load_job
    from ratrain.plan.layout.jobs import load_job_to_plan as load_job_to_plan
    from ratrain.plan.layout.jobs import strategy_of as strategy_of
    from ratrain.plan.layout.other_clusters import kinds_of as kinds_of
    from ratrain.plan.layout.placement import place as place
    from ratrain.plan.layout.plan import Plan as Plan
    from ratrain.plan.layout.plan import plan_of_row as plan_of_row
    from ratrain.plan.layout.plan import plan_of_setup as plan_of_setup
    from ratrain.plan.layout.sizes import blocks_of_stages as blocks_of_stages
    from ratrain.plan.layout.sizes import parameter_balanced_layers as parameter_balanced_layers
    from ratrain.plan.layout.sizes import travels as travels
    from ratrain.plan.orders.schedules import Comparison as Comparison
    from ratrain.plan.orders.schedules import LaidOut as LaidOut
    from ratrain.plan.orders.schedules import Predicted as Predicted
    from ratrain.plan.orders.schedules import compare as compare
    from ratrain.plan.orders.schedules import laid_out as laid_out
    from ratrain.plan.orders.search import Limits as Limits
    from ratrain.plan.orders.searched import SearchedOrder as SearchedOrder
    from ratrain.plan.orders.searched import SearchResult as SearchResult
    from ratrain.plan.orders.searched import search_compared as search_compared
    from ratrain.plan.price.bill import bill as bill
    from ratrain.plan.price.durations import declare_cost as declare_cost
    from ratrain.plan.price.places import costs_of as costs_of
    from ratrain.plan.search.case_of_job import case_of_job as case_of_job
    from ratrain.plan.search.every_plan import EveryPlan as EveryPlan
    from ratrain.plan.search.every_plan import every_plan as every_plan
    from ratrain.plan.search.fit import Way as Way
    from ratrain.plan.search.fit import ways_of as ways_of
    from ratrain.plan.search.known_plans import plan_of_job as plan_of_job
    from ratrain.plan.search.known_plans import plans_beside as plans_beside
    from ratrain.plan.search.known_plans import searched as searched
    from ratrain.plan.search.layouts import Checked as Checked
    from ratrain.plan.search.layouts import Progress as Progress
    from ratrain.plan.search.layouts import Search as Search
    from ratrain.plan.search.layouts import search_layouts as search_layouts
    from ratrain.plan.search.misfit import Misfit as Misfit
    from ratrain.plan.search.misfit import misfits as misfits
    from ratrain.plan.search.moves import Drafts as Drafts
    from ratrain.plan.search.moves import Move as Move
    from ratrain.plan.search.moves import declare_move as declare_move
    from ratrain.plan.search.tried import Tried as Tried
    from ratrain.plan.words.explain import NEAR as NEAR
    from ratrain.plan.words.explain import binding as binding
    from ratrain.plan.words.explain import explain as explain
    from ratrain.plan.words.explain import explanation_json as explanation_json
    from ratrain.plan.words.explain import explanation_text as explanation_text
    from ratrain.plan.words.explain_kinds import binding_words as binding_words
    from ratrain.plan.words.explain_kinds import busy_words as busy_words
    from ratrain.plan.words.schedules import compared_json as compared_json
    from ratrain.plan.words.schedules import compared_text as compared_text
    from ratrain.plan.words.searched import order_found_json as order_found_json
    from ratrain.plan.words.searched import order_found_text as order_found_text
    from ratrain.plan.words.searched import settings as settings
    from ratrain.plan.words.tables import peaks_in_words as peaks_in_words
    from ratrain.plan.words.tables import simulated_json as simulated_json
    from ratrain.plan.words.unequal import every_json as every_json
    from ratrain.plan.words.unequal import every_text as every_text

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
