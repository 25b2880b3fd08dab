"""The files that `ratrain init` writes, and `ratrain train --model ... --data ...` runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, cast

import click

if TYPE_CHECKING:
    from ratrain.describe.job import JobSpec
    from ratrain.describe.model import ModelSpec

CLUSTER, TEXT = "this-machine.toml", "text.jsonl"
_FILES = ("data.files", "data.validation", "data.tokenizer", "train.weights")
"""Keys of a job that name files."""
_LENGTH = 512
"""Tokens in a sequence, where the model has as many positions."""


@dataclass(frozen=True)
class JobFiles:
    """What a job is to be about, as the command line has it. Names of files are relative to the
    current folder; without `data` and `cluster` files are written for them."""

    model: str
    data: Sequence[str] = ()
    cluster: str | None = None
    devices: int | None = None


def written_job(
    folder: Path,
    files: JobFiles,
    overrides: tuple[str, ...],
    schedule: str | None,
    *,
    made_by: str,
    check: Callable[[JobSpec], object],
) -> tuple[Path, tuple[str, ...]]:
    """A job that is written to a folder which does not stay, and the `overrides` for it: names of
    files in them are relative to the current folder too. What is wrong, with `check` too, is found
    before the machine is measured: with a cluster of assumed figures."""
    from ratrain.plan import load_job
    from ratrain.profile.starter import assumed_text
    from ratrain.runtime.devices_here import gpu_names

    stem = Path(files.model).name.removesuffix(".json").removesuffix(".toml") or "model"
    anchored = tuple(_anchored(text) for text in overrides)
    trial = folder / "trial"
    trial.mkdir()
    write_new(trial / CLUSTER, assumed_text(len(gpu_names())))
    write_job(trial / f"{stem}.toml", files, made_by=made_by)
    chosen = () if schedule is None else (f"schedule.name={json.dumps(schedule)}",)
    check(replace(load_job(trial / f"{stem}.toml", (*anchored, *chosen)), path=None))
    rmtree(trial)
    write_new(folder / CLUSTER, write_cluster(for_a_run=True))
    write_job(folder / f"{stem}.toml", files, made_by=made_by)
    return folder / f"{stem}.toml", anchored


def _anchored(override: str) -> str:
    """`KEY=VALUE` whose value names files, with absolute names of files that are there."""
    key, equals, value = override.partition("=")
    key = key.strip()
    if key not in _FILES or not equals:
        return override
    from ratrain.errors import SpecError
    from ratrain.readers.toml import parse_toml

    try:
        named: object = parse_toml(f"value = {value}", override)[0]["value"]
    except SpecError:
        named = value.strip()
    if isinstance(named, list):
        names = cast("list[object]", named)
        named = [_there(name, key) if isinstance(name, str) else name for name in names]
    elif isinstance(named, str) and named != "bytes":
        named = _there(named, key)
    return f"{key}={json.dumps(named)}"


def _there(name: str, key: str) -> str:
    """The absolute name of a file, folder or pattern that names something."""
    from ratrain.corpus.sources import sources_of
    from ratrain.errors import SpecError

    path, place = _absolute(name), f"--set {key}"
    if key in ("data.files", "data.validation"):
        sources_of((path,), place=place)
    elif not Path(path).exists():
        problem = f"no such file or folder: {path}"
        raise SpecError(problem, place=place, fix="create it, or correct the path")
    return path


def write_job(file: Path, files: JobFiles, *, made_by: str) -> list[Path]:
    """Writes a job and what it needs beside it; returns what was written."""
    from ratrain.corpus.sources import sources_of
    from ratrain.describe.starter import Starter, job_text

    if files.data:
        sources_of(tuple(files.data), place="--data")
    folder = file.parent
    require_new(file)
    spec, model, weights_folder = _model(files.model)
    written: list[Path] = []
    data = tuple(_absolute(name) for name in files.data)
    cluster = files.cluster
    if cluster is None:
        cluster = CLUSTER
        if not (folder / CLUSTER).exists():
            text = write_cluster()
            write_new(folder / CLUSTER, text)
            written.append(folder / CLUSTER)
    elif cluster.endswith(".toml"):
        cluster = _absolute(cluster)
    devices, dtype = _devices(folder, cluster, files.devices)
    if not data:
        data = (TEXT,)
        if not (folder / TEXT).exists():
            written += _write_text(folder / TEXT)
    text = job_text(
        Starter(
            model,
            min(_LENGTH, spec.max_positions),
            cluster,
            devices,
            dtype,
            data,
            tokenizer=str(weights_folder)
            if weights_folder and (weights_folder / "tokenizer.json").exists()
            else "bytes",
            weights=str(weights_folder)
            if weights_folder and any(weights_folder.glob("*.safetensors"))
            else None,
            made_by=made_by,
        )
    )
    write_new(file, text)
    return [file, *written]


def write_cluster(*, for_a_run: bool = False) -> str:
    """The text of this machine's cluster file. `for_a_run`: of one that times its own ops."""
    from ratrain.cli.terminal.progress import progress
    from ratrain.describe.lines import wrapped
    from ratrain.profile.starter import cluster_text, doubt_words, look

    with progress("looking at this machine", "parts") as tick:
        machine = look(tick)
    words = doubt_words(machine)
    if words and for_a_run:
        words = [
            "This machine was busy while it was measured, so the plan is based on rough figures; "
            "the run's prediction is not, since ranks time their own ops."
        ]
    for sentence in words:
        click.echo("\n".join(wrapped(sentence)), err=True)
    return cluster_text(machine)


