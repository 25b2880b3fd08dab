"""`ratrain checkpoints`: what a run has saved."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import PATH, RUN, Whole

if TYPE_CHECKING:
    from ratrain.checkpoint.best import Best
    from ratrain.checkpoint.comparison import Difference
    from ratrain.checkpoint.listing import Listed
    from ratrain.objects.remote import Location


@click.command()
@click.argument("folder", type=RUN, metavar="RUN|FOLDER|CHECKPOINT")
@click.option("--verify", is_flag=True, help="Read all bytes and check their checksums.")
@click.option(
    "--compare",
    "other",
    type=RUN,
    metavar="RUN|CHECKPOINT",
    help="Compare with this checkpoint, or this run's latest, bit by bit.",
)
@click.option(
    "--prune",
    "keep",
    type=Whole(1, 1_000_000),
    metavar="N",
    help="Remove all but the latest N complete ones.",
)
@click.option(
    "--to-dcp",
    type=PATH,
    metavar="FOLDER",
    help="Write the latest one as torch.distributed.checkpoint has it.",
)
@click.option(
    "--from-dcp",
    type=PATH,
    metavar="FOLDER",
    help="Put such a folder, of one you trust, into RUN as a checkpoint of its step.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(
    folder: Path,
    verify: bool,
    other: Path | None,
    keep: int | None,
    to_dcp: Path | None,
    from_dcp: Path | None,
    as_json: bool,
) -> None:
    """List the checkpoints of a run, oldest first: step, state, size, ranks, age, and
    the text they were trained on. The argument is a run's folder, its checkpoints
    folder or one checkpoint; --compare takes the latest checkpoint of a run.

    The exit status is 7 if a checkpoint is damaged, 1 if two compared ones differ,
    9 if --prune is given for a run whose folder another launch owns.

    \b
    Examples:
      ratrain checkpoints runs/small
      ratrain checkpoints runs/small --prune 1
      ratrain checkpoints runs/small --verify
      ratrain checkpoints runs/small --compare runs/other
    """
    if other is not None:
        _compare(folder, other, as_json)
        return
    from ratrain.checkpoint.best import read_best
    from ratrain.checkpoint.folder import step_of
    from ratrain.checkpoint.listing import listed_at, unfinished
    from ratrain.corpus.identity import data_of_state
    from ratrain.describe.lines import wrapped

    if to_dcp is not None:
        _to_dcp(folder, to_dcp)
        return
    if from_dcp is not None:
        _from_dcp(folder, from_dcp)
    removed = _pruned(folder, keep) if keep else []
    checkpoints = listed_at(folder)
    if verify:
        checkpoints = _verified(checkpoints)
    partial = unfinished(folder)
    best = read_best(folder if step_of(folder.resolve()) is None else folder.parent)
    if as_json:
        body = {
            "best_step": best.step if best else None,
            "checkpoints": [_row(checkpoint) for checkpoint in checkpoints],
            "unfinished": [str(path) for path in partial],
            "removed": [str(path) for path in removed],
        }
        print_json("checkpoints", body)
    else:
        for path in removed:
            click.echo(f"{path.name:28}  removed")
        before = None
        for checkpoint in checkpoints:
            data = (
                data_of_state(checkpoint.manifest.meta.state, checkpoint.path)
                if checkpoint.manifest
                else before
            )
            if data is not None and data != before:
                click.echo(_data_line(data))
            before = data
            click.echo(_line(checkpoint, verify, best))
        for path in partial:
            click.echo(f"{path.name:28}  unfinished: ignored")
        if not checkpoints and not partial:
            click.echo("\n".join(wrapped(_none_words(folder))))
    if any(checkpoint.manifest is None for checkpoint in checkpoints):
        raise SystemExit(7)


def _none_words(folder: Path) -> str:
    """That a folder holds no checkpoints, and which runs in it may."""
    runs = sorted(path.name for path in folder.iterdir() if (path / "checkpoints").is_dir())
    beside = f"; it holds runs: {', '.join(runs)}" if runs else ""
    return f"no checkpoints in {folder}{beside}"


def _pruned(folder: Path, keep: int) -> list[Location]:
    """What is removed so that `keep` checkpoints stay; in a run's folder only where it is ours."""
    from ratrain.checkpoint.folder import step_of
    from ratrain.checkpoint.listing import listed_at, prune
    from ratrain.errors import SpecError
    from ratrain.runtime.ownership import claimed_around

    listed_at(folder)  # names a folder that is not there
    if step_of(folder.resolve()) is not None:
        raise SpecError("is one checkpoint", place=str(folder), fix="give --prune the run's folder")
    command = "ratrain checkpoints --prune"
    with claimed_around(folder, command, lambda line: click.echo(line, err=True)):
        return list(prune(folder, keep))


