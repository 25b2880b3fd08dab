"""`ratrain launch kubernetes`: a run as a manifest."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ratrain.cli.runs.launch.prepared import Asked, from_here, launchable, run_options
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import PATH, Whole


@click.command("kubernetes")
@run_options
@click.option("--image", required=True, help="A container image that has RATrain.")
@click.option(
    "--claim",
    metavar="NAME",
    default="runs",
    show_default=True,
    help="The PersistentVolumeClaim with the run and what its job names; all pods write to it.",
)
@click.option(
    "--mount", metavar="FOLDER", help="Where it is seen, here and in pods. [default: RUN's parent]"
)
@click.option("--memory", default="2Gi", show_default=True, help="Of a rank's pod.")
@click.option("-o", "--output", type=PATH, metavar="FILE", help="[default: RUN/kubernetes.yaml]")
@click.option(
    "--restarts",
    type=Whole(0, 1_000_000),
    default=3,
    show_default=True,
    help="How often ranks are started again after a failure.",
)
@click.option(
    "--runtime",
    metavar="NAME",
    default="",
    help="Write a TrainJob for this runtime of Kubeflow's Trainer, as torch-distributed.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    image: str,
    claim: str,
    mount: str | None,
    memory: str,
    output: Path | None,
    restarts: int,
    runtime: str,
    as_json: bool,
    **asked: Any,
) -> int:
    """Write a manifest that runs JOB, or the prepared RUN, on Kubernetes: an indexed Job; of
    a cluster of several kinds a JobSet with one replicated job for each kind, on nodes whose
    label `kind` is the device's name. A pod is a rank.

    \b
    Example:
      ratrain launch kubernetes /runs/first --image registry.example/ratrain:1
    """
    from ratrain.engines.kubernetes import Pods, manifest
    from ratrain.readers.writing import write_whole

    run = launchable(Asked(**asked))
    if run.python == sys.executable:  # not the image's
        run = replace(run, python="python3")
    path = output or Path(run.run) / "kubernetes.yaml"
    pods = Pods(image, claim, mount or str(Path(run.run).parent), memory, restarts, runtime=runtime)
    write_whole(path, manifest(run, pods))
    if as_json:
        print_json("launch kubernetes", {"run": run.run, "manifest": str(path), "ranks": run.ranks})
    else:
        shown = from_here(path)
        click.echo(f"wrote {shown}: {run.words}\nstart it: kubectl apply -f {shown}")
    return 0
