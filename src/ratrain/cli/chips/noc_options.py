"""What the verbs of `ratrain noc` share: parsing options, writing pictures."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from ratrain.cli.terminal.options import Whole
from ratrain.errors import SpecError

if TYPE_CHECKING:
    from ratrain.chip.noc.spec import RouterSpec

T = TypeVar("T", bound=str)
JSON = click.option(
    "--json", "as_json", is_flag=True, help="print JSON instead of tables; keys name their unit"
)


def parse_shape(text: str) -> tuple[int, int]:
    """'8x8' -> (8, 8)."""
    parts = re.fullmatch(r"(\d+)x(\d+)", text)
    if not parts:
        raise SpecError(
            f"{text!r} is not a shape", place="shape", fix="write columns x rows, e.g. 4x4"
        )
    return int(parts[1]), int(parts[2])


def parse_size(text: str) -> int:
    """'4KiB', '4K' or '4096' -> 4096."""
    parts = re.fullmatch(r"(\d+)\s*(?:([KM])(?:iB)?|B)?", text)
    if not parts:
        raise SpecError(f"{text!r} is not a size", place="--size", fix="write 4096, 4KiB or 1MiB")
    return int(parts[1]) * {"K": 1024, "M": 1 << 20}.get(parts[2] or "", 1)


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
        click.option(
            "--fifo",
            type=Whole(1, 1024),
            default=2,
            show_default=True,
            help="flits per queue (in and out)",
        ),
        click.option(
            "--vcs", type=Whole(1, 16), default=1, show_default=True, help="virtual channels"
        ),
        click.option(
            "--link-stages",
            type=Whole(0, 64),
            default=0,
            show_default=True,
            help="extra cycles per hop",
        ),
        click.option(
            "--fork",
            type=click.Choice(["async", "lockstep"]),
            default="async",
            show_default=True,
            help="async: branches of a multicast may leave at different times",
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
    raise SpecError(
        f"{value!r} is not a valid choice", place="option", fix="use " + ", ".join(choices)
    )


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << max(0, count - 1).bit_length()


def write(path: Path, text: str) -> None:
    """Write a picture and say so."""
    from ratrain.readers.writing import write_whole

    write_whole(path, text)
    click.echo(f"wrote {path}", err=True)
