"""`ratrain export`: a run's weights as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import click

from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import MOST_STEPS, OUT, RUN, Whole


@click.command()
@click.argument("run", type=RUN)
@click.argument("out", type=OUT, metavar="OUT|URL")
@click.option(
    "--step",
    type=Whole(0, MOST_STEPS),
    metavar="N",
    help="Use the checkpoint of this step. [default: the latest]",
)
@click.option(
    "--dtype",
    type=click.Choice(["fp32", "bf16", "fp16"]),
    help="Data type of the weights. [default: as in the run's initial weights, else fp32]",
)
@click.option(
    "--adapters",
    is_flag=True,
    help="Write a PEFT folder of the adapters that RUN trained ([train.lora]), without the model.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(
    run: Path, out: Path, step: int | None, dtype: str | None, adapters: bool, as_json: bool
) -> None:
    """Write the weights of RUN to OUT in the format of Hugging Face's libraries.

    Writes config.json and safetensors files, one unit (embedding, layer or head)
    at a time, so that memory holds one file's tensors (5 GB at most) and one unit.
    Where the job's model or weights came from a Hugging Face folder, its config is
    kept except for the dtype, and generation_config.json, licences and custom code
    are copied; so are the job's tokenizer and its chat template. Adapters are added
    to their matrices, unless --adapters asks for them alone.

    RUN may still be training. OUT may be inside a run's folder unless a launch owns
    that run: exit status 9; or a URL in an object store (s3://BUCKET/NAME).

    \b
    Examples:
      ratrain export runs/quickstart-ratrain out
      ratrain export runs/quickstart-ratrain out --step 100 --dtype bf16
      ratrain export runs/tuned adapters --adapters
    """
    from ratrain.cli.terminal.progress import progress
    from ratrain.describe.units import format_bytes
    from ratrain.objects.remote import is_url, remote_of
    from ratrain.runtime.ownership import claimed_around
    from ratrain.runtime.run.export import export_adapters, export_run
    from ratrain.runtime.run.working import sent_to

    with (
        sent_to(out) as folder,
        claimed_around(folder, "ratrain export", lambda line: click.echo(line, err=True)),
        progress("writing", "parameters") as report,
    ):
        if adapters:
            exported = export_adapters(run, folder, dtype, step)
        else:
            exported = export_run(run, folder, dtype, step, report)
    there = str(remote_of(str(out)) if is_url(str(out)) else out)
    if as_json:
        source = None if exported.source is None else str(exported.source)
        body = {
            "folder": there,
            "step": exported.step,
            "dtype": exported.dtype,
            "source": source,
        }
        print_json("export", {**body, "size_bytes": exported.size_bytes})
        return
    size = format_bytes(exported.size_bytes)
    click.echo(f"wrote {there}: step {exported.step}, {size} in {exported.dtype}")
    if exported.source is not None and adapters:
        click.echo(f"adapters of the model in {exported.source}")
    elif exported.source is not None:
        click.echo(f"config as in {exported.source}")
