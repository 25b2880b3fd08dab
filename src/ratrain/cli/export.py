"""`ratrain export`: a run's weights as a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path

import click

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("run", type=PATH)
@click.argument("out", type=PATH)
@click.option("--step", type=click.IntRange(0), help="This checkpoint. [the newest]")
@click.option(
    "--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), default="fp32", show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys carry their unit.")
def command(run: Path, out: Path, step: int | None, dtype: str, as_json: bool) -> None:
    """Write the weights of RUN to OUT, as Hugging Face's libraries read them.

    config.json and safetensors files, unit by unit, so memory holds one file's
    tensors (5 GB at most) and one unit. A tokenizer.json of the job is copied.

    \b
    Examples:
      ratrain export runs/quickstart-ratrain out
      ratrain export runs/quickstart-ratrain out --step 100 --dtype bf16
    """
    from ratrain.describe.units import format_bytes
    from ratrain.runtime.run.export import export_run

    found = export_run(run, out, dtype, step)
    if as_json:
        body = {"folder": str(out), "step": found.step, "dtype": dtype}
        click.echo(json.dumps({**body, "size_bytes": found.size_bytes}, indent=2))
        return
    click.echo(f"step {found.step}, {format_bytes(found.size_bytes)} in {dtype}: {out}")