def _to_dcp(folder: Path, target: Path) -> None:
    from ratrain.checkpoint.dcp import write_dcp
    from ratrain.checkpoint.listing import checkpoint_at
    from ratrain.checkpoint.reader import open_checkpoint
    from ratrain.extras import require_package

    require_package("torch")
    checkpoint = open_checkpoint(checkpoint_at(folder), verify=False)
    count = write_dcp(checkpoint, target)
    click.echo(f"{checkpoint.path.name} as {count} tensors in {target}")


def _from_dcp(run: Path, source: Path) -> None:
    from ratrain.checkpoint.dcp import read_dcp
    from ratrain.checkpoint.folder import url_of
    from ratrain.errors import SpecError
    from ratrain.extras import require_package
    from ratrain.runtime.ownership import claimed_around
    from ratrain.runtime.run.resume import require_run
    from ratrain.runtime.run_folder import RunFolder

    require_package("torch")
    require_run(RunFolder(run))
    if url_of(run) is not None:
        raise SpecError(
            "has its checkpoints at a URL",
            place=str(run),
            fix="begin a run with --from, and give --from-dcp its folder",
        )
    with claimed_around(
        run, "ratrain checkpoints --from-dcp", lambda line: click.echo(line, err=True)
    ):
        read_dcp(source, run)


def _verified(checkpoints: tuple[Listed, ...]) -> tuple[Listed, ...]:
    from dataclasses import replace

    from ratrain.checkpoint.reader import Checkpoint
    from ratrain.cli.terminal.progress import progress
    from ratrain.errors import CheckpointError

    total = sum(_here_bytes(checkpoint) for checkpoint in checkpoints)
    done = 0
    checked: list[Listed] = []
    with progress("verifying", "B") as report:
        for checkpoint in checkpoints:
            if checkpoint.manifest is None:
                checked.append(checkpoint)
                continue
            before = done

            def tick(verified: int, _: int, before: int = before) -> None:
                report(before + verified, total)

            try:
                Checkpoint(checkpoint.path, checkpoint.manifest).verify(tick)
                checked.append(checkpoint)
            except CheckpointError as error:
                checked.append(replace(checkpoint, manifest=None, problem=error.what))
            done += _here_bytes(checkpoint)
    return tuple(checked)


def _here_bytes(checkpoint: Listed) -> int:
    """Bytes of tensors in the folder itself, not on other disks."""
    if checkpoint.manifest is None:
        return 0
    elsewhere = sum(file.size_bytes - file.header_bytes for file in checkpoint.elsewhere)
    return checkpoint.manifest.tensor_bytes - elsewhere


