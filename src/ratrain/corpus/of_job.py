"""A job's data made ready, and what there is to say about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ratrain.controls import without_controls
from ratrain.corpus.held_out import HeldOut
from ratrain.corpus.prepare import Prepared, Progress, prepare
from ratrain.corpus.samples import Samples
from ratrain.corpus.tokenizer import Tokenizer, check_vocabulary, tokenizer_of
from ratrain.describe.job import JobSpec
from ratrain.errors import SpecError
from ratrain.readers.files import check_name

END = "<end of document>"


@dataclass(frozen=True)
class JobData:
    """The samples of a job and where they come from. `held_out`: None where the job names none."""

    samples: Samples
    prepared: Prepared
    held_out: HeldOut | None = None
    held_out_prepared: Prepared | None = None


@dataclass(frozen=True)
class Summary:
    """What `ratrain data` shows; its fields are the keys of --json."""

    files: int
    source_bytes: int
    documents: int
    tokens: int
    tokens_bytes: int  # of tokens.bin
    tokenizer: str
    vocab_size: int
    sequence_length: int
    samples_per_epoch: int
    sequences_per_step: int
    tokens_per_step: int
    steps: int
    epochs: float  # that the job's steps go through
    folder: str
    made_because: str  # "" where it was already there
    validation_files: int = 0
    validation_tokens: int = 0
    validation_samples: int = 0


def data_of_job(
    job: JobSpec,
    *,
    cache: Path | None = None,
    verify: bool = False,
    progress: Progress | None = None,
) -> JobData:
    """The job's samples; its files are tokenised where they are not yet (see prepare.py)."""
    place = f"{job.path} [data]" if job.path else "[data]"
    if job.data is None:
        raise SpecError(
            "the job has no data", place=str(job.path or "job"), fix='add [data] files = ["..."]'
        )
    base = job.path.parent if job.path else None
    check_name(job.data.tokenizer, f"{place} tokenizer")
    check_vocabulary(tokenizer_of(job.data.tokenizer, base), job.model.spec.vocab, place=place)
    files = f"{place} files"
    length = job.model.sequence_length
    prepared = prepare(
        job.data,
        base,
        cache=cache,
        verify=verify,
        progress=progress,
        place=files,
        sequence_length=length,
    )
    samples = Samples(
        prepared.store,
        job.model.sequence_length,
        job.batch.sequences,
        job.train.seed,
        job.data.shuffle,
    )
    if not job.data.validation:
        if job.train.validate_every:
            raise SpecError(
                "there is no held-out text to validate on",
                place=f"{job.path or 'job'} [train] validate_every",
                fix='add validation = ["held-out.txt"] to [data], or leave it out',
            )
        return JobData(samples, prepared)
    data, validation_place = replace(job.data, files=job.data.validation), f"{place} validation"
    held_out = prepare(
        data,
        base,
        cache=cache,
        verify=verify,
        progress=progress,
        place=validation_place,
        sequence_length=length,
    )
    _require_apart(prepared, held_out, validation_place)
    in_order = replace(samples, store=held_out.store, shuffle=False)
    return JobData(samples, prepared, HeldOut(in_order), held_out)


def _require_apart(prepared: Prepared, held_out: Prepared, place: str) -> None:
    """Refuses held-out files that are trained on too."""
    shared = {source.path for source in prepared.sources} & {s.path for s in held_out.sources}
    if shared:
        raise SpecError(
            f"{min(shared)} is also trained on", place=place, fix="choose other files, or remove it"
        )


def summary_of(job: JobSpec, data: JobData) -> Summary:
    """The figures of a job's data."""
    samples, index = data.samples, data.prepared.store.index
    return Summary(
        len(data.prepared.sources),
        sum(source.size_bytes for source in data.prepared.sources),
        index.documents,
        index.tokens,
        index.size_bytes,
        job.data.tokenizer if job.data else "",
        index.vocab_size,
        samples.sequence_length,
        samples.count,
        samples.sequences,
        samples.sequences * samples.sequence_length,
        job.train.steps,
        job.train.steps * samples.sequences / samples.count,
        str(data.prepared.store.folder),
        data.prepared.made_because,
        *_held_out_counts(data),
    )


def _held_out_counts(data: JobData) -> tuple[int, int, int]:
    """Files, tokens and samples of the held-out text."""
    if data.held_out is None or data.held_out_prepared is None:
        return 0, 0, 0
    prepared = data.held_out_prepared
    return len(prepared.sources), prepared.store.index.tokens, data.held_out.samples.count


def first_samples(data: JobData, count: int) -> list[tuple[int, str]]:
    """Index and text of the first samples that the job trains on."""
    positions = np.arange(count, dtype=np.int64)
    indices = data.samples.order.at(positions).tolist()
    rows = data.samples.at(positions).tokens
    tokenizer = data.prepared.tokenizer
    return [(index, readable(tokenizer, row)) for index, row in zip(indices, rows, strict=True)]


def readable(tokenizer: Tokenizer, ids: np.ndarray) -> str:
    """The text of ids with the ends of documents marked, and nothing that moves a terminal."""
    parts = np.split(ids, np.flatnonzero(ids == tokenizer.end_id) + 1)
    text = f"{END}\n".join(tokenizer.decode(part) for part in parts)
    return without_controls(text)
