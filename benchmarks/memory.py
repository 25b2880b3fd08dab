"""Memory: Korthikanti's first stage and RATrain's smallest scales, published beside ours.

    python benchmarks/memory.py

Korthikanti et al. 2022, arXiv 2205.05198, figure 1 (rows in data/measured/): GiB of one device of
the first stage. RATrain's rows are those of `ratrain reproduce memory`: peak GB of one cluster.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib import resources
from textwrap import fill

from ratrain.cost.activations import (
    gpt_first_stage_bytes,
    gpt_layer_activation_bytes,
    gpt_parameter_optimizer_bytes,
)
from ratrain.describe.presets import model_preset
from ratrain.reproduce.ratrain_paper import smallest_scale

SEQUENCE, TENSOR = 2048, 8
SETTINGS = {"22B": ("gpt-22b", 4, 1, 1), "175B": ("gpt-175b", 1, 8, 3)}
"""Preset, micro-batch, pipeline, virtual stages of each row (their table 3)."""


def main() -> None:
    """Prints both tables."""
    print(f"{'Korthikanti, first stage [GiB]':46}{'published':>11}{'ours':>10}{'':3}difference")
    for label, published, ours in first_stage():
        print(_line(label, published, ours))
    print(f"\n{'RATrain, smallest scale [GB]':46}{'published':>11}{'ours':>10}{'':3}difference")
    for row in smallest_scale():
        if row.published is not None and row.ours is not None:
            print(_line(row.label, row.published, row.ours))
        else:
            print(f"  {row.label}")
        print(fill(row.note, 78, initial_indent="      ", subsequent_indent="      "))


def first_stage() -> Iterator[tuple[str, float, float]]:
    """(label, published, ours) of each bar of the figure, in GiB."""
    path = resources.files("ratrain.data") / "measured" / "korthikanti_memory_gib.csv"
    for row in csv.DictReader(path.read_text().splitlines()):
        name, batch, pipeline, virtual = SETTINGS[row["model"]]
        model = model_preset(name)
        none = gpt_layer_activation_bytes(model, SEQUENCE, batch, TENSOR)
        selective = gpt_layer_activation_bytes(
            model, SEQUENCE, batch, TENSOR, recompute="selective", sequence_parallel=True
        )
        sizes = {
            "param_opt": ("weights and optimizer", gpt_parameter_optimizer_bytes(
                model, TENSOR, pipeline
            )),
            "act_none": ("all activations", gpt_first_stage_bytes(
                none, model.layers, pipeline, virtual
            )),
            "act_selective_sp": ("selective, sequence parallel", gpt_first_stage_bytes(
                selective, model.layers, pipeline, virtual
            )),
        }  # fmt: skip
        for column, (what, size_bytes) in sizes.items():
            yield f"{row['model']}: {what}", float(row[column]), size_bytes / 2**30


def _line(label: str, published: float, ours: float) -> str:
    return f"  {label:44}{published:11.2f}{ours:10.2f}{100 * (ours / published - 1):+10.2f} %"


if __name__ == "__main__":
    main()