def _compare(folder: Path, other: Path, as_json: bool) -> None:
    from ratrain.checkpoint.comparison import compare
    from ratrain.checkpoint.listing import checkpoint_at
    from ratrain.checkpoint.reader import open_checkpoint
    from ratrain.cli.terminal.progress import progress

    paths = [checkpoint_at(path) for path in (folder, other)]
    left, right = (open_checkpoint(path, verify=False) for path in paths)
    with progress("comparing", "elements") as report:
        differences = compare(left, right, report)
    if as_json:
        print_json(
            "checkpoints",
            {
                "compared": [str(path) for path in paths],
                "differences": [_difference_row(difference) for difference in differences],
            },
        )
    else:
        if paths != [folder, other]:
            click.echo("comparing {}\n     with {}".format(*paths))
        unlike = [difference for difference in differences if not difference.identical]
        if unlike:
            click.echo(
                f"{'buffer':20}{'elements that differ':>21}{'':13}largest absolute difference"
            )
        for difference in unlike:
            click.echo(
                f"{difference.unit + '/' + difference.kind:20}"
                f"{difference.differing:>15,} of {difference.elements:<15,}"
                f" {difference.largest:.3g}"
            )
        identical = len(differences) - len(unlike)
        click.echo(f"{identical} of {len(differences)} buffers are identical bit by bit")
    if not all(difference.identical for difference in differences):
        raise SystemExit(1)


def _difference_row(difference: Difference) -> dict[str, Any]:
    largest = difference.largest if difference.largest < float("inf") else None
    return {**vars(difference), "largest": largest, "identical": difference.identical}


def _row(checkpoint: Listed) -> dict[str, Any]:
    row: dict[str, Any] = {"path": str(checkpoint.path), "step": checkpoint.step}
    if checkpoint.manifest is None:
        return {**row, "complete": False, "problem": checkpoint.problem}
    meta = checkpoint.manifest.meta
    return {
        **row,
        "complete": True,
        "model": meta.model,
        "config_hash": meta.config_hash,
        "ranks": checkpoint.manifest.ranks,
        "size_bytes": checkpoint.manifest.size_bytes,
        "created_s": checkpoint.manifest.created_s,
        "elsewhere": _elsewhere(checkpoint),
        "state": meta.state,
    }


def _line(checkpoint: Listed, verified: bool, best: Best | None) -> str:
    from ratrain.describe.units import counted, format_bytes

    if checkpoint.manifest is None:
        return f"{checkpoint.path.name:15}DAMAGED\n  {checkpoint.problem}"
    ranks, elsewhere = checkpoint.manifest.ranks, _elsewhere(checkpoint)
    line = (
        f"{checkpoint.path.name:15}{'verified' if verified else 'complete'}"
        f"{format_bytes(checkpoint.manifest.size_bytes):>10}  {counted(ranks, 'rank'):>11}"
        f"  {_age(time.time() - checkpoint.manifest.created_s)}"
    )
    if best is not None and best.step == checkpoint.step:
        line += f"\n  the best so far: validation loss {best.validation_loss:.4f}"
    if not elsewhere:
        return line
    hosts = ", ".join(dict.fromkeys(elsewhere.values()))
    return f"{line}\n  {ranks - len(elsewhere)} of its {ranks} files are here, the rest on: {hosts}"


def _elsewhere(checkpoint: Listed) -> dict[str, str]:
    """The files of a checkpoint that lie on other disks, and the host of each."""
    if checkpoint.manifest is None or checkpoint.manifest.spread is None:
        return {}
    return {
        file.file: checkpoint.manifest.spread.host_of(file.file) for file in checkpoint.elsewhere
    }


def _data_line(data: Mapping[str, Any]) -> str:
    """What the checkpoints below were trained on."""
    of = f"{data['tokens']:,} tokens, sha256 {data['sha256'][:12]}"
    return f"trained on {data['text']}\n  {of}, tokenizer {data['tokenizer'][:12]}"


def _age(age_s: float) -> str:
    """How long ago, in the largest unit that fits: 7300 -> "2 hours ago"."""
    from ratrain.describe.units import counted

    for unit, length_s in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if age_s >= length_s:
            count = int(age_s // length_s)
            return f"{counted(count, unit)} ago"
    return "just now"
