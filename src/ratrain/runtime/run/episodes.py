"""A run goes on with another program: a new episode, in the same folder.

The folder's program, run.json, case.json and job.toml are always those of the last episode; what an
earlier one had lies in episodes/0, episodes/1, ... The files of a new one are written beside them,
and count from the moment when their folder gets its name: what is left to move then is moved by
whoever resumes, so a launch that dies in between leaves one program or the other.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratrain.readers.files import unwritable
from ratrain.runtime.run.facts import write_facts
from ratrain.runtime.run.prepare import PreparedRun
from ratrain.runtime.run_folder import MARKER, RunFolder, RunSpec

_MOVED = ("program.txt", "case.json", "job.toml", MARKER)
_KEPT = (*_MOVED, "report.json", "prediction.json", "predicted.json", "measured.json")


def begin_episode(folder: RunFolder, prepared: PreparedRun, spec: RunSpec) -> None:
    """Puts another program in place of a run's. `spec`: the run's from now on."""
    partial = folder.episodes / "next.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        written = RunFolder(partial)
        written.write_program(spec, prepared.proved.program)
        write_facts(written, prepared.file_job, prepared.case, spec.seats, prepared.verdict)
        shutil.copyfile(spec.job_path, partial / "job.toml")
        partial.rename(_next(folder))
    except OSError as error:
        raise unwritable(partial, error) from error
    finish_episode(folder)


def finish_episode(folder: RunFolder) -> None:
    """Moves what a launch that died has left to move."""
    pending = _next(folder)
    if not pending.is_dir():
        return
    try:
        if (pending / MARKER).exists():
            kept = folder.episodes / str(RunFolder(pending).read_spec().episode - 1)
            kept.mkdir(exist_ok=True)
            for name in _KEPT:
                if (folder.path / name).exists() and not (kept / name).exists():
                    shutil.copyfile(folder.path / name, kept / f"{name}.partial")
                    (kept / f"{name}.partial").rename(kept / name)
            for name in _MOVED:  # run.json last: without it nothing is left to move
                if (pending / name).exists():
                    (pending / name).replace(folder.path / name)
        shutil.rmtree(pending)
    except OSError as error:
        raise unwritable(pending, error) from error


def episodes_of(folder: RunFolder, spec: RunSpec) -> list[dict[str, Any]]:
    """The episodes of a run, oldest first, for its report; none where it has always had the program
    that it has."""
    if not spec.episode:
        return []
    before = [RunFolder(folder.episodes / str(number)) for number in range(spec.episode)]
    specs = [*(each.read_spec() for each in before if (each.path / MARKER).exists()), spec]
    return [
        {
            "number": each.episode,
            "first_step": each.episode_step,
            "ranks": each.seats.world_size,
            "pipeline": each.pipeline,
            "data": each.data,
            "tensor": each.tensor,
        }
        for each in specs
    ]


def episode_words(episodes: Sequence[dict[str, Any]]) -> str:
    """The same for people."""
    return "; ".join(
        f"{each['ranks']} rank{'s' * (each['ranks'] > 1)} (pipeline {each['pipeline']}, data "
        f"{each['data']}, tensor {each['tensor']}) from step {each['first_step']}"
        for each in episodes
    )


def _next(folder: RunFolder) -> Path:
    return folder.episodes / "next"
