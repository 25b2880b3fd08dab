"""`ratrain convert`: plans, clusters and layer profiles of other planners as RATrain's files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import PATH, Whole

if TYPE_CHECKING:
    from ratrain.convert.converted import Converted, Model

F = TypeVar("F", bound=Callable[..., Any])

_MOST_RANK = 1_000_000_000
_model = click.option(
    "--model",
    required=True,
    metavar="NAME|FILE",
    help="The model: a preset of `ratrain models`, or a config.json. The planner's files do not "
    "give its widths.",
)
_like = click.option(
    "--like",
    "likes",
    multiple=True,
    metavar="KIND=NAME",
    help="Take what the planner's files do not give of GPU KIND, such as memory bandwidth, from "
    "NAME: a device profile or cluster of `ratrain clusters`, or a cluster file. Usual GPUs need "
    "none.",
)
_output = click.option(
    "-o",
    "--output",
    type=PATH,
    required=True,
    metavar="FOLDER",
    help="Where cluster.toml and plan.json go; existing ones are replaced.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
_rank = click.option(
    "--rank",
    type=Whole(1, _MOST_RANK),
    default=1,
    show_default=True,
    metavar="N",
    help="Which plan of a list.",
)


def _file(
    name: str, what: str, *declared: str, required: bool = False, multiple: bool = False
) -> Callable[[F], F]:
    """An option for a file of the other planner."""
    return click.option(
        name,
        *declared,
        type=PATH,
        metavar="FILE",
        help=what,
        required=required,
        multiple=multiple,
    )


def _dtype(default: str) -> Callable[[F], F]:
    return click.option(
        "--dtype",
        type=click.Choice(["fp32", "bf16", "fp16"]),
        default=default,
        show_default=True,
        help="Dtype of the measured layer times; the files do not give it.",
    )


@click.group()
def command() -> None:
    """Take over what another planner has: its cluster and layer times become a cluster file, its
    plan a plan file. The plan's step time is predicted at once and shown beside the time that its
    own file gives; what could not be carried over is listed.

    \b
    Example: ratrain convert sailor --training training_config_opt_350.json \\
        --cluster basic_cluster_config.json --plan plan.json \\
        --model opt-350m -o converted
    """


@command.command()
@_file("--cluster", "cluster_info.json: machines, GPUs, bandwidths.", required=True)
@_file("--plan", "training_config.json, as planned.")
@_file(
    "--profile", "model_latencies.json. Left out: the layer times of RATrain's grolar-* profiles."
)
@click.option(
    "--profiled", metavar="NAME", help="The model's name in --profile. [default: the plan's]"
)
@_model
@_like
@_output
@_json
def grolar(
    cluster: Path,
    plan: Path | None,
    profile: Path | None,
    profiled: str | None,
    model: str,
    likes: tuple[str, ...],
    output: Path,
    as_json: bool,
) -> None:
    """Convert files of Grolar (earlier: Zorse).

    Its groups divide micro-batches among GPUs; a plan can be converted only if every group
    divides them alike.

    \b
    Examples:
      ratrain convert grolar --cluster cluster_info.json \\
          --plan training_config.json --profile model_latencies.json \\
          --model llama-1b.json -o converted
      ratrain simulate converted/plan.json
    """
    from ratrain.convert.grolar import files as given
    from ratrain.convert.grolar.conversion import convert
    from ratrain.convert.kinds import likes_of

    files = given.Files(cluster, plan, profile, profiled)
    _told("grolar", convert(files, _described(model), likes_of(likes)), output, as_json)


@command.command()
@_file("--hosts", "hostfile: one host and its slots per line.", required=True)
@_file("--cluster", "clusterfile.json: what each host is.", required=True)
@_file("--plan", "The ranked plans that Metis printed.")
@_rank
@_file(
    "--profile",
    "DeviceType.A100_tp1_bs1.json and others; may be given several times.",
    "profiles",
    multiple=True,
)
@_model
@click.option(
    "--sequence",
    type=Whole(1, 1 << 27),
    required=True,
    metavar="N",
    help="Tokens per sequence (Metis's --sequence_length).",
)
@click.option(
    "--sequences",
    type=Whole(1, 1_000_000_000),
    metavar="N",
    help="Sequences per step (Metis's --gbs). Needed with --plan.",
)
@_dtype("fp16")
@_like
@_output
@_json
def metis(
    hosts: Path,
    cluster: Path,
    plan: Path | None,
    rank: int,
    profiles: tuple[Path, ...],
    model: str,
    sequence: int,
    sequences: int | None,
    dtype: str,
    likes: tuple[str, ...],
    output: Path,
    as_json: bool,
) -> None:
    """Convert files of Metis.

    Its planner prints a ranked list; --rank picks a line. A plan can be converted only if all of
    its stages have the same data degree. Sequence length, batch and dtype are in none of its files.

    \b
    Examples:
      ratrain convert metis --hosts hostfile --cluster clusterfile.json \\
          --plan results --rank 1 --model gpt.json --sequence 1024 \\
          --sequences 128 -o converted
      ratrain simulate converted/plan.json
    """
    from ratrain.convert.kinds import likes_of
    from ratrain.convert.metis import files as given
    from ratrain.convert.metis.conversion import convert

    files = given.Files(hosts, cluster, plan, rank, profiles)
    workload = given.Workload(sequence, sequences, dtype)
    converted = convert(files, _described(model), workload, likes_of(likes))
    _told("metis", converted, output, as_json)


@command.command()
@_file("--training", "training_config_*.json: model, sequence, batch.", required=True)
@_file("--cluster", "basic_cluster_config.json: GPUs per node and their memory.", required=True)
@_file("--plan", "A plan, or a list of plans (JSON).")
@_rank
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    metavar="GPU=FILE",
    help="profile.json of a GPU: GH-96=profile.json; may be given several times.",
)
@_file("--inside", "intra_node_bandwidths.json. [default: as --like]")
@_file("--between", "multizone_bandwidths_het.json. [default: as --like]")
@_dtype("fp32")
@_model
@_like
@_output
@_json
def sailor(
    training: Path,
    cluster: Path,
    plan: Path | None,
    rank: int,
    profiles: tuple[str, ...],
    inside: Path | None,
    between: Path | None,
    dtype: str,
    model: str,
    likes: tuple[str, ...],
    output: Path,
    as_json: bool,
) -> None:
    """Convert files of Sailor.

    The nodes that a plan uses become the cluster. Links are those of a cluster that the GPU is
    like, or of Sailor's network files.

    \b
    Examples:
      ratrain convert sailor --training training_config_opt_350.json \\
          --cluster basic_cluster_config.json --plan plan.json \\
          --profile GH-96=profile.json --model opt-350m -o converted
      ratrain simulate converted/plan.json
    """
    from ratrain.convert.kinds import likes_of
    from ratrain.convert.sailor import files as given
    from ratrain.convert.sailor.conversion import convert

    by_gpu = tuple((gpu, Path(file)) for gpu, file in likes_of(profiles, "--profile").items())
    files = given.Files(training, cluster, plan, rank, by_gpu, inside, between, dtype)
    _told("sailor", convert(files, _described(model), likes_of(likes)), output, as_json)


def _described(name: str) -> Model:
    from ratrain.convert.converted import model_of

    return model_of(name)


def _told(planner: str, converted: Converted, folder: Path, as_json: bool) -> None:
    """Writes the files, prices the plan, and prints the result."""
    from ratrain.cli.terminal.progress import progress
    from ratrain.convert.priced import as_json as body_of
    from ratrain.convert.priced import as_text, priced, write

    files = write(_beside(converted, folder), folder)
    with progress("simulating", "ops") as report:
        written = priced(converted, files, report)
    if as_json:
        print_json(f"convert {planner}", body_of(converted, written))
    else:
        click.echo("\n".join(as_text(converted, written)))


def _beside(converted: Converted, folder: Path) -> Converted:
    """The same with the model's file named as seen from the folder."""
    plan = converted.plan
    if plan is None or not plan.model.name.endswith(".json"):
        return converted
    name = os.path.relpath(plan.model.name, folder)
    return replace(converted, plan=replace(plan, model=replace(plan.model, name=name)))
