"""From a job to a program with costs: which ranks hold what, how large it is, how long it takes.

The room has floors, each of which imports only those before it:

- `layout`: where a job's parts stand, how large they are, and every configuration of it;
- `file`: the plan as JSON that people read and edit, and plans whose replicas differ;
- `price`: what memory a plan takes, and how long its ops and its step take;
- `case`: a job or a plan made ready to prove and simulate;
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
    from ratrain.plan.case.case import case_as_asked as case_as_asked
    from ratrain.plan.case.case import case_of as case_of
    from ratrain.plan.case.case import case_of_candidate as case_of_candidate
    from ratrain.plan.case.case import recovery_words as recovery_words
    from ratrain.plan.case.kinds import KindPart as KindPart
    from ratrain.plan.case.kinds import kind_parts as kind_parts
    from ratrain.plan.case.standing import Standing as Standing
    from ratrain.plan.case.standing import standing_of as standing_of
    from ratrain.plan.case.standing import standing_of_placement as standing_of_placement
    from ratrain.plan.case.subject import Subject as Subject
    from ratrain.plan.case.subject import case_of_plan as case_of_plan
    from ratrain.plan.case.subject import case_of_subject as case_of_subject
    from ratrain.plan.case.subject import subject_of as subject_of
    from ratrain.plan.case.uneven import UnevenCase as UnevenCase
    from ratrain.plan.case.uneven import activations_words as activations_words
    from ratrain.plan.case.uneven import joined_words as joined_words
    from ratrain.plan.case.uneven import share_words as share_words
    from ratrain.plan.file.checks import untrainable as untrainable
    from ratrain.plan.file.form import FORMAT as FORMAT
    from ratrain.plan.file.form import Mode as Mode
    from ratrain.plan.file.form import Plan as Plan
    from ratrain.plan.file.form import PlanCluster as PlanCluster
    from ratrain.plan.file.form import PlanMember as PlanMember
    from ratrain.plan.file.form import PlanModel as PlanModel
    from ratrain.plan.file.form import PlanReplica as PlanReplica
    from ratrain.plan.file.form import PlanStage as PlanStage
    from ratrain.plan.file.form import is_uneven as is_uneven
    from ratrain.plan.file.form import load_plan as load_plan
    from ratrain.plan.file.layout import to_candidate as to_candidate
    from ratrain.plan.file.reading import uneven_plan as uneven_plan
    from ratrain.plan.file.uneven import UnevenPlan as UnevenPlan
    from ratrain.plan.file.uneven import UnevenReplica as UnevenReplica
    from ratrain.plan.file.writing import write_plan as write_plan
    from ratrain.plan.layout.candidate import Candidate as Candidate
    from ratrain.plan.layout.candidate import candidate as candidate
    from ratrain.plan.layout.enumerate import Group as Group
    from ratrain.plan.layout.enumerate import StateMode as StateMode
    from ratrain.plan.layout.enumerate import kinds_of_block as kinds_of_block
    from ratrain.plan.layout.further_orders import order_name as order_name
    from ratrain.plan.layout.gradient_groups import widened as widened
    from ratrain.plan.layout.jobs import load_job as load_job
    from ratrain.plan.layout.jobs import load_job_to_plan as load_job_to_plan
    from ratrain.plan.layout.jobs import strategy_of as strategy_of
    from ratrain.plan.layout.other_clusters import kinds_of as kinds_of
    from ratrain.plan.layout.placement import Placement as Placement
    from ratrain.plan.layout.placement import place as place
    from ratrain.plan.layout.sizes import blocks_of_stages as blocks_of_stages
    from ratrain.plan.layout.sizes import layers_of_stages as layers_of_stages
    from ratrain.plan.layout.sizes import parameter_balanced_layers as parameter_balanced_layers
    from ratrain.plan.layout.sizes import travels as travels
    from ratrain.plan.orders.of_plan import PlanOrders as PlanOrders
    from ratrain.plan.orders.schedules import Predicted as Predicted
    from ratrain.plan.orders.schedules import fastest_s as fastest_s
    from ratrain.plan.orders.search import Limits as Limits
    from ratrain.plan.orders.searched import SearchedOrder as SearchedOrder
    from ratrain.plan.orders.searched import SearchResult as SearchResult
    from ratrain.plan.price.bill import bill as bill
    from ratrain.plan.price.durations import costs_of as costs_of
    from ratrain.plan.price.durations import declare_cost as declare_cost
    from ratrain.plan.price.even_places import even_places as even_places
    from ratrain.plan.price.uneven_places import uneven_unit_places as uneven_unit_places
    from ratrain.plan.search.case_of_job import case_of_job as case_of_job
    from ratrain.plan.search.every_plan import EveryPlan as EveryPlan
    from ratrain.plan.search.every_plan import Simulated as Simulated
    from ratrain.plan.search.every_plan import every_plan as every_plan
    from ratrain.plan.search.every_plan import file_of as file_of
    from ratrain.plan.search.every_plan import subject_of_simulated as subject_of_simulated
    from ratrain.plan.search.known_plans import plan_of_job as plan_of_job
    from ratrain.plan.search.known_plans import plans_beside as plans_beside
    from ratrain.plan.search.known_plans import searched as searched
    from ratrain.plan.search.layouts import Checked as Checked
    from ratrain.plan.search.layouts import Progress as Progress
    from ratrain.plan.search.layouts import Search as Search
    from ratrain.plan.search.layouts import Tried as Tried
    from ratrain.plan.search.layouts import search_layouts as search_layouts
    from ratrain.plan.search.misfit import Misfit as Misfit
    from ratrain.plan.search.misfit import misfits as misfits
    from ratrain.plan.words.compared import Compared as Compared
    from ratrain.plan.words.compared import LaidOut as LaidOut
    from ratrain.plan.words.compared import compare as compare
    from ratrain.plan.words.compared import compared_json as compared_json
    from ratrain.plan.words.compared import compared_text as compared_text
    from ratrain.plan.words.compared import laid_out as laid_out
    from ratrain.plan.words.compared import order_found_json as order_found_json
    from ratrain.plan.words.compared import order_found_text as order_found_text
    from ratrain.plan.words.compared import search_compared as search_compared
    from ratrain.plan.words.explain import NEAR as NEAR
    from ratrain.plan.words.explain import binding as binding
    from ratrain.plan.words.explain import explain as explain
    from ratrain.plan.words.explain import explanation_json as explanation_json
    from ratrain.plan.words.explain import explanation_text as explanation_text
    from ratrain.plan.words.explain_kinds import binding_words as binding_words
    from ratrain.plan.words.explain_kinds import busy_words as busy_words
    from ratrain.plan.words.explain_others import plan_words as plan_words
    from ratrain.plan.words.searched import settings as settings
    from ratrain.plan.words.tables import degrees as degrees
    from ratrain.plan.words.tables import headline as headline
    from ratrain.plan.words.tables import peaks_in_words as peaks_in_words
    from ratrain.plan.words.tables import tried_json as tried_json
    from ratrain.plan.words.unequal import every_json as every_json
    from ratrain.plan.words.unequal import every_text as every_text
    from ratrain.plan.words.unequal import timed_json as timed_json

_HOME = {
    "case.case": "Case case_as_asked case_of case_of_candidate recovery_words",
    "case.kinds": "KindPart kind_parts",
    "case.standing": "Standing standing_of standing_of_placement",
    "case.subject": "Subject case_of_plan case_of_subject subject_of",
    "case.uneven": "UnevenCase activations_words joined_words share_words",
    "file.checks": "untrainable",
    "file.form": (
        "FORMAT Mode Plan PlanCluster PlanMember PlanModel PlanReplica PlanStage is_uneven "
        "load_plan"
    ),
    "file.layout": "to_candidate",
    "file.reading": "uneven_plan",
    "file.uneven": "UnevenPlan UnevenReplica",
    "file.writing": "write_plan",
    "layout.candidate": "Candidate candidate",
    "layout.enumerate": "Group StateMode kinds_of_block",
    "layout.further_orders": "order_name",
    "layout.gradient_groups": "widened",
    "layout.jobs": "load_job load_job_to_plan strategy_of",
    "layout.other_clusters": "kinds_of",
    "layout.placement": "Placement place",
    "layout.sizes": "blocks_of_stages layers_of_stages parameter_balanced_layers travels",
    "orders.of_plan": "PlanOrders",
    "orders.schedules": "Predicted fastest_s",
    "orders.search": "Limits",
    "orders.searched": "SearchResult SearchedOrder",
    "price.bill": "bill",
    "price.durations": "costs_of declare_cost",
    "price.even_places": "even_places",
    "price.uneven_places": "uneven_unit_places",
    "search.case_of_job": "case_of_job",
    "search.every_plan": "EveryPlan Simulated every_plan file_of subject_of_simulated",
    "search.known_plans": "plan_of_job plans_beside searched",
    "search.layouts": "Checked Progress Search Tried search_layouts",
    "search.misfit": "Misfit misfits",
    "words.compared": (
        "Compared LaidOut compare compared_json compared_text laid_out order_found_json "
        "order_found_text search_compared"
    ),
    "words.explain": "NEAR binding explain explanation_json explanation_text",
    "words.explain_kinds": "binding_words busy_words",
    "words.explain_others": "plan_words",
    "words.searched": "settings",
    "words.tables": "degrees headline peaks_in_words tried_json",
    "words.unequal": "every_json every_text timed_json",
}
"""The public names of each module."""
PUBLIC = {name: module for module, names in _HOME.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(f"{__name__}.{PUBLIC[name]}"), name))
