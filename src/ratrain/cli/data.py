"""`ratrain data`: prepare a job's text and show what there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ratrain.corpus.of_job import JobData, Summary

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("job", type=PATH, required=False)
@click.option(
    "--sample", type=click.IntRange(0, 1000), default=0, metavar="N", help="Print N samples."
)
@click.option("--cache", type=PATH, help="Folder of prepared tokens.")
@click.option("--verify", is_flag=True, help="Read every prepared token against its checksum.")
@click.option("--sample-text", type=PATH, metavar="FILE", help="Write text to begin with.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys carry their unit.")
def command(
    job: Path | None,
    sample: int,
    cache: Path | None,
    verify: bool,
    sample_text: Path | None,
    as_json: bool,
) -> None:
    """Tokenise a job's data and show files, documents, tokens, and epochs of its steps.

    JOB is a job file (.toml) with a [data] table. Its files are tokenised once into the user's
    cache folder and used again until they change. --sample prints the first samples that the job
    trains on.

    --sample-text writes about 4 MB of Python's own manual and library (PSF licence) as JSON lines,
    for a first training run on any machine.

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
    _show(job, sample, cache, verify, as_json)


def _write_sample_text(file: Path, as_json: bool) -> None:
    from ratrain.corpus.sample_text import write_sample_text
    from ratrain.describe.units import format_bytes

    written = write_sample_text(file)
    if as_json:
        body = {
            "file": str(written.file),
            "note": str(written.note),
            "documents": written.documents,
            "size_bytes": written.size_bytes,
        }
        click.echo(json.dumps(body, indent=2))
        return
    click.echo(f"{written.documents} documents, {format_bytes(written.size_bytes)}:")
    click.echo(f"  {written.file}")
    click.echo(f"  {written.note}")


def _show(path: Path, sample: int, cache: Path | None, verify: bool, as_json: bool) -> None:
    from dataclasses import asdict

    from ratrain.cli.progress import progress
    from ratrain.corpus.of_job import data_of_job, first_samples, summary_of
    from ratrain.describe.job import load_job

    job = load_job(path)
    with progress("tokenise", "bytes") as report:
        data = data_of_job(job, cache=cache, verify=verify, progress=report)
    summary = summary_of(job, data)
    if as_json:
        rows = [{"index": index, "text": text} for index, text in first_samples(data, sample)]
        click.echo(json.dumps({**asdict(summary), "samples": rows}, indent=2))
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

    made = f"tokenised now: {summary.made_because}" if summary.made_because else "already there"
    return [
        f"files      {summary.files:,}, {format_bytes(summary.source_bytes)}",
        f"documents  {summary.documents:,}",
        f"tokens     {summary.tokens:,} of {summary.vocab_size:,} ids",
        f"samples    {summary.samples_per_epoch:,} of {summary.sequence_length:,} tokens",
        f"step       {summary.sequences_per_step:,} samples, {summary.tokens_per_step:,} tokens",
        f"run        {summary.steps:,} steps, {summary.epochs:.3g} epochs",
        f"prepared   {format_bytes(summary.tokens_bytes)}, {made}",
        f"           {summary.folder}",
    ]
