"""Sailor's layer times, by micro-batch, tensor degree and slot of the model."""

from __future__ import annotations

from typing import Any, cast

from ratrain.convert.converted import (
    Model,
    object_of,
    placed,
)
from ratrain.convert.entries import (
    Conditions,
    Taken,
    entries_of_slots,
    same_kind_of_slot,
)
from ratrain.convert.sailor.files import (
    SOURCE,
    Files,
    Training,
)
from ratrain.describe.layer_profile import LayerProfile
from ratrain.errors import SpecError
from ratrain.readers.files import shown
from ratrain.readers.json import read_json_table
from ratrain.readers.place import Place


def layer_times(
    files: Files, training: Training, model: Model, differs: list[str]
) -> dict[str, tuple[LayerProfile, ...]]:
    """The entries of each GPU, one set for each tensor degree."""
    entries: dict[str, tuple[LayerProfile, ...]] = {}
    worst = 0.0
    for gpu, path in files.profiles:
        table, place = read_json_table(path)
        by_degree: dict[int, dict[int, list[Taken]]] = {}
        for size, of_size in table.items():
            for degree, slots in object_of(of_size, place.at(size)).items():
                here = place.at(size, degree)
                number = _positive(size, place.at(size)), _positive(degree, here)
                by_degree.setdefault(number[1], {})[number[0]] = _slots(slots, here, model)
        if not by_degree:
            raise SpecError(
                "no measurements", place=str(place), fix='write {"1": {"1": {"0": [...]}}}'
            )
        profiles: list[LayerProfile] = []
        for degree, by_size in sorted(by_degree.items()):
            worst = max(worst, same_kind_of_slot(by_size))
            about = Conditions(
                model.spec,
                training.sequence_length,
                degree,
                files.dtype,
                f"{SOURCE} {path}, {gpu}",
            )
            with placed(place):
                profiles += entries_of_slots(by_size, about)
        entries[gpu] = tuple(profiles)
    if worst > 0.01:
        differs.append(
            f"layers of one measurement differ by up to {worst:.0%} from their median, which is "
            "taken for all"
        )
    if entries:
        differs.append(f"its profiles do not say their dtype: {files.dtype} is taken")
    return entries


def _positive(text: str, place: Place) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 7 and int(text)):
        raise SpecError(
            f"{shown(text)} is not a micro-batch or degree",
            place=str(place),
            fix='write it like "4"',
        )
    return int(text)


def _slots(value: Any, place: Place, model: Model) -> list[Taken]:
    """[forward, backward, update] in seconds of embedding, every layer, head."""
    table = object_of(value, place)
    if len(table) != model.slots:
        raise SpecError(
            f"{len(table)} slots, but {model.spec.name} has {model.slots}: "
            f"{model.spec.layers} layers, embedding and head",
            place=str(place),
            fix="give the profile of this model",
        )
    slots: list[Taken] = []
    for number in range(model.slots):
        here = place.at(str(number))
        times = table.get(str(number))
        if times is None:
            raise SpecError(
                f"slot {number} is missing", place=str(place), fix=f'add "{number}": [...]'
            )
        if (
            not isinstance(times, list)
            or len(times := cast("list[Any]", times)) != 3
            or any(isinstance(t, bool) or not isinstance(t, int | float) for t in times)
            or not (0 < times[0] <= 1e6 and 0 <= times[1] <= 1e6 and 0 <= times[2] <= 1e6)
            or (times[1] == 0 and number)
        ):
            raise SpecError(
                f"{shown(times, 60)} are not the seconds of forward, backward and update",
                place=str(here),
                fix="write [forward, backward, update], forward and backward above 0",
            )
        slots.append(Taken(float(times[0]), float(times[1]), float(times[2])))
    return slots
