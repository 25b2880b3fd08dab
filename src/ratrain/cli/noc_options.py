"""What the verbs of `ratrain noc` share: parsing options, writing pictures, progress."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from ratrain.errors import SpecError

if TYPE_CHECKING:
    from ratrain.chip.noc.spec import RouterSpec

T = TypeVar("T", bound=str)
JSON = click.option("--json", "as_json", is_flag=True, help="print JSON instead of tables")


def parse_shape(text: str) -> tuple[int, int]:
    """'8x8' -> (8, 8)."""
    found = re.fullmatch(r"(\d+)x(\d+)", text)
    if not found:
        raise SpecError(f"{text!r} is not a shape", place="shape", fix="write columns x rows: 4x4")
    return int(found[1]), int(found[2])


def parse_size(text: str) -> int:
    """'4KiB', '4K' or '4096' -> 4096."""
    found = re.fullmatch(r"(\d+)\s*(?:([KM])(?:iB)?|B)?", text)
    if not found:
        raise SpecError(f"{text!r} is not a size", place="--size", fix="write 4096, 4KiB or 1MiB")
    return int(found[1]) * {"K": 1024, "M": 1 << 20}.get(found[2] or "", 1)


def parse_loads(text: str) -> list[float]:
    """'0.05:0.4:0.05' (first, last, step) or '0.1,0.2' -> the offered loads."""
    try:
        if ":" not in text:
            return [float(part) for part in text.split(",")]
        first, last, step = (float(part) for part in text.split(":"))
        if step <= 0 or last < first:
            raise ValueError
    except ValueError as error:
        raise SpecError(
            f"{text!r} is not a list of loads",
            place="--loads",
            fix="write 0.1,0.2 or first:last:step",
        ) from error
    return [round(first + i * step, 6) for i in range(int((last - first) / step + 1.0001))]


def router_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that describe a router."""
    for option in (
        click.option("--fifo", default=2, show_default=True, help="flits per queue (in and out)"),
        click.option("--vcs", default=1, show_default=True, help="virtual channels"),
        click.option("--link-stages", default=0, show_default=True, help="extra cycles per hop"),
        click.option(
            "--fork",
            type=click.Choice(["async", "lockstep"]),
            default="async",
            show_default=True,
            help="whether branches of a multicast may leave apart",
        ),
    ):
        command = option(command)
    return command


def router(fifo: int, vcs: int, link_stages: int, fork: str) -> RouterSpec:
    """The router that the options of `router_options` describe."""
    from ratrain.chip.noc.spec import RouterSpec

    return RouterSpec(
        input_fifo_flits=fifo,
        output_fifo_flits=fifo,
        virtual_channels=vcs,
        link_stages=link_stages,
        fork="lockstep" if fork == "lockstep" else "async",
    )


def one_of(choices: tuple[T, ...], value: str) -> T:
    """`value` as a member of `choices`."""
    for choice in choices:
        if choice == value:
            return choice
    raise SpecError(f"{value!r} is not known here", place="option", fix="use " + ", ".join(choices))


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << max(0, count - 1).bit_length()


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(value, indent=2))


def write(path: Path, text: str) -> None:
    """Write a picture and say so."""
    try:
        path.write_text(text)
    except OSError as error:
        raise SpecError(
            f"cannot write: {error.strerror}", place=str(path), fix="name a writable file"
        ) from error
    click.echo(f"wrote {path}", err=True)


@contextmanager
def progress(total: int, what: str) -> Generator[Callable[[], None]]:
    """A bar on stderr with rate and time left, gone at the end; call the result after each item."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    bar = Progress(
        TextColumn(what),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(what, total=total, rate="")
        started = time.monotonic()

        def advance() -> None:
            done = bar.tasks[0].completed + 1
            bar.update(task, advance=1, rate=f"{done / (time.monotonic() - started):.1f}/s")

        yield advance
