"""What the files of a run's folder must hold to be read: each held to its form, all errors named.

The folder is written by ranks that may be killed, on disks that may fill up, and read by verbs long
after. What is damaged is reported with its file, line and key.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from ratrain.describe.amounts import (
    Count,
    Devices,
    FileName,
    Message,
    Name,
    Natural,
    Note,
    NotNegative,
    Tokens,
)
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import Rule, load
from ratrain.describe.train import TLS_OFF
from ratrain.errors import SpecError
from ratrain.program.actions import is_word
from ratrain.readers.files import check_name, shown
from ratrain.readers.json import read_json_table
from ratrain.readers.json_lines import read_json_lines
from ratrain.readers.limits import TIMELINE_BYTES
from ratrain.readers.place import Place

Bytes = Annotated[int, Rule(low=0, high=1 << 53)]
Rank = Annotated[int, Rule(low=0, high=1 << 18)]
Seconds = Annotated[float, Rule(low=-1.0, high=1e12)]  # a difference of clocks may be below 0
CASE_FORMAT = "ratrain case 1"

_RANK_NUMBERS = ("step_time_s", "ledger_peak_bytes", "allocated_peak_bytes", "resident_bytes")
_RANK_WAITS = ("compute_s", "recovery_s", "stages_s", "reduce_s", "gather_s", "update_s")
RANK_EXPERTS = (
    "expert_tokens",
    "expert_tokens_even",
    "expert_tokens_longest",
    "expert_busiest",
)
"""How a step's tokens were spread over experts; not in the row of a rank that has none."""
_ROW_NUMBERS = ("step_time_s", "tokens", "tokens_per_s", "time_s")
_RESUME = "train a few more steps, which writes it again: `ratrain train JOB --resume --steps N`"
_MOST_STEPS = 10**12


@dataclass(frozen=True)
class _Settings:
    """The job's tables as they were."""

    model: dict[str, Any]
    batch: dict[str, Any]
    train: dict[str, Any]
    data: dict[str, Any] | None
    checkpoint: dict[str, Any]
    # earlier versions did not keep these
    cluster: dict[str, Any] | None = None
    layout: dict[str, Any] | None = None
    schedule: dict[str, Any] | None = None


@dataclass(frozen=True)
class _Replica:
    """Replicas that are alike, of a run whose replicas differ, as far as they are read."""

    numbers: tuple[Rank, ...]
    layers_per_stage: tuple[Annotated[int, Rule(low=0, high=10_000)], ...]
    micro_batches: Count
    micro_batch: Count


@dataclass(frozen=True)
class _Facts:
    """What was chosen for the job, as far as it is read."""

    model: Name
    sequence_length: Tokens
    cluster: Name
    devices: Devices
    pipeline: Count
    data: Count
    tensor: Count
    virtual: Count
    sequence_parallel: bool
    layers_per_stage: tuple[Annotated[int, Rule(low=0, high=10_000)], ...]
    micro_batches: tuple[Count, ...]
    schedule: Name
    without: tuple[Name, ...]
    sharding: Annotated[int, Rule(low=0, high=3)]
    activations: Message
    gradients: Name
    # earlier versions did not keep these
    dtype: Name | None = None
    gradient_wire: Name | None = None
    boundary_wire: Name | None = None
    error_feedback: bool = False
    replicas: tuple[_Replica, ...] = ()  # where they differ


@dataclass(frozen=True)
class _Case:
    """case.json."""

    format: Literal["ratrain case 1"]
    facts: _Facts
    headline: tuple[str, ...]
    settings: _Settings
    ranks: Any
    tier: Name
    budget_bytes: tuple[Bytes | None, ...]
    bound_bytes: tuple[Bytes, ...]
    bound_items: tuple[dict[str, Bytes], ...]
    model_file: FileName | None = None  # earlier versions did not keep it


@dataclass(frozen=True)
class TrainedCase:
    """What case.json says of the model that its run trains."""

    model: ModelSpec
    sequence_length: int
    tokenizer: str  # as a job names it
    weights: str | None  # the Hugging Face folder that the run began from, beside its job
    model_file: str | None  # the config.json that described the model
    seed: int  # of its first weights
    tls: str  # as a job's [train] says it


@dataclass(frozen=True)
class _RankTimes:
    """What the simulator predicted of a rank's step."""

    rank: Rank
    compute_s: Seconds
    recovery_s: Seconds
    waiting_s: dict[str, Seconds]
    driving_s: Seconds = 0.0


