"""A measured run, and how tables of them are read: the project's own and a user's.

A user's table is a CSV file with one run a line. docs/explanation/accuracy.md lists the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Literal, TypeVar

from ratrain.describe.model import ModelSpec
from ratrain.describe.presets import model_preset
from ratrain.describe.strict import nearest
from ratrain.errors import SpecError
from ratrain.readers.csv import csv_table
from ratrain.readers.faults import Faults
from ratrain.readers.files import read_text, shown
from ratrain.readers.limits import TABLE_BYTES
from ratrain.readers.numbers import real, whole
from ratrain.validate.planned_runs import PlannedRun, planned_run

Recompute = Literal["none", "selective", "full"]
Word = TypeVar("Word", bound=str)
Cells = Mapping[str, str]
GPT_VOCAB = 51200
COLUMNS: dict[str, str] = {
    "iter_s": "measured seconds of one step (or iter_ms)",
    "iter_ms": "the same in milliseconds",
    "gpus": "devices in all",
    "gbs": "sequences of one step",
    "mbs": "sequences of one micro-batch (left out: 1)",
    "tp": "tensor degree (left out: 1)",
    "pp": "pipeline depth (left out: 1)",
    "dp": "data degree (left out: gpus / tp / pp)",
    "vstage_layers": "layers of a virtual stage, for interleaving (left out: none)",
    "stage_layers": "layers of each stage, as 4-7-7-6 (left out: equal)",
    "model": "a preset; or give layers, hidden and heads of a GPT",
    "layers": "layers of a GPT",
    "hidden": "its width",
    "heads": "its attention heads",
    "vocab": "its vocabulary (left out: 51200)",
    "sequence": "tokens of a sequence (left out: 2048)",
    "recompute": "none, selective or full (left out: full)",
    "sequence_parallel": "yes or no (left out: no)",
    "sharding": "state sharding level, 0 to 3 (left out: 0)",
    "dtype": "a dtype of the cluster's devices (left out: fp16)",
    "cluster": "a cluster preset or file (left out: a100-80g-dgx)",
    "held_out": "yes: not used to calibrate (left out: yes)",
    "plan": "a plan file, in place of all columns that describe the run",
}
BESIDE_PLAN = ("iter_s", "iter_ms", "held_out", "plan")
"""The columns that a row with a plan file may fill: the file says the rest."""


MOST: dict[str, int] = {
    **dict.fromkeys(("gpus", "tp", "pp", "dp"), 1 << 18),
    **{"gbs": 10**9, "mbs": 10**6, "vstage_layers": 10_000, "layers": 10_000},
    **{"hidden": 1 << 20, "heads": 1 << 16, "vocab": 1 << 24, "sequence": 1 << 27},
}
"""The largest whole number that a cell of each column may hold."""
MOST_SECONDS = 1e9


@dataclass(frozen=True)
class Run:
    """One configuration that someone ran. `layers`: of each stage; () for equal."""

    label: str
    model: ModelSpec
    cluster: str
    sequence: int
    sequences: int
    micro_batch: int
    tensor: int
    pipeline: int
    data: int
    virtual: int
    layers: tuple[int, ...]
    recompute: Recompute
    sequence_parallel: bool
    sharding: int
    dtype: str

    @property
    def choice(self) -> tuple[object, ...]:
        """What a planner is given: runs that agree here are alternatives of one another."""
        devices = self.tensor * self.pipeline * self.data
        return self.model, self.cluster, self.sequence, self.sequences, devices

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a replica in one step."""
        return self.sequences // (self.data * self.micro_batch)


@dataclass(frozen=True)
class MeasuredRun:
    """A run and its measured step. `held_out`: no constant of its cluster was fitted on it."""

    run: Run | PlannedRun
    measured_s: float
    held_out: bool


def gpt(layers: int, hidden: int, heads: int, vocab: int, sequence: int) -> ModelSpec:
    """A GPT of Megatron-LM's shape: MLP of 4 h, tied embeddings, learned positions, biases."""
    if hidden % heads:
        raise SpecError(
            f"{heads} heads do not divide the width {hidden}",
            place="heads",
            fix="use a divisor of hidden",
        )
    return ModelSpec(
        name=f"gpt-{layers}x{hidden}",
        family="gpt2",
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden,
        vocab=vocab,
        max_positions=sequence,
        source="a row of a table of measurements",
        gated_mlp=False,
        activation="gelu",
        norm="layer",
        position="learned",
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        tied_embeddings=True,
    )


