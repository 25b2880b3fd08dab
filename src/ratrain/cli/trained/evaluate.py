"""`ratrain evaluate`: the loss of a trained model on held-out files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import MOST_STEPS, RUN, Whole
from ratrain.errors import SpecError

if TYPE_CHECKING:
    from ratrain.describe.train import DataSpec
    from ratrain.runtime.run.evaluate import Evaluated
    from ratrain.runtime.run.trained import TrainedModel


@click.command()
@click.argument("model", type=RUN, metavar="RUN|HF_FOLDER")
@click.argument("files", nargs=-1, metavar="[FILE...]")
@click.option(
    "--step",
    type=Whole(0, MOST_STEPS),
    metavar="N",
    help="Use a run's checkpoint of this step. [default: the latest]",
)
@click.option(
    "--sequence-length",
    type=Whole(1, 1 << 27),
    metavar="N",
    help="Tokens of each sequence. [default: as in training; of a folder at most 2048]",
)
@click.option(
    "--messages-key",
    metavar="KEY",
    help="Files of conversations: the loss on answers alone. [default: as in training]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    model: Path,
    files: tuple[str, ...],
    step: int | None,
    sequence_length: int | None,
    messages_key: str | None,
    as_json: bool,
) -> None:
    """Loss and perplexity on held-out files, each by itself and together.

    Reads a run's latest checkpoint or a Hugging Face folder; computes in fp32 on
    the CPU. Without FILE: the [data] validation files of the run's job. Files are
    read as the run's job reads its text, with the model's own tokenizer.

    \b
    Examples:
      ratrain evaluate runs/quickstart-ratrain held-out.jsonl
      ratrain evaluate out one.txt two.txt --sequence-length 512 --json
    """
    from ratrain.cli.terminal.progress import progress
    from ratrain.runtime.run.evaluate import all_of, evaluated
    from ratrain.runtime.run.trained import trained_model

    trained = trained_model(model, step)
    data, base, names = _data(model, trained, files, messages_key)
    length = sequence_length or min(
        trained.sequence_length, 2048 if trained.step is None else trained.sequence_length
    )
    with progress("evaluating", "sequences") as report:
        results = evaluated(trained, data, base, names, length, report)
    whole = all_of(results)
    if as_json:
        rows = [{"file": each.file, **_figures(each)} for each in results]
        body = {"step": trained.step, "sequence_length": length, "files": rows}
        print_json("evaluate", {**body, **_figures(whole)})
        return
    shown = [*results, replace(whole, file="all")] if len(results) > 1 else results
    wide = max(len(each.file) for each in shown)
    click.echo(f"{'file':<{wide}}  {'tokens':>12}  {'loss':>8}  {'perplexity':>10}")
    for each in shown:
        figures = f"{each.tokens:>12,}  {each.loss:>8.4f}  {each.perplexity:>10.4g}"
        click.echo(f"{each.file:<{wide}}  {figures}")
    if whole.left_out:
        click.echo(f"not looked at: {whole.left_out:,} tokens at the ends, which fill no sequence")


def _figures(each: Evaluated) -> dict[str, Any]:
    return {
        "tokens": each.tokens,
        "loss": each.loss,
        "perplexity": each.perplexity,
        "left_out_tokens": each.left_out,
    }


def _data(
    path: Path, trained: TrainedModel, files: tuple[str, ...], messages_key: str | None
) -> tuple[DataSpec, Path, tuple[str, ...]]:
    """How the files are read, where relative names start, and what the files are called: those
    that are named here are in this folder, the job's own beside it."""
    from ratrain.describe.train import DataSpec
    from ratrain.runtime.run.evaluate import data_of_run

    of_run = data_of_run(path)
    chosen = files or (of_run.validation if of_run is not None else ())
    if not chosen:
        raise SpecError(
            "there is no held-out text",
            place=f"ratrain evaluate {path}",
            fix="name files, or give the run's job [data] validation",
        )
    absolute = tuple(str(Path(file).absolute()) for file in chosen) if files else chosen
    data = of_run or DataSpec(absolute)
    key = messages_key or data.messages_key
    chosen_data = replace(data, files=absolute, tokenizer=trained.tokenizer, messages_key=key)
    return chosen_data, trained.base, chosen