@dataclass(frozen=True)
class _Prediction:
    """prediction.json, as far as it is read."""

    step_time_s: NotNegative
    ranks: tuple[_RankTimes, ...]
    period_step_times_s: tuple[NotNegative, ...] = ()  # earlier versions did not keep them


@dataclass(frozen=True)
class _Memory:
    """A rank's peaks."""

    size_bytes: Bytes
    items: dict[str, Bytes]
    ledger_waits: Annotated[int, Rule(low=0)]
    allocated_peak_bytes: Bytes | None
    resident_bytes: Bytes | None
    product_peak_bytes: Bytes = 0  # runs of before have none
    computes_on: Note = ""  # nor these


@dataclass(frozen=True)
class _ExpertLayer:
    """A layer's tokens of each expert, and of the ranks that had the most."""

    tokens: tuple[Annotated[int, Rule(low=0)], ...]
    longest: Annotated[int, Rule(low=0)]


@dataclass(frozen=True)
class _Experts:
    """How a rank's steps spread tokens over experts."""

    steps: Annotated[int, Rule(low=0)]
    layers: dict[str, _ExpertLayer]


@dataclass(frozen=True)
class _Settled:
    """How a run of replicas or sites that train apart ended, and what one rank sent to other
    sites."""

    ranges: Natural
    unlike: Natural
    took_s: Annotated[float, Rule(low=0, high=1e12)]
    steps: Annotated[int, Rule(low=1, high=1_000_000_000)]
    steps_bytes: Bytes
    last_bytes: Bytes


@dataclass(frozen=True)
class _Records:
    """ranks/records-*.json."""

    rank: Rank
    clock_s: Annotated[float, Rule(low=-1e12, high=1e12)]
    rows: Any
    memory: _Memory | None = None
    experts: _Experts | None = None  # runs of before have none
    settled: _Settled | None = None  # nor this


def read_case(path: Path) -> dict[str, Any]:
    """case.json."""
    return _checked(_Case, path)


def trained_case(path: Path) -> TrainedCase:
    """What case.json says of the model that its run trains."""
    table, place = read_json_table(path, TIMELINE_BYTES)
    case = load(_Case, table, place, strict=False)
    settings, settings_place = case.settings, place.at("settings")
    model = dict(settings.model)
    length = model.pop("sequence_length", None)
    if not _is_whole(length, 1 << 27):
        raise _damaged(
            f"{shown(length)} is not a length", settings_place.at("model", "sequence_length")
        )
    tokenizer = (settings.data or {}).get("tokenizer", "bytes")
    if not isinstance(tokenizer, str) or not tokenizer:
        raise _damaged(
            f"{shown(tokenizer)} is not a tokenizer", settings_place.at("data", "tokenizer")
        )
    weights = settings.train.get("weights")
    if weights is not None:
        check_name(
            weights if isinstance(weights, str) else "", str(settings_place.at("train", "weights"))
        )
    seed = settings.train.get("seed", 0)
    if not _is_whole(seed, (1 << 63) - 1):
        raise _damaged(f"{shown(seed)} is not a seed", settings_place.at("train", "seed"))
    tls = settings.train.get("tls", TLS_OFF)  # runs of before have none
    check_name(tls if isinstance(tls, str) else "", str(settings_place.at("train", "tls")))
    if case.model_file is not None:
        check_name(case.model_file, str(place.at("model_file")))
    return TrainedCase(
        load(ModelSpec, {**model, "source": str(path)}, settings_place.at("model")),
        cast("int", length),
        tokenizer,
        weights,
        case.model_file,
        seed,
        tls,
    )


def read_prediction(path: Path, ranks: int) -> dict[str, Any]:
    """prediction.json of a program of that many ranks."""
    body = _checked(_Prediction, path)
    _require(
        len(body["ranks"]) >= ranks,
        f"has {len(body['ranks'])} ranks, the program has {ranks}",
        Place(str(path)).at("ranks"),
    )
    return body


