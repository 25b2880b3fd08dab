"""The models and clusters that come with RATrain, one TOML file each, every constant sourced."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from ratrain.describe.cluster import ClusterSpec
from ratrain.describe.model import ModelSpec
from ratrain.describe.own import OWN_MODELS
from ratrain.describe.profiles import profile_names, with_profiles
from ratrain.describe.strict import load, nearest
from ratrain.errors import SpecError
from ratrain.plugins import Registry
from ratrain.readers.toml import read_toml

T = TypeVar("T")
_HERE = Path(__file__).parent
_DECLARED: Registry[ClusterSpec] = Registry("cluster")
"""Clusters that packages of others bring."""


def model_names() -> tuple[str, ...]:
    """Names of the model presets, and of models that others declare, sorted."""
    return tuple(sorted((*_names("models"), *OWN_MODELS)))


def cluster_names() -> tuple[str, ...]:
    """Names of the cluster presets, sorted."""
    return tuple(sorted((*_names("clusters"), *_DECLARED)))


def declare_cluster(path: Path | str) -> None:
    """Makes a cluster file known as a preset, by the `name` in it."""
    cluster = load_cluster(Path(path))
    if cluster.name in (*_names("clusters"), *profile_names()):
        raise SpecError(
            f'a cluster "{cluster.name}" already exists', place=str(path), fix="rename it"
        )
    _DECLARED.declare(cluster.name, cluster)


def model_preset(name: str) -> ModelSpec:
    """The model of that name."""
    if name not in _names("models"):
        if name in OWN_MODELS:
            return OWN_MODELS[name].spec(name)
        raise _unknown("model", name, model_names())
    return _preset(ModelSpec, "models", name)


def cluster_preset(name: str) -> ClusterSpec:
    """The cluster preset of that name; the name of a device profile is a cluster of one."""
    if name in profile_names():
        return _preset(ClusterSpec, "profiles", name)
    if name in _names("clusters"):
        return _preset(ClusterSpec, "clusters", name)
    if name in _DECLARED:
        return _DECLARED[name]
    raise _unknown("cluster", name, cluster_names())


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
        raise _unknown(folder.removesuffix("s"), name, names)
    path = _HERE / folder / f"{name}.toml"
    table, place = read_toml(path)
    return load(kind, with_profiles(table, place, path.parent), place)


def _unknown(what: str, name: str, names: tuple[str, ...]) -> SpecError:
    return SpecError(f'there is no {what} "{name}"', place=what, fix=nearest(name, names))
