"""`ratrain models`: the presets, or one model block by block."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratrain.cli.terminal import completion
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import Whole
from ratrain.cli.terminal.untrainable import untrainable_lines

if TYPE_CHECKING:
    from ratrain.describe.model import ModelSpec


@click.command()
@click.argument("name", required=False, shell_complete=completion.models)
@click.option(
    "--sequence",
    type=Whole(1, 1 << 27),
    default=2048,
    show_default=True,
    metavar="S",
    help="Tokens per sequence.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(name: str | None, sequence: int, as_json: bool) -> None:
    """List the models and the families that can be trained, or show one model block by block.

    NAME is a preset, a Hugging Face folder, its config.json, or the id of a model that
    `hf download` has put on this machine. FLOPs are per token; activations
    are of one sequence of S tokens in fp16, all kept or with a checkpoint per layer only.

    \b
    Examples: ratrain models qwen2.5-32b --sequence 4096
              ratrain models ~/models/SmolLM-135M
    """
    from ratrain.cost.tables import model_details, model_summary
    from ratrain.describe.presets import model_names, model_preset
    from ratrain.runtime.run.trainable import why_untrainable

    if name is None:
        presets = [model_preset(preset) for preset in model_names()]
        rows = [{**model_summary(each), "untrainable": why_untrainable(each)} for each in presets]
        if as_json:
            print_json("models", {"models": rows, "families": _families()})
        else:
            click.echo(_list(rows))
        return
    model = model_of(name)
    details = {**model_details(model, sequence), "untrainable": why_untrainable(model)}
    if as_json:
        print_json("models", details)
    else:
        click.echo(_details(details))


def model_of(name: str) -> ModelSpec:
    """A preset, or what a config.json, the folder that holds one, or a hub's id describes."""
    from ratrain.describe.hub import CONFIG, model_folder
    from ratrain.describe.huggingface import load_config
    from ratrain.describe.presets import model_preset

    if name.endswith(".json"):
        return load_config(Path(name).expanduser())
    folder = model_folder(name)
    return load_config(folder / CONFIG) if folder is not None else model_preset(name)


def _families() -> list[dict[str, Any]]:
    """The families of Hugging Face models that are read."""
    from ratrain.describe.huggingface import FAMILIES

    return [
        {"model_type": family.name, "architecture": family.architecture, "says": family.says}
        for family in FAMILIES.values()
    ]


def _list(rows: list[dict[str, Any]]) -> str:
    from ratrain.describe.units import format_count

    lines = [
        f"{'name':16}{'params':>9}{'layers':>8}{'hidden':>8}{'heads/kv':>10}{'vocab':>9}  "
        f"{'position':10}trains"
    ]
    for row in rows:
        heads = f"{row['heads']}/{row['kv_heads']}"
        lines.append(
            f"{row['name']:16}{format_count(row['params']):>9}{row['layers']:>8}{row['hidden']:>8}"
            f"{heads:>10}{row['vocab']:>9}  {row['position']:10}"
            f"{'yes' if row['untrainable'] is None else 'no'}"
        )
    untrained = [row["name"] for row in rows if row["untrainable"]]
    lines += ["", f"planned and simulated, but not trained: {', '.join(untrained)}"]
    lines += ["", "Hugging Face folders with these model_types are planned and trained:"]
    lines += [f"  {family['model_type']:14}{family['says']}" for family in _families()]
    return "\n".join(lines)


def _details(model: dict[str, Any]) -> str:
    from ratrain.describe.units import format_bytes, format_count

    lines = [
        f"{model['name']}: {model['params']:,} parameters",
        f"source: {model['source']}",
        *untrainable_lines(model["untrainable"]),
        f"FLOPs per token in sequences of {model['sequence_length']}; memory of one sequence, fp16",
        "",
        f"{'block':14}{'params':>10}{'FLOP fwd':>11}{'FLOP bwd':>11}"
        f"{'activations':>14}{'checkpoint':>13}",
    ]
    last = model["layers"] - 1
    for row in model["blocks"]:
        if row["kind"] == "layer" and row["index"]:
            continue  # the layers are alike: --json lists each
        name = f"layer 0..{last}" if row["kind"] == "layer" else row["kind"]
        activations, checkpoint = (
            format_bytes(row[key]) if row[key] else "-"
            for key in ("activation_bytes", "checkpoint_bytes")
        )
        lines.append(
            f"{name:14}{format_count(row['params']):>10}"
            f"{format_count(row['forward_flops_per_token']):>11}"
            f"{format_count(row['backward_flops_per_token']):>11}{activations:>14}{checkpoint:>13}"
        )
    lines += ["", "activations of one layer:"]
    lines += [f"  {k:16}{format_bytes(v):>10}" for k, v in model["layer_activation_bytes"].items()]
    return "\n".join(lines)
