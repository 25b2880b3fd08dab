"""`ratrain schema`: what a file may hold, as a JSON schema for editors."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ratrain.cli.terminal.options import PATH


@click.command()
@click.argument("kind", type=click.Choice(["job", "cluster", "plan", "graph"]))
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Write to a file.")
@click.option("--json", is_flag=True, expose_value=False, help="The same: a schema is JSON.")
def command(kind: str, output: Path | None) -> None:
    """Print the JSON schema of a job, cluster, plan or graph file: its keys, types and bounds,
    from the same definitions that the loader checks files against.

    Editors that support schemas (VS Code with Even Better TOML, Helix, Neovim with taplo) then
    complete keys and mark mistakes. In a TOML file, refer to it in the first line:

    \b
      #:schema ./job.schema.json

    \b
    Examples:
      ratrain schema job -o job.schema.json
      ratrain schema plan
    """
    from ratrain.describe.job_file import JobFile
    from ratrain.describe.profiles import cluster_schema
    from ratrain.describe.schema import schema_of
    from ratrain.graph import GraphFile
    from ratrain.plan.file import PlanFile
    from ratrain.readers.writing import write_whole

    if kind == "cluster":
        schema = cluster_schema()
    else:
        kinds = {"job": JobFile, "plan": PlanFile, "graph": GraphFile}
        schema = schema_of(kinds[kind], f"RATrain {kind} file")
    text = json.dumps(schema, indent=2)
    if output is None:
        click.echo(text)
        return
    write_whole(output, text + "\n")
    click.echo(f"written to {output}", err=True)