def write_new(file: Path, text: str) -> None:
    """Writes a file that is not there yet."""
    from ratrain.readers.writing import write_whole

    require_new(file)
    write_whole(file, text)


def require_new(file: Path) -> None:
    """Refuses a file that is there already, or whose folder is not."""
    from ratrain.errors import SpecError

    if file.exists():
        raise SpecError(
            "already exists", place=str(file), fix="choose another file, or remove this one"
        )
    if not file.parent.is_dir():
        raise SpecError("no such folder", place=str(file.parent), fix="create it first")


def _model(name: str) -> tuple[ModelSpec, str, Path | None]:
    """The model, its name in a job, and its folder where it has one."""
    from ratrain.describe.hub import CONFIG, model_folder
    from ratrain.describe.huggingface import load_config
    from ratrain.describe.presets import model_preset
    from ratrain.errors import SpecError

    folder = model_folder(name)
    if folder is not None:
        folder = folder.resolve()
        return load_config(folder / CONFIG), str(folder / CONFIG), folder
    try:
        return model_preset(name), name, None
    except SpecError as error:
        problem = f"{error.what}, and no folder of that name"
        raise SpecError(problem, place="--model", fix=error.fix) from None


def _devices(folder: Path, cluster: str, devices: int | None) -> tuple[int, str]:
    """How many devices a job takes, and what it computes in: bf16 where they have memory of their
    own, beside the host's, and a rate for it."""
    from ratrain.describe.presets import cluster_preset, load_cluster

    is_file = cluster.endswith(".toml")
    spec = load_cluster(folder / cluster) if is_file else cluster_preset(cluster)
    count = devices or spec.size or 1
    kind = spec.devices(count)[0].kind
    dtypes = [rate.dtype for rate in kind.rates]
    if "bf16" in dtypes and not kind.is_processor:
        return count, "bf16"
    return count, "fp32" if "fp32" in dtypes else dtypes[0]


def _absolute(name: str) -> str:
    return str(Path(name).expanduser().absolute())


def _write_text(file: Path) -> list[Path]:
    from ratrain.corpus.sample_text import write_sample_text

    sample = write_sample_text(file)
    return [sample.file, sample.note]
