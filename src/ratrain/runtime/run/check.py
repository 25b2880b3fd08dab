"""A job's steps run for a comparison: on its devices, every operator compared; then on the CPU with
exact operators, and with operators that err by chance, for its losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ratrain.check.report import LOSS_ALLOWED, LossRow, Report, merged
from ratrain.errors import RunFailed
from ratrain.readers.json import read_json_table
from ratrain.runtime.device_kinds import device_kinds
from ratrain.runtime.rank.checked import FOLDER
from ratrain.runtime.run.prepare import PreparedRun
from ratrain.runtime.run.ready import Launcher, ReadyRun
from ratrain.runtime.run.session import run_session
from ratrain.runtime.run_folder import Check, RunFolder

REFERENCES: tuple[Check, ...] = ("exact", "scatter 1", "scatter 2")


def checked(
    prepared: PreparedRun,
    folder: Path,
    launcher: Launcher,
    progress: Callable[[int, int], None],
    *,
    losses: bool,
) -> Report:
    """Runs a prepared job once, and for its losses three times more, in folders of `folder`."""
    kinds: tuple[Check, ...] = ("compare", *(REFERENCES if losses else ()))
    steps = prepared.spec.end_step
    runs: dict[Check, RunFolder] = {}
    for number, kind in enumerate(kinds):
        spec = replace(prepared.spec, check=kind)
        ready = launcher.new(replace(prepared, spec=spec), folder / kind.replace(" ", "-"))

        def show(done: int, before: int = number * steps) -> None:
            progress(before + done, len(kinds) * steps)

        _run(ready, show)
        runs[kind] = ready.folder
    found = runs["compare"].path / FOLDER
    ranks = prepared.spec.seats.world_size
    bodies = [read_json_table(found / f"rank-{rank}.json")[0] for rank in range(ranks)]
    rows, uncompared = merged(bodies)
    devices = ", ".join(dict.fromkeys(device_kinds(prepared.case.job, prepared.spec)))
    return Report(devices, rows, _losses(runs) if losses else (), uncompared, found)


def _run(ready: ReadyRun, show: Callable[[int], None]) -> None:
    notes: list[str] = []
    ending = run_session(
        ready.folder,
        ready.spec,
        claim=ready.claim,
        lab=None,
        restarts=0,
        first_step=0,
        show=lambda progress, _: None if progress is None else show(progress.step),
        say=notes.append,
    )
    if ending.stopped:
        raise RunFailed(
            f"was stopped after step {ending.step}", place=str(ready.folder.path), fix="start again"
        )


def _losses(runs: dict[Check, RunFolder]) -> tuple[LossRow, ...]:
    """Step by step, against those of exact operators."""
    values = {kind: _of(folder) for kind, folder in runs.items()}
    exact = values["exact"]
    rows: list[LossRow] = []
    for step, wanted in enumerate(exact):
        off = max(abs(values[kind][step] - wanted) for kind in REFERENCES[1:])
        rows.append(LossRow(step + 1, values["compare"][step], wanted, LOSS_ALLOWED * off))
    return tuple(rows)


def _of(folder: RunFolder) -> list[float]:
    return [row["loss"] for row in folder.read_metrics() if "loss" in row]