def shipped_cells(name: str) -> tuple[dict[str, str], ...]:
    """The cells of one of the project's own tables."""
    with as_file(files("ratrain.data.measured") / f"{name}.csv") as path:
        text = read_text(path, TABLE_BYTES)
    return tuple(cells for cells, _ in csv_table(text, f"{name}.csv"))


def user_runs(path: Path, check: Callable[[Run], object]) -> tuple[MeasuredRun, ...]:
    """The runs of a user's table. All that is wrong is one SpecError: unknown columns, wrong cells,
    and what `check` finds of a run."""
    runs: list[MeasuredRun] = []
    faults = Faults()
    for cells, row in csv_table(read_text(path, TABLE_BYTES), str(path), COLUMNS):
        with faults:
            runs.append(_located(cells, row.place, path.parent, check))
    faults.raise_all()
    if not runs:
        raise SpecError("the table has no rows", place=str(path), fix="add a line for each run")
    return tuple(runs)


def _located(cells: Cells, place: str, base: Path, check: Callable[[Run], object]) -> MeasuredRun:
    """The run of a row; an error has the row's place before its column."""
    if cells.get("cluster", "").endswith(".toml"):
        cells = {**cells, "cluster": str(base / cells["cluster"])}
    try:
        measured = measured_run(cells, base)
        if isinstance(measured.run, Run):
            check(measured.run)
    except SpecError as error:
        raise SpecError(error.what, place=f"{place} {error.place}".strip(), fix=error.fix) from None
    return measured


def measured_run(cells: Cells, base: Path = Path()) -> MeasuredRun:
    """The measured run of a row's cells, every column of `COLUMNS`. `base`: the table's folder."""
    held_out = _word(cells, "held_out", "yes", ("yes", "no")) == "yes"
    run = _planned(cells, base) if cells.get("plan") else run_of(cells)
    return MeasuredRun(run, _measured_s(cells), held_out)


def _planned(cells: Cells, base: Path) -> PlannedRun:
    """The run of the plan file that a row names, which must not describe it a second time."""
    twice = next((name for name, text in cells.items() if text and name not in BESIDE_PLAN), None)
    if twice is not None:
        raise SpecError(
            f"{shown(cells[twice])}, but the row's plan file says what ran",
            place=twice,
            fix="leave the cell empty, or leave plan empty",
        )
    return planned_run(base / cells["plan"])


def run_of(cells: Cells) -> Run:
    """The run that a row's cells describe."""
    tensor, pipeline = _whole(cells, "tp", 1), _whole(cells, "pp", 1)
    data = _data(cells, tensor * pipeline)
    model = _model(cells)
    layers = _stage_layers(cells, model, pipeline)
    virtual = len(layers) // pipeline if layers else _virtual(cells, model, pipeline)
    label = f"{model.name} tp{tensor} dp{data} pp{pipeline}"
    label += f"x{virtual}" if virtual > 1 else ""
    return Run(
        label=f"{label} mbs{_whole(cells, 'mbs', 1)} gbs{_whole(cells, 'gbs')}",
        model=model,
        cluster=cells.get("cluster") or "a100-80g-dgx",
        sequence=_whole(cells, "sequence", 2048),
        sequences=_whole(cells, "gbs"),
        micro_batch=_whole(cells, "mbs", 1),
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        virtual=virtual,
        layers=layers,
        recompute=_word(cells, "recompute", "full", ("none", "selective", "full")),
        sequence_parallel=_word(cells, "sequence_parallel", "no", ("yes", "no")) == "yes",
        sharding=int(_word(cells, "sharding", "0", ("0", "1", "2", "3"))),
        dtype=cells.get("dtype") or "fp16",
    )


def _virtual(cells: Cells, model: ModelSpec, pipeline: int) -> int:
    """Stages of a rank, from the layers of each."""
    layers = _whole(cells, "vstage_layers", 0)
    virtual = model.layers // (pipeline * layers) if layers else 1
    if layers and virtual * pipeline * layers != model.layers:
        raise SpecError(
            f"stages of {layers} layers on {pipeline} ranks do not add up to {model.layers}",
            place="vstage_layers",
            fix="use a divisor of layers / pp",
        )
    return virtual


