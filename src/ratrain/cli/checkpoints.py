"""`ratrain checkpoints`: what a run has saved."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ratrain.checkpoint.comparison import Difference
    from ratrain.checkpoint.listing import Listed


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="RUN|FOLDER|CHECKPOINT")
@click.option("--verify", is_flag=True, help="Read every byte and compare every checksum.")
@click.option(
    "--compare",
    "other",
    type=click.Path(path_type=Path),
    metavar="CHECKPOINT",
    help="Compare with this one, bit by bit.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys carry their unit.")
def command(folder: Path, verify: bool, other: Path | None, as_json: bool) -> None:
    """List the checkpoints of a run, oldest first: step, size, ranks, age, whether
    complete, and on which text they were trained. A run's folder, its checkpoints
    folder or one checkpoint will do; --compare takes one checkpoint.

    The exit status is 7 where a checkpoint is damaged, 1 where two compared differ.

    \b
    Examples:
      ratrain checkpoints runs/small
      ratrain checkpoints runs/small --verify
      ratrain checkpoints A/step-00000100 --compare B/step-00000100
    """
    if other is not None:
        _compare(folder, other, as_json)
        return
    from ratrain.checkpoint.folder import leftovers
    from ratrain.checkpoint.listing import listed_at

    found = listed_at(folder)
    if verify:
        found = _verified(found)
    left = leftovers(folder)
    if as_json:
        body = {
            "checkpoints": [_row(one) for one in found],
            "unfinished": [str(path) for path in left],
        }
        click.echo(json.dumps(body, indent=2))
    else:
        before = None
        for one in found:
            data = one.manifest.meta.state.get("data") if one.manifest else before
            if data is not None and data != before:
                click.echo(_data_line(data))
            before = data
            click.echo(_line(one, verify))
        for path in left:
            click.echo(f"{path.name:28}  unfinished; it is never read")
        if not found and not left:
            click.echo(f"no checkpoint in {folder}")
    if any(one.manifest is None for one in found):
        raise SystemExit(7)


def _verified(found: tuple[Listed, ...]) -> tuple[Listed, ...]:
    from dataclasses import replace

    from ratrain.checkpoint.reader import Checkpoint
    from ratrain.cli.progress import progress
    from ratrain.errors import CheckpointError

    total = sum(one.manifest.tensor_bytes for one in found if one.manifest)
    done = 0
    checked: list[Listed] = []
    with progress("verifying", "MB") as report:
        for one in found:
            if one.manifest is None:
                checked.append(one)
                continue
            before = done

            def tick(here: int, _: int, before: int = before) -> None:
                report((before + here) // 10**6, total // 10**6)

            try:
                Checkpoint(one.path, one.manifest).verify(tick)
                checked.append(one)
            except CheckpointError as error:
                checked.append(replace(one, manifest=None, problem=error.what))
            done += one.manifest.tensor_bytes
    return tuple(checked)


def _compare(folder: Path, other: Path, as_json: bool) -> None:
    from ratrain.checkpoint.comparison import compare
    from ratrain.checkpoint.reader import open_checkpoint
    from ratrain.cli.progress import progress

    left, right = open_checkpoint(folder, verify=False), open_checkpoint(other, verify=False)
    with progress("comparing", "M elements") as report:
        found = compare(left, right, lambda done, total: report(done // 10**6, total // 10**6))
    if as_json:
        click.echo(json.dumps({"differences": [_difference_row(each) for each in found]}, indent=2))
    else:
        unlike = [each for each in found if not each.identical]
        for each in unlike:
            click.echo(
                f"{each.unit + '/' + each.kind:20}{each.differing:>15,} of {each.elements:<15,}"
                f" by at most {each.largest:.3g}"
            )
        same = len(found) - len(unlike)
        click.echo(f"{same} of {len(found)} buffers are identical bit by bit")
    if not all(each.identical for each in found):
        raise SystemExit(1)


def _difference_row(each: Difference) -> dict[str, Any]:
    largest = each.largest if each.largest < float("inf") else None
    return {**vars(each), "largest": largest, "identical": each.identical}


def _row(one: Listed) -> dict[str, Any]:
    row: dict[str, Any] = {"path": str(one.path), "step": one.step}
    if one.manifest is None:
        return {**row, "complete": False, "problem": one.problem}
    meta = one.manifest.meta
    return {
        **row,
        "complete": True,
        "model": meta.model,
        "config_hash": meta.config_hash,
        "ranks": len(one.manifest.files),
        "size_bytes": one.manifest.size_bytes,
        "created_s": one.manifest.created_s,
        "state": meta.state,
    }


def _line(one: Listed, verified: bool) -> str:
    from ratrain.describe.units import format_bytes

    if one.manifest is None:
        return f"{one.path.name:15}DAMAGED\n  {one.problem}"
    ranks = len(one.manifest.files)
    return (
        f"{one.path.name:15}{'verified' if verified else 'complete'}"
        f"{format_bytes(one.manifest.size_bytes):>10}  {ranks:>5} rank{'s' * (ranks != 1):1}"
        f"  {_age(time.time() - one.manifest.created_s)}"
    )


def _data_line(data: dict[str, Any]) -> str:
    """What the checkpoints below were trained on."""
    of = f"{data['tokens']:,} tokens, sha256 {data['sha256'][:12]}"
    return f"trained on {data['text']}\n  {of}, tokenizer {data['tokenizer'][:12]}"


def _age(age_s: float) -> str:
    """How long ago, in the largest unit that fits: 7300 -> "2 hours ago"."""
    for unit, length_s in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if age_s >= length_s:
            count = int(age_s // length_s)
            return f"{count} {unit}{'s' * (count != 1)} ago"
    return "just now"
