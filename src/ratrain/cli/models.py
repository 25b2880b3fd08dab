"""`ratrain models`: the presets, or one model block by block."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("name", required=False)
@click.option("--sequence", type=click.IntRange(1), default=2048, show_default=True, metavar="S")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys carry their unit.")
def command(name: str | None, sequence: int, as_json: bool) -> None:
    """List the models, or show one block by block.

    NAME is a preset or the path of a Hugging Face config.json. FLOPs are per token, activations
    and checkpoint for one sequence of S tokens in fp16.

    \b
    Example: ratrain models qwen2.5-32b --sequence 4096
    """
    from ratrain.cost.tables import model_details, model_summary
    from ratrain.describe.huggingface import load_config
    from ratrain.describe.presets import model_names, model_preset

    if name is None:
        rows = [model_summary(model_preset(each)) for each in model_names()]
        click.echo(json.dumps(rows, indent=2) if as_json else _list(rows))
        return
    model = load_config(Path(name)) if name.endswith(".json") else model_preset(name)
    details = model_details(model, sequence)
    click.echo(json.dumps(details, indent=2) if as_json else _details(details))


def _list(rows: list[dict[str, Any]]) -> str:
    from ratrain.describe.units import format_count

    lines = [
        f"{'name':16}{'params':>9}{'layers':>8}{'hidden':>8}{'heads/kv':>10}{'vocab':>9}  position"
    ]
    for row in rows:
        heads = f"{row['heads']}/{row['kv_heads']}"
        lines.append(
            f"{row['name']:16}{format_count(row['params']):>9}{row['layers']:>8}{row['hidden']:>8}"
            f"{heads:>10}{row['vocab']:>9}  {row['position']}"
        )
    return "\n".join(lines)


def _details(model: dict[str, Any]) -> str:
    from ratrain.describe.units import format_bytes, format_count

    lines = [
        f"{model['name']}: {model['params']:,} parameters",
        f"source: {model['source']}",
        f"per token at {model['sequence_length']} tokens, causal; one sequence, fp16",
        "",
        f"{'block':14}{'params':>10}{'FLOP fwd':>11}{'FLOP bwd':>11}"
        f"{'activations':>14}{'checkpoint':>13}",
    ]
    last = model["layers"] - 1
    for row in model["blocks"]:
        if row["kind"] == "layer" and row["index"]:
            continue  # the layers are alike: --json lists each
        name = f"layer 0..{last}" if row["kind"] == "layer" else row["kind"]
        kept, saved = (
            format_bytes(row[key]) if row[key] else "-"
            for key in ("activation_bytes", "checkpoint_bytes")
        )
        lines.append(
            f"{name:14}{format_count(row['params']):>10}"
            f"{format_count(row['forward_flops_per_token']):>11}"
            f"{format_count(row['backward_flops_per_token']):>11}{kept:>14}{saved:>13}"
        )
    lines += ["", "kept by one layer:"]
    lines += [f"  {k:16}{format_bytes(v):>10}" for k, v in model["layer_activation_bytes"].items()]
    return "\n".join(lines)
