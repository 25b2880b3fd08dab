"""`ratrain`: the list of verbs, loaded only when called, and the one place where errors are shown.

A verb is a module of this package with a click command named `command`. Its one line of help
stands here, so that `ratrain --help` imports neither numpy nor any room.
"""

from __future__ import annotations

import difflib
import os
import sys
from importlib import import_module

import click

from ratrain.cli.terminal.interruption import remember_interrupts
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.mistakes import (
    as_error,
    as_missing_extra,
    check_arguments,
    drop_output,
    fitted_to_terminal,
    make_printable,
    open_missing,
    write_out,
)
from ratrain.errors import EXIT_STATUSES, INTERRUPTED, RatrainError
from ratrain.plugins import load_extensions

SECTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "planning": (
        "Before a run",
        {
            "models": "the models RATrain knows, layer by layer",
            "clusters": "the clusters RATrain knows, and the source of every constant",
            "schema": "what a job, cluster, plan or graph file may hold, for editors",
            "data": "tokenise a job's text; count files, tokens and epochs",
            "init": "write a job or a cluster file to begin with",
            "plan": "find a layout that fits and is fast",
            "fit": "what fits a memory, what must move where, how fast it is",
            "explain": "why this plan: memory, time, runners-up, what did not fit",
            "convert": "take over another planner's cluster, layer times and plan",
        },
    ),
    "programs": (
        "Programs",
        {
            "program": "build the program of a job: text, picture or CSV",
            "schedules": "every compute order and strategy on one job, in one table",
            "verify": "prove that a program cannot deadlock and fits in memory",
            "simulate": "predict a job's step: time, memory, where the time goes",
            "timeline": "one step of a run, predicted and measured, op by op",
        },
    ),
    "runs": (
        "Runs",
        {
            "train": "train a job, and compare it with its prediction",
            "graph": "train a graph network on a graph beyond memory",
            "launch": "start a prepared run on the hosts of its cluster",
            "rank": "run one rank of a run, started by srun, mpirun or torchrun",
            "report": "write a run, a plan or a job as an HTML page",
            "checkpoints": "list, verify and compare a run's checkpoints",
            "clean": "remove what killed runs left on a disk",
        },
    ),
    "trained": (
        "Trained models",
        {
            "sample": "generate text with a trained model",
            "evaluate": "loss and perplexity of a trained model on held-out files",
            "export": "write a run's weights as a Hugging Face folder",
            "compare": "compare two runs bit by bit: losses, weights; step times",
        },
    ),
    "chips": (
        "Inside a chip",
        {
            "noc": "simulate a chip's mesh network and its collectives",
            "kernels": "tile programs of a chip: proved, run, timed, drawn",
        },
    ),
    "measuring": (
        "Measurements",
        {
            "profile": "measure this machine: compute, memory, links, disk",
            "check": "compare a device with the CPU, operator by operator",
            "net": "measure the network between every pair of hosts",
            "lab": "emulate a small, unequal cluster on this machine",
            "validate": "score the cost model against measurements, published or yours",
            "reproduce": "the RATrain paper's tables beside ours",
        },
    ),
}
"""Each folder of verbs: its title in the help, and its verbs in the order that people meet them."""

VERBS = {verb: folder for folder, (_, verbs) in SECTIONS.items() for verb in verbs}
"""The folder of each verb."""


class Verbs(click.Group):
    """A click group whose commands are imported when they are called, not when they are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"ratrain.cli.{VERBS[cmd_name]}.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """An unknown verb names the nearest known one."""
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            close = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"verbs: {', '.join(VERBS)}"
            raise click.UsageError(f"unknown verb {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, VERBS)) + 2
        for title, verbs in SECTIONS.values():
            with formatter.section(title):
                formatter.write_dl([(f"{verb:{width}}", line) for verb, line in verbs.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit status"):
            formatter.write_dl([(str(each.number), each.meaning) for each in EXIT_STATUSES])


def _show_version(context: click.Context, _param: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        from ratrain.cli.terminal.about import about

        click.echo(about())
        context.exit()


@click.group(
    cls=Verbs,
    subcommand_metavar="VERB [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version, what it runs on, and what was not compiled.",
)
def ratrain() -> None:
    """Train large language models on the hardware you really have.

    Describe a model, a cluster and a memory budget. RATrain finds a layout that fits,
    proves that it does, predicts its time, trains, and compares the two.

    Every verb takes --json and --help.
    """
    load_extensions()


def main() -> None:
    """Run the command line; an error the user can mend is one message and a non-zero exit.

    Where the reader of a pipe has gone (`| head`), it ends quietly with status 1.
    """
    try:
        with remember_interrupts():
            open_missing()
            make_printable()
            check_arguments(sys.argv[1:])
            status = ratrain.main(standalone_mode=False)
            write_out()
        sys.exit(status if isinstance(status, int) else 0)
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        drop_output()
        sys.exit(1)
    except (click.ClickException, RatrainError, OSError, MemoryError) as error:
        shown_error = as_error(error)
        _show(shown_error, type(error).__name__)
        sys.exit(shown_error.exit_code)
    except ImportError as error:
        missing = as_missing_extra(error)
        if missing is None:
            raise
        _show(missing, type(error).__name__)
        sys.exit(missing.exit_code)


def _show(error: RatrainError, kind: str) -> None:
    """The error on stderr; with --json as JSON on stdout too, so that scripts parse no prose."""
    if "--json" in sys.argv:
        body = {"error": kind, **_fields(error), "more": [_fields(other) for other in error.more]}
        try:
            print_json("error", body)
        except OSError:  # standard output is what is wrong
            drop_output()
    try:
        for shown in (error, *error.more):
            click.echo(fitted_to_terminal(f"error: {shown.alone}", sys.stderr), err=True)
        if error.more:
            click.echo(f"{1 + len(error.more)} errors", err=True)
    except OSError:
        os._exit(error.exit_code)  # nothing can be said anywhere


def _fields(error: RatrainError) -> dict[str, str]:
    return {"what": error.what, "place": error.place, "fix": error.fix}
