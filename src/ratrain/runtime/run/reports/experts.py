"""How a run's tokens were spread over experts, and what that means for its steps: a tensor group
divides a layer's experts and waits for its rank that has the most tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ratrain.cost.blocks import blocks
from ratrain.describe.lines import wrapped
from ratrain.describe.model import ModelSpec
from ratrain.readers.files import exists
from ratrain.runtime.rank.rows import Row
from ratrain.runtime.run_files import read_records, trained_case
from ratrain.runtime.run_folder import RunFolder, RunSpec


def expert_load(folder: RunFolder, spec: RunSpec, rows: Sequence[Row]) -> dict[str, Any] | None:
    """Of ranks over all of these steps; of layers over the steps of the last start, where it came
    to its end. A token counts once for each expert that it chose. None where no rank has experts.
    """
    told = [row for row in rows if any("expert_tokens" in rank for rank in row["ranks"])]
    if not told:
        return None
    trained = trained_case(folder.path / "case.json")
    ranks = [_rank(told, rank) for rank in range(spec.seats.world_size)]
    return {
        "steps": len(told),
        "ranks": [each for each in ranks if each is not None],
        "layers": list(_layers(folder, spec)),
        "layer_flops_fraction": _part_of_layer(trained.model, trained.sequence_length),
    }


def _rank(rows: Sequence[Row], rank: int) -> dict[str, Any] | None:
    of_rank = [row["ranks"][rank] for row in rows if "expert_tokens" in row["ranks"][rank]]
    if not of_rank:
        return None
    own, even, longest = (
        sum(row[f"expert_tokens{name}"] for row in of_rank) for name in ("", "_even", "_longest")
    )
    return {
        "rank": rank,
        "tokens": int(own),
        "even_tokens": even,
        "ratio": own / even,
        "longest_ratio": longest / even,
    }


def _layers(folder: RunFolder, spec: RunSpec) -> Iterator[dict[str, Any]]:
    """Of each layer all replicas' tokens: every rank of a tensor group counts the group's."""
    tokens, longest, even = dict[str, list[int]](), dict[str, int](), dict[str, float]()
    for seat in spec.seats.all():
        path = folder.rank_file(seat.world_rank, "records")
        if seat.division.rank or not exists(path):
            continue
        counted = read_records(path, seat.world_rank).get("experts") or {"layers": {}}
        for name, layer in counted["layers"].items():
            before = tokens.get(name, [0] * len(layer["tokens"]))
            tokens[name] = [a + b for a, b in zip(before, layer["tokens"], strict=True)]
            longest[name] = longest.get(name, 0) + layer["longest"]
            even[name] = even.get(name, 0.0) + sum(layer["tokens"]) / seat.division.degree
    for name in sorted(tokens, key=int):
        of_layer = tokens[name]
        if any(of_layer):  # else nothing below it was trained
            yield {
                "layer": int(name),
                "tokens": of_layer,
                "busiest": of_layer.index(max(of_layer)),
                "busiest_ratio": max(of_layer) * len(of_layer) / sum(of_layer),
                "unused": of_layer.count(0),
                "longest_ratio": longest[name] / even[name],
            }


def _part_of_layer(model: ModelSpec, length: int) -> float:
    """The part of a layer's FLOPs that is in its experts."""
    layer = next(block for block in blocks(model) if block.kind == "layer")
    of_stacks = sum(each.used(model) for each in layer.tensors if len(each.shape) > 2)
    return 2 * length * of_stacks / layer.forward_flops(length, length).total


def expert_words(load: dict[str, Any] | None) -> Iterator[str]:
    """The same in sentences."""
    if load is None:
        return
    layers = load["layers"]
    if layers:
        worst = max(layers, key=lambda layer: layer["busiest_ratio"])
        unused = sum(layer["unused"] for layer in layers)
        experts = sum(len(layer["tokens"]) for layer in layers)
        yield (
            f"The busiest expert had {worst['busiest_ratio']:.2f} times its layer's mean (expert "
            f"{worst['busiest']} of layer {worst['layer']}); {unused} of {experts} had no token."
        )
    slowest = max(load["ranks"], key=lambda rank: rank["longest_ratio"])
    ratio = slowest["longest_ratio"]
    if all(rank["longest_ratio"] == 1 for rank in load["ranks"]):
        yield "Each rank has all experts of its layers: no rank waits for another's."
        return
    fullest = max(load["ranks"], key=lambda rank: rank["ratio"])
    longer = load["layer_flops_fraction"] * (ratio - 1)
    yield (
        f"Rank {fullest['rank']} computed {fullest['ratio']:.2f} times an even share. Layer by "
        f"layer a tensor group waits for its rank with the most tokens: {ratio:.2f} times an even "
        f"share (rank {slowest['rank']}'s group), so by FLOPs its layers take {100 * longer:.0f} % "
        "longer than with an even load. [train] balance_loss trains for one."
    )


def expert_text(report: dict[str, Any]) -> Iterator[str]:
    """The same in lines of a terminal."""
    for number, sentence in enumerate(expert_words(report["experts"])):
        yield from wrapped(f"experts: {sentence}" if number == 0 else sentence)
