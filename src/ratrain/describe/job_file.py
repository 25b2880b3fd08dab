"""A job file read: every choice resolved, every number checked against the others, and all that is
wrong reported at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ratrain.describe.amounts import Devices, FileName, Name, Tokens
from ratrain.describe.cluster import ClusterSpec
from ratrain.describe.huggingface import load_config
from ratrain.describe.job import (
    Batch,
    ClusterChoice,
    JobSpec,
    LayoutSpec,
    ModelChoice,
    ScheduleSpec,
    dtypes_of_kinds,
)
from ratrain.describe.job_checks import Check, check_parts
from ratrain.describe.model import ModelSpec
from ratrain.describe.overrides import with_overrides
from ratrain.describe.presets import cluster_preset, load_cluster, model_preset
from ratrain.describe.strict import load_parts
from ratrain.describe.train import CheckpointSpec, DataSpec, TrainSpec
from ratrain.describe.unused import unused_keys
from ratrain.errors import SpecError
from ratrain.readers.faults import Faults
from ratrain.readers.files import exists, is_folder, nearest_file
from ratrain.readers.place import Place
from ratrain.readers.toml import read_toml

T = TypeVar("T")
_PLAIN = ScheduleSpec()


@dataclass(frozen=True)
class _ModelTable:
    name: FileName  # a preset (`ratrain models`), or the path of a Hugging Face config.json
    sequence_length: Tokens  # tokens


@dataclass(frozen=True)
class _ClusterTable:
    name: FileName  # a preset (`ratrain clusters`), or the path of a cluster file
    devices: Devices  # how many of it the job takes, the first ones
    # hosts that it leaves out, by the names that `--prepare-only` prints: the others keep theirs;
    # where fewer devices are left than it asks for it takes those, and plans for them where its
    # [layout] is for all
    without: tuple[Name, ...] = ()
    # hosts that a run has lost: it writes them beside what was asked of it, and takes them in again
    lost: tuple[Name, ...] = ()


@dataclass(frozen=True)
class JobFile:
    """A job file, table by table."""

    model: _ModelTable
    cluster: _ClusterTable
    batch: Batch
    layout: LayoutSpec | None = None
    schedule: ScheduleSpec = _PLAIN
    train: TrainSpec = TrainSpec()
    data: DataSpec | None = None
    checkpoint: CheckpointSpec = CheckpointSpec()


def job_of_file(
    path: Path, overrides: Sequence[str] = (), more: Sequence[Check] = (), *, keeps_layout: bool
) -> JobSpec:
    """The job of a file, every choice resolved and every number checked against the others.

    `overrides`: values in place of the file's, as `--set` has them (see overrides.py). `more`:
    checks that other rooms make. Without its [layout] it must be one but need not suit the rest.
    """
    _require_job_file(path)
    table, place = with_overrides(*read_toml(path), overrides)
    return job_from_table(table, place, path, more, keeps_layout=keeps_layout)


def _require_job_file(path: Path) -> None:
    """Refuses a run's folder and a plan file by name: both are often given in a job's place."""
    if is_folder(path):
        raise SpecError(
            "it is a folder, not a job file",
            place=str(path),
            fix=f"give a .toml file; for a run: `ratrain report {path}`, or "
            f"`ratrain train --resume --run {path}`",
        )
    if path.suffix == ".json":
        raise SpecError(
            "it is JSON, as a plan is, and not a job (.toml)",
            place=str(path),
            fix=f"see a plan with `ratrain explain {path}`, or train it with "
            f"`ratrain train JOB --plan {path}`",
        )


def job_from_table(
    table: dict[str, Any],
    place: Place,
    path: Path | None = None,
    more: Sequence[Check] = (),
    *,
    keeps_layout: bool = True,
) -> JobSpec:
    """The job of a table already read; `path` anchors relative names in it."""
    faults = Faults()
    parts = load_parts(JobFile, table, place, faults)
    base = path.parent if path else Path()
    asked = parts["cluster"].devices if "cluster" in parts else 0
    with faults:
        if "model" in parts:
            parts["model"] = _model_choice(parts.pop("model"), base, place)
    with faults:
        if "cluster" in parts:
            parts["cluster"] = _cluster_choice(parts.pop("cluster"), base, place)
    layout, cluster = parts.get("layout") if keeps_layout else None, parts.get("cluster")
    left = layout is not None and cluster is not None and cluster.devices < asked == layout.devices
    parts["layout"] = None if left else layout
    if "schedule" not in table:
        parts["schedule"] = ScheduleSpec()
    check_parts(parts, place, faults, more)
    faults.raise_all()
    job = JobSpec(**parts, path=path, left_layout=layout if left else None)
    dtypes = dtypes_of_kinds(job.cluster, job.schedule)
    job = replace(job, schedule=replace(job.schedule, dtypes=dtypes))
    return replace(job, unused=unused_keys(job, table))


def _model_choice(table: _ModelTable, base: Path, place: Place) -> ModelChoice:
    file = base / table.name if table.name.endswith(".json") else None
    _require_there(file, place.at("model", "name"))
    return ModelChoice(_find_model(table.name, base, place), table.sequence_length, file)


def _cluster_choice(table: _ClusterTable, base: Path, place: Place) -> ClusterChoice:
    file = base / table.name if table.name.endswith(".toml") else None
    _require_there(file, place.at("cluster", "name"))
    spec = _find_cluster(table.name, base, place)
    if table.without or table.lost:
        try:
            spec = spec.without((*table.without, *table.lost))
        except SpecError as error:
            at = str(place.at("cluster", "without" if table.without else "lost"))
            raise SpecError(error.what, place=at, fix=error.fix) from error
        left = table.devices if spec.size is None else min(table.devices, spec.size)
        return ClusterChoice(spec, left, file)
    return ClusterChoice(spec, table.devices, file)


def _require_there(file: Path | None, place: Place) -> None:
    """A SpecError at the key that names a file, where there is none."""
    if file is not None and not exists(file):
        raise SpecError(f"there is no file {file}", place=str(place), fix=nearest_file(file))


def _find_model(name: str, base: Path, place: Place) -> ModelSpec:
    if name.endswith(".json"):
        return load_config(base / name)
    return _preset_at(model_preset, name, place.at("model").at("name"))


def _find_cluster(name: str, base: Path, place: Place) -> ClusterSpec:
    if name.endswith(".toml"):
        return load_cluster(base / name)
    return _preset_at(cluster_preset, name, place.at("cluster").at("name"))


def _preset_at(find: Callable[[str], T], name: str, place: Place) -> T:
    try:
        return find(name)
    except SpecError as error:
        raise SpecError(error.what, place=str(place), fix=error.fix) from None
