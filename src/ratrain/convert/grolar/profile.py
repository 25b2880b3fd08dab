"""Grolar's table of layer times, by model, GPU, sequence length and dtype."""

from __future__ import annotations

from typing import Any, cast

from ratrain.convert.converted import (
    DTYPES,
    Model,
    object_of,
    placed,
)
from ratrain.convert.entries import Conditions, Taken, entry_of
from ratrain.convert.grolar.files import (
    Files,
    Training,
)
from ratrain.describe.layer_profile import LayerProfile
from ratrain.describe.strict import nearest
from ratrain.errors import SpecError
from ratrain.readers.files import shown
from ratrain.readers.json import read_json_table
from ratrain.readers.place import Place


def layer_times(
    files: Files, training: Training | None, model: Model
) -> dict[str, tuple[LayerProfile, ...]]:
    """Layer times by GPU: those of the model in all sequence lengths and dtypes."""
    if files.profile is None:
        return {}
    table, place = read_json_table(files.profile)
    name = files.profiled or (training.model_name if training else None)
    if name is None or name not in table:
        raise SpecError(
            f"the file does not say which of its models is {model.spec.name}"
            if name is None
            else f"it has no model {shown(name)}",
            place=str(place),
            fix=f"give --profiled with its name in this file; {nearest(name or '', list(table))}",
        )
    by_kind: dict[str, tuple[LayerProfile, ...]] = {}
    at = place.at(name)
    for gpu, of_gpu in object_of(table[name], at).items():
        entries: list[LayerProfile] = []
        for tokens, of_length in object_of(of_gpu, at.at(gpu)).items():
            for dtype, times in object_of(of_length, at.at(gpu, tokens)).items():
                here = at.at(gpu, tokens, dtype)
                about = Conditions(
                    model.spec,
                    _tokens(tokens, here),
                    1,
                    _dtype(dtype, here),
                    f"{files.profile.name}: {name}, {gpu}",
                )
                with placed(here):
                    entries.append(entry_of(_taken(times, here), "layer", about))
        by_kind[gpu] = tuple(entries)
    return by_kind


def _tokens(text: str, place: Place) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:12]) <= 1 << 27):
        raise SpecError(
            f"{shown(text)} is not a number of tokens", place=str(place), fix='write it like "512"'
        )
    return int(text[:12])


def _dtype(text: str, place: Place) -> str:
    if text not in DTYPES:
        raise SpecError(
            f"{shown(text)} is not a dtype", place=str(place), fix=nearest(text, DTYPES)
        )
    return DTYPES[text]


def _taken(value: Any, place: Place) -> dict[int, Taken]:
    """Times by micro-batch: [line, line, forward, backward], the last two in ms for 1, 2, ...
    samples; or the two lines alone, slope and intercept in ms over samples, read at 1 and 2."""
    lists = cast("list[Any]", value) if isinstance(value, list) else []
    if len(lists) not in (2, 4) or not all(isinstance(row_given, list) for row_given in lists):
        raise SpecError(
            "these are not the lines and times of forward and backward",
            place=str(place),
            fix="write [[slope, intercept], [slope, intercept], forward times, backward times]",
        )
    rows = [_numbers(row_given, place.at(number)) for number, row_given in enumerate(lists)]
    if len(rows) == 2:
        (f, f0), (b, b0) = (_line(row, place.at(number)) for number, row in enumerate(rows))
        times = [(f * size + f0, b * size + b0) for size in (1, 2)]
    elif len(rows[2]) != len(rows[3]) or not rows[2]:
        raise SpecError(
            f"{len(rows[2])} forward times and {len(rows[3])} backward times",
            place=str(place),
            fix="give one of each for every micro-batch",
        )
    else:
        times = list(zip(rows[2], rows[3], strict=True))
    for size, (forward, backward) in enumerate(times, 1):
        if forward <= 0 or backward <= 0:
            raise SpecError(
                f"micro-batch {size} takes {forward:g} ms forward and {backward:g} ms backward",
                place=str(place),
                fix="give times above 0",
            )
    return {size: Taken(f / 1e3, b / 1e3) for size, (f, b) in enumerate(times, 1)}


def _numbers(value: list[Any], place: Place) -> list[float]:
    for number, item in enumerate(value):
        if isinstance(item, bool) or not isinstance(item, int | float) or abs(item) > 1e9:
            raise SpecError(
                f"{shown(item, 40)} is not a time in ms",
                place=str(place.at(number)),
                fix="write a number of ms",
            )
    if len(value) > 10_000:
        raise SpecError(
            f"{len(value):,} numbers", place=str(place), fix="give at most 10,000 micro-batches"
        )
    return [float(item) for item in value]


def _line(row: list[float], place: Place) -> tuple[float, float]:
    if len(row) != 2:
        raise SpecError(
            f"a line of {len(row)} numbers", place=str(place), fix="give slope and intercept"
        )
    return row[0], row[1]
