"""Whatever ends a verb as one error: what was wrong, where, and what to do about it."""

from __future__ import annotations

import difflib
import errno
import os
import sys
import textwrap
from typing import TextIO

import click

from ratrain.errors import RatrainError, SpecError
from ratrain.extras import missing_extra

_LIKE = 0.7
"""How alike an option must be to be taken for a misspelt one; click asks for less."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


def as_error(error: BaseException) -> RatrainError:
    """Errors of the command line, the system and RATrain itself, in one form."""
    if isinstance(error, RatrainError):
        error.place = error.place or _verb()  # of a library, or of a program made here
        return error
    if isinstance(error, click.ClickException):
        return _usage(error)
    if isinstance(error, OSError):
        return _of_system(error)
    return SpecError(
        "needs more memory than is available",
        place=_verb(),
        fix="use fewer devices, layers, micro-batches or steps",
    )


def as_missing_extra(error: ImportError) -> SpecError | None:
    """The error of a verb that needs an optional package; None where it is another's."""
    return missing_extra(error, _verb())


def check_arguments(arguments: list[str]) -> None:
    """A SpecError for an argument that is no UTF-8: no message, run or JSON could name it."""
    for number, argument in enumerate(arguments, 1):
        if any("\udc80" <= char <= "\udcff" for char in argument):
            raise SpecError(
                f"{argument!a} is not UTF-8",
                place=f"argument {number}",
                fix="rename the file, or type it in UTF-8",
            )


def _usage(error: click.ClickException) -> SpecError:
    """A mistake on the command line; its place is the verb and the option."""
    context = getattr(error, "ctx", None)
    verb = context.command_path if context else _verb()
    fix = f"see `{verb} --help`"
    place = verb
    if isinstance(error, click.NoSuchOption):
        place = f"{verb} {error.option_name}"
        known = error.possibilities or ()
        near = difflib.get_close_matches(error.option_name, known, n=2, cutoff=_LIKE)
        if near:
            fix = f"did you mean {' or '.join(near)}? {fix}"
        return SpecError("there is no such option", place=place, fix=fix)
    if isinstance(error, click.BadParameter):
        return _bad_value(error, verb)
    return SpecError(_sentence(error.format_message()), place=place, fix=fix)


def _bad_value(error: click.BadParameter, verb: str) -> SpecError:
    """A value that an option does not take, or one that is not there."""
    name = name_of(error.param, error.ctx)
    place, accepted = f"{verb} {name}".strip(), _wanted(error.param)
    if isinstance(error, click.MissingParameter):
        fix = f"give {accepted or name}; see `{verb} --help`"
        return SpecError("is missing", place=place, fix=fix)
    problem = _sentence(error.message)
    value, range_, _ = problem.partition(" is not in the range")
    if range_:
        problem = f"{value} is out of range"
    problem = problem.replace("a valid integer range", "a whole number")
    problem = problem.replace("a valid float range", "a number")
    value, choice, _ = problem.partition(" is not one of ")
    if choice and error.param and isinstance(error.param.type, click.Choice):
        choices = [str(choice) for choice in error.param.type.choices]
        near = difflib.get_close_matches(value.strip("'"), choices, n=1)
        lead = f"did you mean {near[0]!r}? " if near else ""
        problem, accepted = f"{value} is not an allowed value", ""
        return SpecError(problem, place=place, fix=f"{lead}valid: {', '.join(choices)}")
    return SpecError(
        problem, place=place, fix=f"give {accepted}" if accepted else f"see `{verb} --help`"
    )


def name_of(param: click.Parameter | None, context: click.Context | None) -> str:
    """`--seed`, or the argument as the help writes it."""
    if param is None:
        return ""
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return param.make_metavar(context) if context else str(param.name).upper()


def _wanted(param: click.Parameter | None) -> str:
    """What an option takes, in words."""
    kind = param.type if param else None
    if isinstance(kind, (click.IntRange, click.FloatRange)):
        kind_name = "a whole number" if isinstance(kind, click.IntRange) else "a number"
        bounds = (f"{bound:,}".removesuffix(".0") for bound in (kind.min, kind.max))
        return f"{kind_name} from {' to '.join(bounds)}"
    return ""


def _sentence(text: str) -> str:
    """Click's words without the full stop, so that they read as ours do."""
    return text.strip().removesuffix(".")


def _of_system(error: OSError) -> SpecError:
    """What the system refused, of a file that no room expected trouble with."""
    from ratrain.readers.files import unwritable

    if isinstance(error.filename, (str, bytes)):
        return unwritable(os.fsdecode(error.filename), error, "the system does not allow it")
    if error.errno in _FULL:
        return _output(error)
    return unwritable(_verb(), error, "the system does not allow it")


def write_out() -> None:
    """Sends off what was printed; a SpecError where the output takes no more (a full disk)."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        raise _output(error) from error


def _output(error: OSError) -> SpecError:
    free = "free some space, or " if error.errno in _FULL else ""
    return SpecError(
        f"cannot be written: {error.strerror}",
        place="standard output",
        fix=f"{free}send the output elsewhere",
    )


def drop_output() -> None:
    """Standard output is closed for good: at its end Python would try once more, and complain."""
    handle = os.open(os.devnull, os.O_WRONLY)
    os.dup2(handle, 1)
    os.close(handle)


def open_missing() -> None:
    """Gives a process that was started with a closed standard stream one that drops everything:
    else the first file that is opened would take its number, and what is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            handle = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            os.set_inheritable(handle, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def make_printable() -> None:
    """Characters that a terminal's encoding lacks are escaped, in place of an error."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def fitted_to_terminal(message: str, stream: TextIO) -> str:
    """The message, its lines broken between words where the terminal would break within them."""
    columns = _columns(stream)
    if not columns:
        return message
    return "\n".join(
        textwrap.fill(
            line.strip(),
            columns,
            initial_indent=line[: len(line) - len(line.lstrip())],
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in message.split("\n")
    )


def _columns(stream: TextIO) -> int:
    """The terminal's width; 0 where the stream is none, or nobody knows."""
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):
        return 0


def _verb() -> str:
    """`ratrain` and the verb that was typed."""
    words = [word for word in sys.argv[1:2] if not word.startswith("-")]
    return " ".join(["ratrain", *words])
