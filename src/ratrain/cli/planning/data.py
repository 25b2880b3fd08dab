"""`ratrain data`: prepare a job's text and show what there is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ratrain.cli.terminal.jobs import set_values
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import PATH, Whole

if TYPE_CHECKING:
    from ratrain.corpus.of_job import JobData, Summary


@click.command()
@click.argument("job", type=PATH, required=False)
@click.option(
    "--sample",
    type=Whole(0, 1000),
    default=0,
    metavar="N",
    help="Print the first N samples.",
)
@click.option("--cache", type=PATH, help="Folder for the tokens. [default: the user's cache]")
@click.option("--verify", is_flag=True, help="Check all tokens against their checksums.")
@click.option("--sample-text", type=PATH, metavar="FILE", help="Write about 4 MB of sample text.")
@set_values
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(
    job: Path | None,
    sample: int,
    cache: Path | None,
    verify: bool,
    sample_text: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Tokenise a job's data; count its files, documents, tokens and epochs.

    JOB is a job file (.toml) with a [data] table. Its files are tokenised once, into a cache
    folder, and again only when they change. --sample prints the first samples in training order.

    --sample-text writes parts of Python's own manual and library (PSF licence) as JSON lines:
    text for a first training run on any machine.

    \b
    Examples:
      ratrain data --sample-text text.jsonl
      ratrain data job.toml --sample 2
    """
    if (job is None) == (sample_text is None):
        raise click.UsageError("give either JOB or --sample-text FILE")
    if sample_text is not None:
        _write_sample_text(sample_text, as_json)
        return
    assert job is not None
    _show(job, overrides, sample, cache, verify, as_json)


def _write_sample_text(file: Path, as_json: bool) -> None:
    from ratrain.cli.terminal.progress import progress
    from ratrain.corpus.sample_text import write_sample_text
    from ratrain.describe.units import counted, format_bytes

    with progress("collecting"):
        sample = write_sample_text(file)
    if as_json:
        body = {
            "file": str(sample.file),
            "note": str(sample.note),
            "documents": sample.documents,
            "size_bytes": sample.size_bytes,
        }
        print_json("data", body)
        return
    click.echo(f"{counted(sample.documents, 'document')}, {format_bytes(sample.size_bytes)}:")
    click.echo(f"  {sample.file}")
    click.echo(f"  {sample.note}")


def _show(
    path: Path,
    overrides: tuple[str, ...],
    sample: int,
    cache: Path | None,
    verify: bool,
    as_json: bool,
) -> None:
    from dataclasses import asdict

    from ratrain.cli.terminal.progress import progress
    from ratrain.corpus.of_job import data_of_job, first_samples, summary_of
    from ratrain.plan import load_job

    job = load_job(path, overrides)
    with progress("tokenising", "B") as report:
        data = data_of_job(job, cache=cache, verify=verify, progress=report)
    summary = summary_of(job, data)
    if as_json:
        rows = [{"index": index, "text": text} for index, text in first_samples(data, sample)]
        print_json("data", {**asdict(summary), "samples": rows})
        return
    click.echo("\n".join(_lines(summary)))
    _print_samples(data, sample)


def _print_samples(data: JobData, count: int) -> None:
    from ratrain.corpus.of_job import first_samples

    for position, (index, text) in enumerate(first_samples(data, count)):
        click.echo(f"\n--- position {position}: sample {index}")
        click.echo(text)


def _lines(summary: Summary) -> list[str]:
    from ratrain.describe.units import format_bytes

    reason = {"": "from the cache", "new": "tokenised now"}
    origin = reason.get(summary.made_because, f"tokenised again: {summary.made_because}")
    return [
        f"files      {summary.files:,}, {format_bytes(summary.source_bytes)}",
        f"documents  {summary.documents:,}",
        f"tokens     {summary.tokens:,}, vocabulary {summary.vocab_size:,}",
        f"samples    {summary.samples_per_epoch:,} of {summary.sequence_length:,} tokens each",
        f"step       {summary.sequences_per_step:,} samples, {summary.tokens_per_step:,} tokens",
        f"run        {summary.steps:,} steps, {summary.epochs:.3g} epochs",
        *_validation_lines(summary),
        f"prepared   {format_bytes(summary.tokens_bytes)}, {origin}",
        f"           {summary.folder}",
    ]


def _validation_lines(summary: Summary) -> list[str]:
    """The held-out text, where the job names any."""
    from ratrain.describe.units import counted

    if not summary.validation_files:
        return []
    return [
        f"validation {counted(summary.validation_files, 'file')}, "
        f"{summary.validation_tokens:,} tokens, {summary.validation_samples:,} samples"
    ]
