"""The way from Metis's files to a cluster and a plan."""

from __future__ import annotations

from collections.abc import Mapping

from ratrain.convert.converted import (
    Converted,
    Model,
    Theirs,
)
from ratrain.convert.metis.files import (
    Files,
    Workload,
)
from ratrain.convert.metis.hosts import cluster_from, in_sequence, nodes_of
from ratrain.convert.metis.plan import plan_of, ranked_plan
from ratrain.convert.metis.profile import layer_times
from ratrain.readers.place import Place


def convert(files: Files, model: Model, workload: Workload, likes: Mapping[str, str]) -> Converted:
    """The cluster and, where one is given, the plan of these files."""
    differs: list[str] = []
    nodes = nodes_of(files)
    ranked, place = None, Place()
    if files.plan is not None:
        ranked, place = ranked_plan(files.plan, files.rank)
        nodes = in_sequence(nodes, ranked, place)
    entries = layer_times(files.profiles, model, workload, differs)
    cluster = cluster_from(nodes, files, entries, likes, model, differs)
    if ranked is None:
        return Converted(cluster, None, None, tuple(differs))
    types = [node.about.instance_type for node in nodes for _ in range(node.gpus)]
    plan = plan_of(ranked, place, types, model, workload, differs)
    return Converted(cluster, plan, Theirs(ranked.cost / 1e3, "predicted"), tuple(differs))
