"""What `ratrain verify` says of a PyTorch pipelining schedule: its options, and its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import PATH

if TYPE_CHECKING:
    from ratrain.program.pipelining.check import Check
    from ratrain.program.pipelining.queues import Queueing

UNSOUND = 4


def schedule_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that schedules alone have."""
    for option in (
        click.option(
            "--repair",
            type=PATH,
            metavar="OUT.csv",
            help="Of a .csv: write it with messages that no rule can stop.",
        ),
        click.option(
            "--times",
            metavar="F=1,B=2,...",
            help="Of a .csv: what F, B, I, W and a message take. [default: 1, 2, 1, 1, 0.05]",
        ),
        click.option(
            "--messages",
            type=click.Choice(["one", "pair", "directed", "free", "all"]),
            help="Of a .csv: how a rank's messages queue: one queue per rank, one per pair of "
            "ranks, one per direction, free.  [default: all, each of these]",
        ),
    ):
        command = option(command)
    return command


def refuse_schedule_options(file: Path, given: Mapping[str, Any], what: str) -> None:
    """Refuses these options where there is nothing that they are about."""
    from ratrain.errors import SpecError

    for name, value in given.items():
        if value is not None:
            raise SpecError(f"{file} {what}", place=f"--{name}", fix=f"leave --{name} out")


def rules_of(messages: str | None) -> tuple[Queueing, ...]:
    """The rules that `--messages` asks for."""
    from ratrain.program.pipelining.queues import Queueing

    return tuple(Queueing) if messages in (None, "all") else (Queueing(messages),)


def times_of(text: str | None) -> dict[str, float]:
    """What `--times` says, over what is usual."""
    from ratrain.errors import SpecError
    from ratrain.program.pipelining.queues import TIMES

    times = dict(TIMES)
    for part in text.split(",") if text is not None else ():
        name, _, number = part.strip().partition("=")
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if name not in times or not 0 < value <= 1e9:
            raise SpecError(
                f"{part.strip()!r} gives no time",
                place="--times",
                fix=f"write e.g. F=1,B=2.1: numbers above 0, for {', '.join(times)}",
            )
        times[name] = value
    return times


def show_check(
    checked: Check,
    messages: str | None,
    times: Mapping[str, float],
    repair: dict[str, Any] | None,
    *,
    as_json: bool,
) -> None:
    """Prints what was found of a schedule as written; exits with 4 where it is not sound."""
    from ratrain.program.pipelining.figures import figures_of
    from ratrain.program.pipelining.words import lines_of

    rules = rules_of(messages)
    if as_json:
        print_json("verify", {**figures_of(checked, rules), "repaired": repair})
    else:
        click.echo("\n".join(lines_of(checked, rules, times)))
    if checked.findings_under(rules):
        raise SystemExit(UNSOUND)


def write_repaired(file: Path, output: Path, times: Mapping[str, float]) -> dict[str, Any]:
    """Writes a schedule with messages that no rule can stop, and says on stderr what differs;
    returns that as figures."""
    from ratrain.describe.units import counted
    from ratrain.program.file import schedule_of_file
    from ratrain.program.pipelining.repair import repaired
    from ratrain.readers.writing import write_whole

    made = repaired(schedule_of_file(file), times)
    write_whole(output, made.text)
    changes = [
        f"{counted(len(words), 'action')} {what}"
        for words, what in ((made.added, "added"), (made.left_out, "left out"))
        if words
    ]
    changes.append(f"{counted(made.rows_changed, 'row')} of {made.rows} changed")
    click.echo(f"wrote {output}, sound under every rule: {', '.join(changes)}", err=True)
    return {
        "file": str(output),
        "added": list(made.added),
        "left_out": list(made.left_out),
        "rows_changed": made.rows_changed,
    }
