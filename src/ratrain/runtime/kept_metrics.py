"""The metrics of a run that resumes: what of them is damaged is set aside, what is lost is said.

A run needs none of them to go on. Whoever reads them later should know that they have gaps.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from itertools import count
from pathlib import Path

from ratrain.errors import SpecError
from ratrain.readers.files import exists, unwritable
from ratrain.readers.json_lines import check_line, is_half, numbered_lines, parse_line
from ratrain.runtime.run_files import check_row
from ratrain.runtime.run_folder import RunFolder


def set_damage_aside(folder: RunFolder) -> list[str]:
    """Leaves the sound lines alone in the metrics, and all of them in a file beside these, where
    any is damaged; in words what was done. A half-written line, as a kill leaves it, may stay."""
    path = folder.metrics
    if not exists(path):
        return []
    problems = {
        number: problem
        for number, line in numbered_lines(path)
        if (problem := _problem(line, path, number))
    }
    if not problems:
        return []
    aside = _free_name(path)
    partial = path.with_name(f"{path.name}.partial")
    try:
        shutil.copyfile(path, aside)
        with partial.open("wb") as file:
            file.writelines(line for number, line in numbered_lines(path) if number not in problems)
        partial.replace(path)
    except OSError as error:
        raise unwritable(aside, error) from error
    first = next(iter(problems.values()))
    others = len(problems) - 1
    more = f", and {others:,} more line{'s' if others > 1 else ''}" if others else ""
    return [f"{first.place}: damaged{more}: {first.what}; the file as it was is {aside.name}"]


def lost_steps(folder: RunFolder, done: int) -> list[str]:
    """In words, which of the first `done` steps have no row in the metrics."""
    kept = {row["step"] for row in folder.read_metrics()}
    lost = [step + 1 for step in range(done) if step not in kept]
    if not lost:
        return []
    name = folder.metrics.name
    there = kept or exists(folder.metrics)
    why = f"{name} has no rows of them" if there else f"{name} is missing"
    return [f"the losses and times of {_in_words(lost)} are lost: {why}"]


def _problem(line: bytes, path: Path, number: int) -> SpecError | None:
    """What is wrong with a line."""
    try:
        check_line(line, str(path), number)
        if line.strip() and not is_half(line):
            check_row(*parse_line(line, str(path), number, finite=False))
    except SpecError as error:
        return error
    return None


def _free_name(path: Path) -> Path:
    """A name beside a file that nothing has: metrics-damaged.jsonl, -2, ..."""
    names = (f"{path.stem}-damaged{f'-{n}' if n > 1 else ''}{path.suffix}" for n in count(1))
    return next(path.with_name(name) for name in names if not exists(path.with_name(name)))


def _in_words(steps: Iterable[int]) -> str:
    """Numbers in rising order: steps 1 to 4, 7 and 9 to 12."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][-1] + 1:
            runs[-1][1:] = [step]
        else:
            runs.append([step])
    words = [" to ".join(map(str, run)) for run in runs]
    if words == [str(runs[0][0])]:
        return f"step {words[0]}"
    return "steps " + (", ".join(words[:-1]) + " and " if words[1:] else "") + words[-1]
