"""A measured run, and how tables of them are read: the project's own and a user's.

A user's table is a CSV file with one run a line. docs/accuracy.md lists the columns.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal, TypeVar

from ratrain.describe.model import ModelSpec
from ratrain.describe.presets import model_preset
from ratrain.describe.strict import nearest
from ratrain.errors import SpecError

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
    "model": "a preset; or give layers, hidden and heads of a GPT",
    "layers": "layers of a GPT",
    "hidden": "its width",
    "heads": "its attention heads",
    "vocab": "its vocabulary (left out: 51200)",
    "sequence": "tokens of a sequence (left out: 2048)",
    "recompute": "none, selective or full (left out: full)",
    "sequence_parallel": "yes or no (left out: no)",
    "cluster": "a cluster preset or file (left out: a100-80g-dgx)",
    "held_out": "yes: not used to calibrate (left out: yes)",
}


@dataclass(frozen=True)
class MeasuredRun:
    """One measured step. `held_out`: no constant of its cluster was fitted on it."""

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
    recompute: Recompute
    sequence_parallel: bool
    measured_s: float
    held_out: bool

    @property
    def choice(self) -> tuple[object, ...]:
        """What a planner is given: runs that agree here are alternatives of one another."""
        devices = self.tensor * self.pipeline * self.data
        return self.model, self.cluster, self.sequence, self.sequences, devices


def gpt(layers: int, hidden: int, heads: int, vocab: int, sequence: int) -> ModelSpec:
    """A GPT of Megatron-LM's shape: MLP of 4 h, tied embeddings, learned positions, biases."""
    if hidden % heads:
        raise SpecError(f"{heads} heads do not divide the width {hidden}", fix="correct the row")
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
    text = (files("ratrain.data.measured") / f"{name}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(io.StringIO(text)))


def user_runs(path: Path) -> tuple[MeasuredRun, ...]:
    """The runs of a user's table. An unknown column or a wrong cell is a SpecError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read the table: {error}", place=str(path)) from None
    reader = csv.DictReader(io.StringIO(text))
    for column in reader.fieldnames or ():
        if column not in COLUMNS:
            place = f"{path}:1"
            raise SpecError(f"unknown column {column!r}", place=place, fix=nearest(column, COLUMNS))
    found = tuple(_located(row, f"{path}:{line}", path.parent) for line, row in _lines(reader))
    if not found:
        raise SpecError("the table has no rows", place=str(path), fix="add a line for each run")
    return found


def _lines(reader: csv.DictReader[str]) -> Iterable[tuple[int, Cells]]:
    """Each row with its line in the file; a cell too many or too few is left to `run_of`."""
    for row in reader:
        cells = {key: (value or "").strip() for key, value in row.items() if key in COLUMNS}
        yield reader.line_num, cells


def _located(cells: Cells, place: str, base: Path) -> MeasuredRun:
    if cells.get("cluster", "").endswith(".toml"):
        cells = {**cells, "cluster": str(base / cells["cluster"])}
    try:
        return run_of(cells)
    except SpecError as error:
        raise SpecError(error.what, place=f"{place} {error.place}".strip(), fix=error.fix) from None


def run_of(cells: Cells) -> MeasuredRun:
    """The run of a row's cells, every column of `COLUMNS`."""
    tensor, pipeline = _whole(cells, "tp", 1), _whole(cells, "pp", 1)
    data = _whole(cells, "dp", 0) or _data(cells, tensor * pipeline)
    model = _model(cells)
    each = _whole(cells, "vstage_layers", 0)
    virtual = model.layers // (pipeline * each) if each else 1
    if each and virtual * pipeline * each != model.layers:
        raise SpecError(
            f"stages of {each} layers on {pipeline} ranks do not add up to {model.layers}",
            place="vstage_layers",
            fix="use a divisor of layers / pp",
        )
    recompute: Recompute = _word(cells, "recompute", "full", ("none", "selective", "full"))
    label = f"{model.name} tp{tensor} dp{data} pp{pipeline}"
    label += f"x{virtual}" if virtual > 1 else ""
    return MeasuredRun(
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
        recompute=recompute,
        sequence_parallel=_word(cells, "sequence_parallel", "no", ("yes", "no")) == "yes",
        measured_s=_measured_s(cells),
        held_out=_word(cells, "held_out", "yes", ("yes", "no")) == "yes",
    )


def _model(cells: Cells) -> ModelSpec:
    if cells.get("model"):
        return model_preset(cells["model"])
    vocab = _whole(cells, "vocab", GPT_VOCAB)
    layers, hidden, heads = (_whole(cells, column) for column in ("layers", "hidden", "heads"))
    return gpt(layers, hidden, heads, vocab, _whole(cells, "sequence", 2048))


def _data(cells: Cells, inner: int) -> int:
    devices = _whole(cells, "gpus")
    if devices % inner:
        raise SpecError(
            f"{devices} devices do not divide into groups of tp x pp = {inner}", place="gpus"
        )
    return devices // inner


def _measured_s(cells: Cells) -> float:
    if cells.get("iter_ms"):
        return _number(cells, "iter_ms", float) / 1e3
    return _number(cells, "iter_s", float)


def _whole(cells: Cells, column: str, otherwise: int | None = None) -> int:
    if otherwise is not None and not cells.get(column):
        return otherwise
    return int(_number(cells, column, int))


def _number(cells: Cells, column: str, kind: Callable[[str], float]) -> float:
    text = cells.get(column, "")
    try:
        number = kind(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise SpecError(f"{text!r} is not a number above 0", place=column, fix=COLUMNS[column])
    return number


def _word(cells: Cells, column: str, otherwise: Word, choices: tuple[Word, ...]) -> Word:
    text = cells.get(column) or otherwise
    for choice in choices:
        if choice == text:
            return choice
    raise SpecError(f"{text!r} is not a choice", place=column, fix=nearest(text, choices))
