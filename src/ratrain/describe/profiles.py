"""A measured profile in a cluster file: `profile = "file.toml"` of a device.

The file is what `ratrain profile -o` writes: a cluster file of one device. What the device
does not say itself (tiers, rates, launch, ...) it takes from there, so that a cluster of several
kinds of machine names one measured file for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ratrain.describe.strict import Place, read_toml
from ratrain.errors import SpecError

KEY = "profile"


def with_profiles(table: Mapping[str, Any], place: Place, base: Path) -> dict[str, Any]:
    """The cluster's table with each device's profile put in its place. `base` is the folder that
    the names of files are relative to. What is no table is left for the strict loader to name."""
    devices = table.get("device")
    if not isinstance(devices, list):
        return dict(table)
    made: list[object] = []
    for number, device in enumerate(cast("list[object]", devices)):
        if isinstance(device, dict) and KEY in device:
            here = place.at("device").at(number)
            made.append(_filled(cast("dict[str, Any]", device), here, base))
        else:
            made.append(cast("object", device))
    return {**table, "device": made}


def _filled(device: dict[str, Any], place: Place, base: Path) -> dict[str, Any]:
    own = {key: value for key, value in device.items() if key != KEY}
    name = device[KEY]
    if not isinstance(name, str):
        raise SpecError(
            f"{name!r} is no file's name",
            place=str(place.at(KEY)),
            fix="write one with `ratrain profile -o this-machine.toml`, and name it",
        )
    if not (base / name).is_file():
        raise SpecError(
            f"there is no file {str(base / name)!r}",
            place=str(place.at(KEY)),
            fix="write one with `ratrain profile -o this-machine.toml`, and name it",
        )
    found, _ = read_toml(base / name)
    measured = found.get("device")
    if not isinstance(measured, list) or len(cast("list[object]", measured)) != 1:
        raise SpecError(
            f"{name} does not describe one device",
            place=str(place.at(KEY)),
            fix="name a file that `ratrain profile -o` wrote",
        )
    (only,) = cast("list[object]", measured)
    if not isinstance(only, dict) or KEY in only:
        wrong = (
            "names a profile of its own"
            if isinstance(only, dict)
            else "holds a device that is no table"
        )
        raise SpecError(
            f"{name} {wrong}",
            place=str(place.at(KEY)),
            fix="name the file with the measured figures itself",
        )
    return {**cast("dict[str, Any]", only), **own}
