"""`ratrain init`: files to begin with, which run as they are."""

from __future__ import annotations

from pathlib import Path

import click

from ratrain.cli.terminal import completion
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import PATH, Whole

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def command() -> None:
    """Write files to begin with: a job or a cluster file of this machine, which lists
    every possible value with a comment and runs as it is; or one of the examples.

    \b
    Examples (all take --json):
      ratrain init job
      ratrain init cluster
      ratrain init example small.toml
    """


@command.command()
@click.argument("file", type=PATH, default=Path("job.toml"))
@click.option(
    "--model",
    metavar="NAME|FOLDER",
    shell_complete=completion.models,
    help="A preset, a Hugging Face folder, or a downloaded hub id. [default: tiny-llama]",
)
@click.option(
    "--data", multiple=True, metavar="FILE", help="Training text. [default: a new text.jsonl]"
)
@click.option(
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=completion.clusters,
    help="[default: a new this-machine.toml]",
)
@click.option("--devices", type=Whole(1, 1 << 18), help="Use the first N devices. [default: all]")
@_json
def job(
    file: Path,
    model: str | None,
    data: tuple[str, ...],
    cluster: str | None,
    devices: int | None,
    as_json: bool,
) -> None:
    """Write a job to FILE [job.toml] that `ratrain train` runs as it is.

    Without --data, about 4 MB of Python's own manual and library are written
    beside it as text.jsonl; without --cluster, a file of this machine,
    this-machine.toml. Existing files are used and left unchanged.

    \b
    Examples:
      ratrain init job
      ratrain init job fine.toml --model ~/models/SmolLM-135M --data notes.jsonl
    """
    from ratrain.cli.planning.starting import JobFiles, write_job

    files = JobFiles(model or "tiny-llama", data, cluster, devices)
    written = write_job(file, files, made_by="ratrain init job")
    _told("init job", written, as_json, f"try it: ratrain train {file}")


@command.command()
@click.argument("file", type=PATH, default=Path("this-machine.toml"))
@_json
def cluster(file: Path, as_json: bool) -> None:
    """Write a cluster file of this machine to FILE [this-machine.toml].

    Its devices are the GPUs that torch sees, else the processor; rates and memory
    bandwidth are measured for a few seconds. `ratrain profile` measures more.

    \b
    Example: ratrain init cluster here.toml
    """
    from ratrain.cli.planning.starting import require_new, write_cluster, write_new

    require_new(file)  # before seconds of measuring
    write_new(file, write_cluster())
    _told("init cluster", [file], as_json, f"show it: ratrain clusters {file}")


@command.command()
@click.argument("name", required=False)
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="DIR",
    default=Path(),
    help="Write into this folder. [default: the current one]",
)
@_json
def example(name: str | None, output: Path, as_json: bool) -> None:
    """Write the example NAME and the files it refers to. Without NAME, list them.

    \b
    Examples:
      ratrain init example
      ratrain init example qwen32b-mt3000.toml -o examples
    """
    from ratrain.cli.planning.examples import examples, write_example
    from ratrain.describe.lines import wrapped

    if name is not None:
        written = write_example(name, output)
        _told("init example", written, as_json, f"try it: {_first_use(written[0])}")
        return
    listed = examples()
    if as_json:
        rows = [{"name": each.name, "about": each.about} for each in listed]
        print_json("init example", {"examples": rows})
        return
    for each in listed:
        click.echo("\n".join([each.name, *wrapped(each.about, "  ")]))


def _first_use(file: Path) -> str:
    programs = {".py": "python", ".md": "cat"}
    return f"{programs.get(file.suffix, 'ratrain simulate')} {file}"


def _told(verb: str, paths: list[Path], as_json: bool, following: str) -> None:
    if as_json:
        print_json(verb, {"written": [str(path) for path in paths]})
        return
    for path in paths:
        click.echo(f"wrote {path}")
    click.echo(following)
