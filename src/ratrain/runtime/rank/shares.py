"""A replica's part of the batches of a run, and of those held out."""

from __future__ import annotations

from typing import Any

from ratrain.corpus.held_out import HeldOut
from ratrain.corpus.prompts import prompts_of, tokenizer_of_job
from ratrain.corpus.samples import Samples
from ratrain.describe.job import JobSpec
from ratrain.devices import Device
from ratrain.runtime.rank.context import RankContext
from ratrain.runtime.rank.sampling import Prompts, Sampled
from ratrain.runtime.rank.validation import HeldOutShare
from ratrain.runtime.run_folder import RunSpec, share_of
from ratrain.runtime.step.batches import ReplicaBatches


def own_batches(context: RankContext, device: Device) -> ReplicaBatches:
    """The replica's part of the global batch: replicas take it in order, by their sizes."""
    return _share(context, context.data.samples, device, context.spec.data_from)


def own_held_out(context: RankContext, device: Device) -> HeldOutShare | None:
    """The same of the held-out batches."""
    held_out = context.data.held_out
    return held_out and HeldOutShare(_share(context, held_out, device), held_out.batches)


def asked_prompts(job: JobSpec, spec: RunSpec) -> Prompts | None:
    """What the model goes on with while it is trained; None where that is not asked for."""
    prompts = prompts_of(job)
    if not prompts:
        return None
    replicas = range(spec.data)
    return Prompts(
        prompts,
        job.train.sample_tokens,
        min(spec.micro_batch_of(replica) for replica in replicas),
        min(tokenizer_of_job(job).vocab_size, job.model.spec.vocab),
        job.model.sequence_length,
    )


def in_words(job: JobSpec, sampled: Sampled) -> list[tuple[str, str]]:
    """Prompts, and what follows each."""
    tokenizer = tokenizer_of_job(job)
    return [
        (prompt.text, tokenizer.decode(tokens))
        for prompt, tokens in zip(prompts_of(job), sampled.tokens, strict=True)
    ]


def _share(
    context: RankContext, source: Samples | HeldOut, device: Device, data_from: int = 0
) -> ReplicaBatches:
    """A replica's part of `source`, whose first batch is that of step `data_from`."""
    spec, seat = context.spec, context.seat
    first, sequences = share_of(spec, context.program.setup, seat.data)

    def read(step: int, begin: int, count: int) -> tuple[Any, Any]:
        batch = source.batch(step - data_from, begin, count)
        return batch.tokens, batch.targets

    def counted(step: int, begin: int, count: int) -> int:
        return source.counted(step - data_from, begin, count)

    size = spec.micro_batch_of(seat.data)
    return ReplicaBatches(read, first, sequences, size, device.place, count=counted)
