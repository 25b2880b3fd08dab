"""The way from Sailor's files to a cluster and a plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ratrain.convert.converted import (
    Converted,
    Model,
    Theirs,
)
from ratrain.convert.sailor.files import (
    Files,
    Group,
    NodeType,
    SailorPlan,
    Training,
)
from ratrain.convert.sailor.hosts import cluster_from, seats_of
from ratrain.convert.sailor.plan import plan_of, read_plan, tensor_groups
from ratrain.convert.sailor.profile import layer_times
from ratrain.describe.strict import load
from ratrain.errors import SpecError
from ratrain.readers.json import read_json_table
from ratrain.readers.place import Place


def convert(files: Files, model: Model, likes: Mapping[str, str]) -> Converted:
    """The cluster and, where one is given, the plan of these files."""
    differs: list[str] = []
    table, place = read_json_table(files.training)
    training = load(Training, table, place, strict=False)
    _require_model(training, place, model)
    nodes, nodes_place = node_types(files.cluster)
    entries = layer_times(files, training, model, differs)
    plan_read, plan_place = (None, Place())
    groups: list[list[Group]] = []
    if files.plan is not None:
        plan_read, plan_place = read_plan(files)
        groups = tensor_groups(plan_read, nodes, plan_place)
    seats = seats_of(groups, nodes, entries)
    cluster = cluster_from(files, seats, nodes, nodes_place, entries, likes, model, differs)
    if plan_read is None:
        return Converted(cluster, None, None, tuple(differs))
    plan = plan_of(plan_read, plan_place, training, model, groups, seats, files.dtype, differs)
    return Converted(cluster, plan, _theirs(plan_read), tuple(differs))


def _theirs(plan: SailorPlan) -> Theirs | None:
    if plan.real:
        return Theirs(plan.real, "measured")
    return Theirs(plan.iter_time, "predicted") if plan.iter_time else None


def _require_model(training: Training, place: Place, model: Model) -> None:
    spec = model.spec
    for key, value in (
        ("hidden_size", spec.hidden),
        ("num_layers", spec.layers),
        ("vocab_size", spec.vocab),
        ("heads", spec.heads),
    ):
        if getattr(training, key) != value:
            raise SpecError(
                f"{getattr(training, key)} here, {value} in {spec.name}",
                place=str(place.at(key)),
                fix="give --model the model that was trained",
            )


def node_types(path: Path) -> tuple[dict[str, NodeType], Place]:
    """Node types by GPU; other keys, such as the zone, are none."""
    table, place = read_json_table(path)
    types = {
        name: load(NodeType, cast("dict[str, Any]", value), place.at(name), strict=False)
        for name, value in table.items()
        if isinstance(value, dict)
    }
    if not types:
        raise SpecError(
            "no GPUs", place=str(place), fix='add "GH-96": {"gpus_per_node": 4, "mem_per_gpu": N}'
        )
    return types, place
