"""`ratrain`: the list of verbs, loaded only when called, and the one place where errors are shown.

A verb is a module of this package with a click command named `command`. Its one line of help
stands here, so that `ratrain --help` imports neither numpy nor any room.
"""

from __future__ import annotations

import difflib
import json
import sys
from importlib import import_module

import click

from ratrain import __version__
from ratrain.errors import RatrainError

VERBS: dict[str, str] = {
    "models": "the models RATrain knows, layer by layer",
    "clusters": "the clusters RATrain knows, and where each constant comes from",
    "data": "tokenise a job's text and show what there is",
    "plan": "find a layout that fits and is fast",
    "explain": "why this plan: memory, time, runner-ups, what did not fit",
    "program": "build the program of a job: text, picture or CSV",
    "verify": "prove that a program is sound and fits",
    "simulate": "run a job's program on a clock: time, memory, critical path",
    "train": "train a job: prove, run, watch, and report against the prediction",
    "timeline": "a run's step as predicted and as measured, op by op",
    "compare": "two runs: losses, weights, step times; the same bits or not",
    "sample": "text out of a run or a Hugging Face folder",
    "export": "a run's weights as a Hugging Face folder",
    "noc": "inside the chip: a mesh network with collectives",
    "checkpoints": "what a run has saved; verify it, compare two",
    "lab": "a small unequal cluster in this machine: check it, run in it",
    "net": "measure the network between hosts, every pair",
    "reproduce": "the RATrain paper's tables beside ours",
    "validate": "score the cost model on published measurements, or on your own",
    "profile": "measure this machine: products, memory, links, disk",
}


class Verbs(click.Group):
    """A click group whose commands are imported when they are called, not when they are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"ratrain.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """An unknown verb names the nearest known one."""
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            close = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"verbs: {', '.join(VERBS)}"
            raise click.UsageError(f"no verb {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ratrain")
def ratrain() -> None:
    """Train large language models on the hardware you really have.

    Describe a model, a cluster and a memory budget; RATrain builds the training step as a
    program over states, proves that it fits, and predicts its time before anything runs.

    Every verb takes --json and --help.
    """


def main() -> None:
    """Run the command line; an error the user can mend is one message and a non-zero exit.

    Where the reader of a pipe has gone (`| head`), click ends quietly with status 1.
    """
    try:
        status = ratrain.main(standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        _show_json(type(error).__name__, error.format_message())
        error.show()
        sys.exit(error.exit_code)
    except RatrainError as error:
        _show(error)
        sys.exit(error.exit_code)


def _show(error: RatrainError) -> None:
    _show_json(type(error).__name__, error.what, error.place, error.fix)
    click.echo(f"error: {error}", err=True)


def _show_json(kind: str, what: str, place: str = "", fix: str = "") -> None:
    """With --json an error is JSON on stdout too, so that a script never parses prose."""
    if "--json" in sys.argv:
        body = {"error": kind, "what": what, "place": place, "fix": fix}
        click.echo(json.dumps(body, indent=2))
