"""`ratrain sample`: text out of a trained model."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import MOST_SEED, MOST_STEPS, RUN, Real, Whole
from ratrain.controls import without_controls

if TYPE_CHECKING:
    from ratrain.corpus.tokenizer import Tokenizer


@click.command()
@click.argument("model", type=RUN, metavar="RUN|HF_FOLDER")
@click.option("--prompt", required=True, metavar="TEXT", help="The text to continue.")
@click.option(
    "--tokens",
    type=Whole(1, 1_000_000),
    metavar="N",
    default=100,
    show_default=True,
    help="Tokens to generate at most.",
)
@click.option(
    "--temperature",
    type=Real(0, 1e6),
    metavar="T",
    default=0.0,
    show_default=True,
    help="0 always takes the most likely token.",
)
@click.option(
    "--seed",
    type=Whole(0, MOST_SEED),
    metavar="N",
    default=0,
    show_default=True,
    help="Seed of random choices.",
)
@click.option(
    "--step",
    type=Whole(0, MOST_STEPS),
    metavar="N",
    help="Use a run's checkpoint of this step. [default: the latest]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    model: Path,
    prompt: str,
    tokens: int,
    temperature: float,
    seed: int,
    step: int | None,
    as_json: bool,
) -> None:
    """Generate text that continues a prompt, printed token by token.

    Reads a run's latest checkpoint or a Hugging Face folder; computes in fp32 on
    the CPU. Stops at the end of a document.

    \b
    Examples:
      ratrain sample runs/quickstart-ratrain --prompt "The " --tokens 200
      ratrain sample out --prompt "def " --temperature 0.8 --seed 1
    """
    from ratrain.cli.terminal.progress import progress
    from ratrain.corpus.tokenizer import tokenizer_of
    from ratrain.models.sample import sample
    from ratrain.runtime.run.trained import prompt_tokens, trained_model

    with progress("reading the weights"):
        trained = trained_model(model, step)
        weights = trained.views()
    tokenizer = tokenizer_of(trained.tokenizer, trained.base)
    stream = sample(
        trained.spec,
        weights,
        prompt_tokens(trained, tokenizer, prompt),
        tokens,
        sequence_length=trained.sequence_length,
        temperature=temperature,
        seed=seed,
        ids=min(tokenizer.vocab_size, trained.spec.vocab),
    )
    text_ids = takewhile(lambda token: token != tokenizer.end_id, stream)
    if as_json:
        ids = _counted(text_ids, tokens)
        body = {"prompt": prompt, "text": tokenizer.decode(ids), "step": trained.step}
        print_json("sample", {**body, "tokens": len(ids)})
    else:
        _print_as_it_comes(prompt, text_ids, tokenizer)


def _counted(stream: Iterable[int], count: int) -> list[int]:
    """All tokens, with progress."""
    from ratrain.cli.terminal.progress import progress

    ids: list[int] = []
    with progress("sampling", "tokens") as report:
        for token in stream:
            ids.append(token)
            report(len(ids), count)
    return ids


def _print_as_it_comes(prompt: str, stream: Iterable[int], tokenizer: Tokenizer) -> None:
    """A character that several tokens make is printed when its last one is there. What a model
    makes up must not move a terminal; a file or pipe gets it as it is."""
    shown = without_controls if sys.stdout.isatty() else str
    write = partial(click.echo, color=True)  # click strips escape sequences of a file else
    write(shown(prompt), nl=False)
    ids: list[int] = []
    printed = ""
    for token in stream:
        ids.append(token)
        text = tokenizer.decode(ids)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            write(shown(text[len(printed) :]), nl=False)
            printed = text
    write(shown(tokenizer.decode(ids)[len(printed) :]))
