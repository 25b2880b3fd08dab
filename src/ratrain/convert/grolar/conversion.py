"""The way from Grolar's files to a cluster and a plan."""

from __future__ import annotations

from collections.abc import Mapping

from ratrain.convert.converted import (
    Converted,
    Model,
    Theirs,
)
from ratrain.convert.grolar.files import (
    Files,
    Hardware,
    Training,
)
from ratrain.convert.grolar.hosts import cluster_from
from ratrain.convert.grolar.plan import plan_of
from ratrain.convert.grolar.profile import layer_times
from ratrain.describe.strict import load
from ratrain.readers.json import read_json_table
from ratrain.readers.place import Place


def convert(files: Files, model: Model, likes: Mapping[str, str]) -> Converted:
    """The cluster and, where one is given, the plan of these files."""
    table, hardware_place = read_json_table(files.cluster)
    hardware = load(Hardware, table, hardware_place, strict=False)
    training, place = None, Place()
    if files.plan is not None:
        table, place = read_json_table(files.plan)
        training = load(Training, table, place, strict=False)
    differs: list[str] = []
    entries = layer_times(files, training, model)
    cluster = cluster_from(hardware, hardware_place, entries, likes, model, differs)
    if training is None:
        return Converted(cluster, None, None, tuple(differs))
    plan = plan_of(training, place, model, cluster.size or 0, differs)
    theirs = Theirs(training.latency / 1e3, "predicted") if training.latency else None
    return Converted(cluster, plan, theirs, tuple(differs))