def _stage_layers(cells: Cells, model: ModelSpec, pipeline: int) -> tuple[int, ...]:
    """The layers of each stage where a row says them, else ()."""
    text = cells.get("stage_layers", "")
    parts = text.split("-") if text else []
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise SpecError(
            f"{shown(text)} is not a list of layers",
            place="stage_layers",
            fix="write it as 4-7-7-6",
        )
    if any(len(part) > 5 for part in parts):
        raise SpecError(
            f"{shown(text)} has a stage of more layers than any model",
            place="stage_layers",
            fix="write it as 4-7-7-6",
        )
    layers = tuple(int(part) for part in parts)
    if layers and (sum(layers) != model.layers or len(layers) % pipeline):
        raise SpecError(
            f"{shown(text)} has {len(layers)} stages and {sum(layers)} layers, for {pipeline} "
            f"ranks and {model.layers} layers",
            place="stage_layers",
            fix="list the layers of every stage",
        )
    return layers


def _model(cells: Cells) -> ModelSpec:
    """The preset that the row names, which what it says besides must agree with, or its GPT."""
    if not cells.get("model"):
        vocab = _whole(cells, "vocab", GPT_VOCAB)
        layers, hidden, heads = (_whole(cells, column) for column in ("layers", "hidden", "heads"))
        return gpt(layers, hidden, heads, vocab, _whole(cells, "sequence", 2048))
    model = model_preset(cells["model"])
    for column in ("layers", "hidden", "heads", "vocab"):
        size: int = getattr(model, column)
        if _whole(cells, column, size) != size:
            raise SpecError(
                f"{cells[column]} {column}, but {model.name} has {size}",
                place=column,
                fix="leave the cell empty, or leave model empty",
            )
    return model


def _data(cells: Cells, inner: int) -> int:
    """The data degree: the row's own, or what its devices make; both must agree."""
    stated = _whole(cells, "dp", 0)
    devices = _whole(cells, "gpus", stated * inner or None)
    if stated and devices != stated * inner:
        raise SpecError(
            f"{devices} devices, but tp x pp x dp is {stated * inner}",
            place="gpus",
            fix=f"write {stated * inner}, or leave dp empty",
        )
    if devices % inner:
        raise SpecError(
            f"{devices} devices do not divide into groups of tp x pp = {inner}",
            place="gpus",
            fix=f"use {-(-devices // inner) * inner}",
        )
    return devices // inner


def _measured_s(cells: Cells) -> float:
    if cells.get("iter_ms") and cells.get("iter_s"):
        raise SpecError(
            "both iter_s and iter_ms are given", place="iter_ms", fix="leave one of them empty"
        )
    if cells.get("iter_ms"):
        return _seconds(cells, "iter_ms") / 1e3
    return _seconds(cells, "iter_s")


def _seconds(cells: Cells, column: str) -> float:
    text = cells.get(column, "")
    try:
        number = real(text)
    except ValueError:
        number = 0.0
    if not 1e-9 < number < MOST_SECONDS:
        raise SpecError(
            f"{shown(text)} is not a number above 0 and below {MOST_SECONDS:,.0f}",
            place=column,
            fix=f"write the {COLUMNS[column]}",
        )
    return number


def _whole(cells: Cells, column: str, otherwise: int | None = None) -> int:
    """A whole number; `otherwise` stands for an empty cell."""
    text = cells.get(column, "")
    if otherwise is not None and not text:
        return otherwise
    limit = MOST[column]
    try:
        return whole(text, 1, limit)
    except ValueError:
        raise SpecError(
            f"{shown(text)} is not a whole number from 1 to {limit:,}",
            place=column,
            fix=f"write the {COLUMNS[column]}",
        ) from None


def _word(cells: Cells, column: str, otherwise: Word, choices: tuple[Word, ...]) -> Word:
    text = cells.get(column) or otherwise
    for choice in choices:
        if choice == text:
            return choice
    raise SpecError(
        f"{shown(text)} is not an allowed value", place=column, fix=nearest(text, choices)
    )
