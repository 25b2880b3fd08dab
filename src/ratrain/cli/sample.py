"""`ratrain sample`: text out of a trained model."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("model", type=click.Path(path_type=Path), metavar="RUN|HF_FOLDER")
@click.option("--prompt", required=True, metavar="TEXT", help="The text to go on with.")
@click.option("--tokens", type=click.IntRange(1), default=100, show_default=True)
@click.option("--temperature", type=click.FloatRange(0), default=0.0, help="0: the likeliest. [0]")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--step", type=click.IntRange(0), help="Of a run: this checkpoint. [the newest]")
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
    """Print the text that a model goes on with, as it comes.

    Reads a run's newest checkpoint or a Hugging Face folder, on the CPU, in fp32.
    Ends at the end of a document.

    \b
    Examples:
      ratrain sample runs/quickstart-ratrain --prompt "The " --tokens 200
      ratrain sample out --prompt "def " --temperature 0.8 --seed 1
    """
    from ratrain.corpus.tokenizer import tokenizer_of
    from ratrain.models.sample import sample
    from ratrain.runtime.run.trained import trained_model

    found = trained_model(model, step)
    tokenizer = tokenizer_of(found.tokenizer, found.base)
    made: list[int] = []
    shown = ""
    stream = sample(
        found.spec,
        found.views(),
        tokenizer.encode(prompt).tolist(),
        tokens,
        sequence_length=found.sequence_length,
        temperature=temperature,
        seed=seed,
        ids=min(tokenizer.vocab_size, found.spec.vocab),
    )
    if not as_json:
        click.echo(prompt, nl=False)
    for token in stream:
        if token == tokenizer.end_id:
            break
        made.append(token)
        text = tokenizer.decode(made)
        if not as_json and not text.endswith("\N{REPLACEMENT CHARACTER}"):
            click.echo(text[len(shown) :], nl=False)
            shown = text
    if as_json:
        body = {"prompt": prompt, "text": tokenizer.decode(made), "step": found.step}
        click.echo(json.dumps({**body, "tokens": len(made)}, indent=2))
        return
    click.echo(tokenizer.decode(made)[len(shown) :])
