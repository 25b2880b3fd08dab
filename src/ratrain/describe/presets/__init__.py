"""The models and clusters that come with RATrain, one TOML file each, every constant sourced."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from ratrain.describe.cluster import ClusterSpec
from ratrain.describe.model import ModelSpec
from ratrain.describe.profiles import with_profiles
from ratrain.describe.strict import load, nearest, read_toml
from ratrain.errors import SpecError

T = TypeVar("T")
_HERE = Path(__file__).parent


def model_names() -> tuple[str, ...]:
    """Names of the model presets, sorted."""
    return _names("models")


def cluster_names() -> tuple[str, ...]:
    """Names of the cluster presets, sorted."""
    return _names("clusters")


def model_preset(name: str) -> ModelSpec:
    """The model preset of that name."""
    return _preset(ModelSpec, "models", name)


def cluster_preset(name: str) -> ClusterSpec:
    """The cluster preset of that name."""
    return _preset(ClusterSpec, "clusters", name)


def load_cluster(path: Path) -> ClusterSpec:
    """A cluster file of the user's own; same format as the presets, and a device may name a
    measured profile beside it."""
    table, place = read_toml(path)
    return load(ClusterSpec, with_profiles(table, place, path.parent), place)


def _names(folder: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (_HERE / folder).glob("*.toml")))


def _preset(kind: type[T], folder: str, name: str) -> T:
    names = _names(folder)
    if name not in names:
        what = folder.removesuffix("s")
        raise SpecError(f'there is no {what} "{name}"', place=what, fix=nearest(name, names))
    table, place = read_toml(_HERE / folder / f"{name}.toml")
    return load(kind, table, place)
