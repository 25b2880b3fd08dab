"""Metis's layer profiles, a file for each GPU, tensor degree and batch."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from ratrain.convert.converted import (
    Model,
    placed,
)
from ratrain.convert.entries import (
    Conditions,
    Taken,
    entries_of_slots,
    same_kind_of_slot,
)
from ratrain.convert.metis.files import (
    FORWARD_PART,
    SOURCE,
    Profile,
    Workload,
)
from ratrain.describe.layer_profile import LayerProfile
from ratrain.describe.strict import load
from ratrain.errors import SpecError
from ratrain.readers.files import shown
from ratrain.readers.json import read_json_table

_NAME = re.compile(r"DeviceType\.(\w{1,40})_tp(\d{1,6})_bs(\d{1,6})\.json", re.ASCII)


def layer_times(
    paths: Iterable[Path], model: Model, workload: Workload, differs: list[str]
) -> dict[str, tuple[LayerProfile, ...]]:
    """The entries of each kind, one set for each tensor degree."""
    taken: dict[tuple[str, int], dict[int, list[Taken]]] = defaultdict(dict)
    for path in paths:
        kind, tensor, size = _conditions(path)
        taken[kind, tensor][size] = _slots(path)
    if not taken:
        return {}
    differs.append(
        "Metis gives one time for a layer's forward and backward: a third is taken as forward; its "
        "memory figures are not used, since RATrain counts states itself"
    )
    worst = max(same_kind_of_slot(by_size) for by_size in taken.values())
    if worst > 0.01:
        differs.append(
            f"layers of one measurement differ by up to {worst:.0%} from their median, which is "
            "taken for all"
        )
    entries: dict[str, list[LayerProfile]] = defaultdict(list)
    for (kind, tensor), by_size in taken.items():
        source = f"{SOURCE} DeviceType.{kind}_tp{tensor}_bs*.json"
        about = Conditions(model.spec, workload.sequence_length, tensor, workload.dtype, source)
        with placed(source):
            entries[kind] += entries_of_slots(by_size, about)
    return {kind: tuple(of_kind) for kind, of_kind in entries.items()}


def _conditions(path: Path) -> tuple[str, int, int]:
    """Kind, tensor degree and batch, which its file's name says."""
    match = _NAME.fullmatch(path.name)
    if match is None or not int(match[2]) or not int(match[3]):
        raise SpecError(
            f"{shown(path.name)} does not say GPU, tensor degree and batch",
            place=str(path),
            fix="name it like DeviceType.A100_tp1_bs4.json",
        )
    return match[1], int(match[2]), int(match[3])


def _slots(path: Path) -> list[Taken]:
    """What each slot took, with its part of the optimizer's time by its parameters."""
    table, place = read_json_table(path)
    profile = load(Profile, table, place, strict=False)
    times = profile.execution_time.layer_compute_total_ms
    params = profile.model.parameters.parameters_per_layer_bytes
    if len(times) < 3 or len(params) != len(times):
        raise SpecError(
            f"{len(times)} layer times and {len(params)} parameter counts",
            place=str(place.at("execution_time", "layer_compute_total_ms")),
            fix="give one of each for embedding, every layer and head",
        )
    for number, time_ms in enumerate(times):
        if time_ms <= 0:
            raise SpecError(
                f"slot {number} takes 0 ms",
                place=str(place.at("execution_time", "layer_compute_total_ms", number)),
                fix="give a time above 0",
            )
    whole_ms, all_params = profile.execution_time.optimizer_time_ms, sum(params) or 1
    return [
        Taken(
            time_ms / 1e3 * FORWARD_PART,
            time_ms / 1e3 * (1 - FORWARD_PART),
            whole_ms / 1e3 * count / all_params,
        )
        for time_ms, count in zip(times, params, strict=True)
    ]