def read_records(path: Path, rank: int) -> dict[str, Any]:
    """A rank's records-*.json."""
    table, place = read_json_table(path, TIMELINE_BYTES)
    load(_Records, table, place, strict=False)
    _require(table["rank"] == rank, f"is of rank {table['rank']}, not {rank}", place.at("rank"))
    rows = table["rows"]
    _require(isinstance(rows, list), "is not a list", place.at("rows"))
    for number, row in enumerate(cast("list[Any]", rows)):
        if not _is_record(row):
            raise _damaged(f"{shown(row)} is not an op that ran", place.at("rows", number))
    return table


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of metrics.jsonl; a half-written last line is left out."""
    for row, place in read_json_lines(path, half=True, finite=False):
        check_row(row, place)
        yield row


def check_row(row: dict[str, Any], place: Place) -> None:
    """A SpecError where a line of metrics.jsonl is not one of them."""
    _require(_is_whole(row.get("step"), _MOST_STEPS), "is not a step number", place.at("step"))
    if "validation_loss" in row and "loss" not in row:
        _check_validation(row, place)
    elif "samples" in row and "loss" not in row:
        _check_samples(row, place)
    else:
        _check_step(row, place)


def _check_validation(row: dict[str, Any], place: Place) -> None:
    """A row that validation has added to its step's."""
    _require(_is_float(row["validation_loss"]), "is not a number", place.at("validation_loss"))
    for name in ("validation_tokens", "time_s", *(("drift",) if "drift" in row else ())):
        _require(_is_number(row.get(name), 0), "is not a number", place.at(name))


def _check_samples(row: dict[str, Any], place: Place) -> None:
    """A row of texts that were drawn after its step."""
    for name in ("samples_s", "time_s"):
        _require(_is_number(row.get(name), 0), "is not a number", place.at(name))
    samples = row["samples"]
    sound = isinstance(samples, list) and bool(samples)
    _require(sound, "is not a list of samples", place.at("samples"))
    for number, sample in enumerate(cast("list[Any]", samples)):
        texts = [sample.get(key) for key in ("prompt", "text")] if isinstance(sample, dict) else []
        is_text = len(texts) == 2 and all(isinstance(text, str) for text in texts)
        _require(is_text, "is not a sample", place.at("samples", number))


def _check_step(row: dict[str, Any], place: Place) -> None:
    for name in _ROW_NUMBERS:
        _require(_is_number(row.get(name), 0), "is not a number", place.at(name))
    _require(_is_float(row.get("loss")), "is not a number", place.at("loss"))
    budget = row.get("budget_bytes")
    _require(
        budget is None or _is_whole(budget, 1 << 53), "is not a size", place.at("budget_bytes")
    )
    if "started_s" in row:
        _require(_is_number(row["started_s"], 0), "is not a number", place.at("started_s"))
    bits = row.get("loss_bits")
    _require(isinstance(bits, str) and 0 < len(bits) < 40, "is not a number", place.at("loss_bits"))
    ranks = row.get("ranks")
    _require(isinstance(ranks, list) and bool(ranks), "is not a list of ranks", place.at("ranks"))
    for number, rank in enumerate(cast("list[Any]", ranks)):
        rank_place = place.at("ranks", number)
        _require(isinstance(rank, dict), f"{shown(rank)} is not a rank's row", rank_place)
        for name in (*_RANK_NUMBERS, *_RANK_WAITS):
            value = rank.get(name)
            low = 0 if name in _RANK_NUMBERS else -1e12
            if value is not None and not _is_number(value, low):
                raise _damaged(f"{shown(value)} is not a number", rank_place.at(name))
            if name not in rank:
                raise _damaged("is missing", rank_place.at(name))
        for name in RANK_EXPERTS:
            if RANK_EXPERTS[0] in rank and not _is_number(rank.get(name), 0):
                raise _damaged(f"{shown(rank.get(name))} is not a number", rank_place.at(name))


def _is_record(row: Any) -> bool:
    """[step, lane, word, reached_s, start_s, end_s, ...]"""
    if not isinstance(row, list) or len(cast("list[Any]", row)) < 6:
        return False
    step, lane, word, *times = cast("list[Any]", row)
    return (
        _is_whole(step, _MOST_STEPS)
        and isinstance(lane, str)
        and isinstance(word, str)
        and is_word(word)
        and all(_is_number(time_s, -1e12) for time_s in times[:3])
        and times[1] <= times[2]
    )


def _is_whole(value: Any, limit: int) -> bool:
    return type(value) is int and 0 <= value <= limit


def _is_number(value: Any, low: float) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and low <= value <= 1e18


def _is_float(value: Any) -> bool:
    """A loss may be infinite, or none: a run may diverge."""
    return type(value) in (int, float)


def _checked(kind: type[Any], path: Path) -> dict[str, Any]:
    table, place = read_json_table(path, TIMELINE_BYTES)
    load(kind, table, place, strict=False)
    return table


def _require(condition: bool, problem: str, place: Place) -> None:
    if not condition:
        raise _damaged(problem, place)


def _damaged(problem: str, place: Place) -> SpecError:
    return SpecError(problem, place=str(place), fix=_RESUME)
