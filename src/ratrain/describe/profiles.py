"""Other files that a device of a cluster file names: its chip's network (`chip = "chip.toml"`), and
a measured profile: `profile = "file.toml"` of a device, or a preset's name.

The file is what `ratrain profile -o` writes: a cluster file of one device. What the device
does not say itself (tiers, rates, launch, measured layers, ...) it takes from there, so that a
cluster of several kinds of machine names one measured file for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ratrain.describe.cluster import ClusterSpec
from ratrain.describe.on_chip import ChipNetwork
from ratrain.describe.schema import schema_of
from ratrain.describe.strict import load, nearest
from ratrain.errors import SpecError
from ratrain.readers.files import exists, shown
from ratrain.readers.place import Place
from ratrain.readers.toml import read_toml

KEY = "profile"
CHIP = "chip"
PRESETS = Path(__file__).parent / "presets" / "profiles"
_WRITE = "write one with `ratrain profile -o this-machine.toml`, and name it here"


def profile_names() -> tuple[str, ...]:
    """Names of the device profiles that come with RATrain, sorted."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.toml")))


def with_profiles(table: Mapping[str, Any], place: Place, base: Path) -> dict[str, Any]:
    """The cluster's table with each device's profile put in its place. `base` is the folder that
    the names of files are relative to. What is no table is left for the strict loader to name."""
    devices = table.get("device")
    if not isinstance(devices, list):
        return dict(table)
    made: list[object] = []
    for number, device in enumerate(cast("list[object]", devices)):
        here = place.at("device", number)
        if isinstance(device, dict) and KEY in device:
            device = _filled(cast("dict[str, Any]", device), here, base)
        if isinstance(device, dict) and isinstance(device.get(CHIP), str):
            device = _with_chip(cast("dict[str, Any]", device), here, base)
        made.append(cast("object", device))
    return {**table, "device": made}


def cluster_schema() -> dict[str, Any]:
    """The JSON schema of a cluster file: a device may leave to its profile what it does not say."""
    schema = schema_of(ClusterSpec, "RATrain cluster file")
    device = schema["properties"]["device"]["items"]
    required = device.pop("required")
    device["properties"][KEY] = {
        "type": "string",
        "description": "A file of `ratrain profile -o`, or the name of a profile that comes with "
        "RATrain: it supplies the keys that the device leaves out.",
    }
    inline = device["properties"][CHIP]
    device["properties"][CHIP] = {
        "anyOf": [
            {"type": "string", "description": "A file of `ratrain noc costs --chip`."},
            inline,
        ]
    }
    device["anyOf"] = [{"required": required}, {"required": [KEY]}]
    return schema


def _with_chip(device: dict[str, Any], place: Place, base: Path) -> dict[str, Any]:
    """The device with what the file of its chip's network says. Errors in that file are reported
    with its own lines."""
    path = base / str(device[CHIP])
    if not exists(path):
        raise SpecError(
            f"there is no file {str(path)!r}",
            place=str(place.at(CHIP)),
            fix="write one with `ratrain noc costs --chip 4x1 > chip.toml`, and name it here",
        )
    table, inside = read_toml(path)
    load(ChipNetwork, table, inside)
    return {**device, CHIP: table}


def _filled(device: dict[str, Any], place: Place, base: Path) -> dict[str, Any]:
    """The device with its profile's keys below its own. The whole profile is held to the rules of
    a cluster file, and errors in it are reported with its own lines."""
    given = {key: value for key, value in device.items() if key != KEY}
    name, here = device[KEY], str(place.at(KEY))
    if not isinstance(name, str) or not name:
        raise SpecError(f"{shown(name)} is not a file name", place=here, fix=_WRITE)
    path = _profile_file(name, base, here)
    table, inside = read_toml(path)
    devices = table.get("device")
    if not isinstance(devices, list) or len(cast("list[Any]", devices)) != 1:
        raise SpecError(
            f"{name} does not describe exactly one device",
            place=here,
            fix="give a file that `ratrain profile -o` wrote",
        )
    (only,) = cast("list[Any]", devices)
    if isinstance(only, dict) and KEY in only:
        raise SpecError(
            f"{name} refers to another profile",
            place=here,
            fix="give the file with the measured figures itself",
        )
    load(ClusterSpec, table, inside)
    return {**cast("dict[str, Any]", only), **given}


def _profile_file(name: str, base: Path, place: str) -> Path:
    """The file of a profile: one of the user's, or of those that come with RATrain."""
    is_file = name.endswith(".toml")
    path = base / name if is_file else PRESETS / f"{name}.toml"
    known = profile_names()
    if exists(path) if is_file else name in known:
        return path
    missing = f"file {str(path)!r}" if is_file else f"profile {shown(name)}"
    raise SpecError(
        f"there is no {missing}", place=place, fix=f"{_WRITE}; or {nearest(name, known)}"
    )
