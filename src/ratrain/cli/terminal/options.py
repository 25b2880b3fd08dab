"""Types of command-line arguments: names of files, and finite numbers within bounds.

A test walks all verbs and holds that every number has its bounds and every path is one of these.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from ratrain.cli.terminal.mistakes import name_of
from ratrain.errors import SpecError

MOST_STEPS = 1_000_000_000
MOST_SEED = (1 << 63) - 1
"""What torch takes."""


class FilePath(click.Path):
    """A path that a file can have: not empty, of parts that file systems take, in UTF-8."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """The path; what no file can be called is an error."""
        from ratrain.objects.remote import is_url, remote_of
        from ratrain.readers.files import check_name

        place = f"{ctx.command_path if ctx else 'ratrain'} {name_of(param, ctx)}"
        if is_url(str(value)):
            remote_of(str(value), place)
            return self.of_url(str(value), place)
        check_name(str(value), place)
        if str(value) == "-":
            raise SpecError(
                "- is not a file name here",
                place=place,
                fix="give a file's name; ./- is a file called -, and /dev/stdout prints",
            )
        return super().convert(value, param, ctx)

    def of_url(self, url: str, place: str) -> Path:
        """What stands here for a URL."""
        raise SpecError(
            f"{url} is a URL, and no file or folder of this machine",
            place=place,
            fix="fetch it, and give the file",
        )


class RunPath(FilePath):
    """The folder of a run; for one at a URL, the folder from which it is read here."""

    def of_url(self, url: str, place: str) -> Path:
        """Its folder here."""
        from ratrain.runtime.run.working import reading_folder

        return reading_folder(url)


class NewRunPath(FilePath):
    """The folder of a run that begins or goes on; for one at a URL, its folder here."""

    def of_url(self, url: str, place: str) -> Path:
        """Its folder here."""
        from ratrain.runtime.run.working import working_folder

        return working_folder(url)


class OutPath(FilePath):
    """A folder to write, or a URL to send it to."""

    def of_url(self, url: str, place: str) -> Path:
        """Itself: `runtime.run.working.sent_to` knows it for one."""
        return Path(url)


class DeviceName(click.ParamType[str]):
    """What ranks compute on, by its name."""

    name = "device"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name of a declared one."""
        from ratrain.describe.runs_on import runs_on_named

        place = f"{ctx.command_path if ctx else 'ratrain'} {name_of(param, ctx)}"
        return runs_on_named(str(value), place).name

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """The built-in ones."""
        return "[cpu|cuda|deferred|mt3000|...]"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """All that are declared."""
        from ratrain.describe.runs_on import RUNS_ON

        return [CompletionItem(name) for name in RUNS_ON if name.startswith(incomplete)]


class Whole(click.IntRange):
    """A whole number from `low` to `high`."""

    def __init__(self, low: int, high: int) -> None:
        super().__init__(low, high)


class Real(click.FloatRange):
    """A finite number from `low` to `high`."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__(low, high)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; NaN is none, though it is below no bound."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


PATH = FilePath(path_type=Path)
RUN = RunPath(path_type=Path)
NEW_RUN = NewRunPath(path_type=Path)
OUT = OutPath(path_type=Path)
OLD_FILE = FilePath(exists=True, dir_okay=False)
NEW_FILE = FilePath(dir_okay=False, path_type=Path)
