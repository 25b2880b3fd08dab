"""Texts that a run's model goes on with while it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ratrain.corpus.tokenizer import Tokenizer, tokenizer_of
from ratrain.describe.job import JobSpec
from ratrain.errors import SpecError
from ratrain.readers.files import read_text


@dataclass(frozen=True)
class Prompt:
    """A text, and its tokens."""

    text: str
    tokens: tuple[int, ...]


def tokenizer_of_job(job: JobSpec) -> Tokenizer:
    """What the job's text is read with."""
    assert job.data is not None
    return tokenizer_of(job.data.tokenizer, job.path.parent if job.path else None)


def prompts_of(job: JobSpec) -> tuple[Prompt, ...]:
    """The job's prompts; none where it asks for no samples. Raises SpecError where one of them
    cannot be gone on with."""
    train, place = job.train, f"{job.path or 'job'} [train]"
    if not train.sample_every or job.data is None:
        return ()
    texts = list(train.prompts)
    if train.prompts_file is not None:
        file = (job.path.parent if job.path else Path()) / train.prompts_file
        texts += [line for line in read_text(file).splitlines() if line.strip()]
    if not texts:
        raise SpecError(
            "there is no prompt to go on with",
            place=f"{place} sample_every",
            fix='add prompts = ["The "], or prompts_file, or leave sample_every out',
        )
    tokenizer = tokenizer_of_job(job)
    return tuple(_prompt(text, tokenizer, job, place) for text in texts)


def _prompt(text: str, tokenizer: Tokenizer, job: JobSpec, place: str) -> Prompt:
    tokens = tuple(int(token) for token in tokenizer.encode(text))
    length, more = job.model.sequence_length, job.train.sample_tokens
    room = length - len(tokens)
    if not tokens:
        raise SpecError(
            f"the prompt {text!r} has no token", place=f"{place} prompts", fix="give it a word"
        )
    if room < more:
        raise SpecError(
            f"a prompt of {len(tokens):,} tokens and {more:,} more are longer than the model's "
            f"sequences of {length:,}",
            place=f"{place} sample_tokens",
            fix=f"use sample_tokens = {room}" if room > 0 else "use a shorter prompt",
        )
    return Prompt(text, tokens)
