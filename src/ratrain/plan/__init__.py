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

Other rooms import the names below, from here; what few of them need, from the floor that names it;
and nothing else of this room. Each is loaded when it is first used."""

# pyright: reportUnusedImport=false

from __future__ import annotations

from typing import TYPE_CHECKING

from ratrain.faces import face

if TYPE_CHECKING:
    from ratrain.plan.case.case import Case, case_of, case_of_plan
    from ratrain.plan.file.form import load_plan, write_plan
    from ratrain.plan.file.reading import plan_of_file
    from ratrain.plan.layout.jobs import load_job, load_job_to_plan
    from ratrain.plan.layout.plan import Plan
    from ratrain.plan.search.every_plan import EveryPlan, case_of_job, every_plan

PUBLIC, __getattr__ = face(__name__)
