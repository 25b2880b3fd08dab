"""What can be planned and simulated and not trained, refused before anything else is done."""

from __future__ import annotations

from ratrain.describe.job import JobSpec
from ratrain.describe.lines import wrapped
from ratrain.describe.model import ModelSpec
from ratrain.describe.units import counted
from ratrain.errors import SpecError
from ratrain.models.trainable import check_trainable
from ratrain.program.setup import Setup


def require_whole_periods(job: JobSpec, period: int) -> None:
    """Raises SpecError where a run whose replicas average their weights every few steps would
    validate or save between two averages, when they are not alike."""
    limits = {
        "[train] validate_every": job.train.validate_every,
        "[train] sample_every": job.train.sample_every,
        "[checkpoint] every": job.checkpoint.every,
    }
    for name, steps in limits.items():
        if steps % period:
            raise SpecError(
                f"replicas are identical only every {period} steps, and this is {steps}",
                place=f"{job.path} {name}",
                fix=f"use a multiple of {period}",
            )


def rest_words(period: int, first_step: int, end_step: int) -> list[str]:
    """What becomes of steps behind the last whole period of a run, as lines; none where there are
    none."""
    rest = min(end_step % period, end_step - first_step)
    if rest < 1:
        return []
    return wrapped(
        f"the last {counted(rest, 'step')} of {end_step} are a shorter period: replicas average "
        "their weights after it too"
    )


def doubts(job: JobSpec, words: int) -> list[str]:
    """What can be trained and is hardly meant, as lines. `words`: of the tokenizer."""
    model, length = job.model.spec, job.model.sequence_length
    lines = [line for sentence in job.unused for line in wrapped(f"note: {sentence}")]
    if 4 * words < model.vocab:
        lines += wrapped(
            f"note: tokens of [data] tokenizer {job.data.tokenizer if job.data else ''!r} have "
            f"{words:,} of the model's {model.vocab:,} words: the rest of its embedding and head "
            "is trained for nothing"
        )
    if length > model.max_positions:
        lines += wrapped(
            f"note: sequences of {length:,} tokens are longer than the {model.max_positions:,} "
            f"positions that {model.name} is made for"
        )
    return lines


def require_trainable(job: JobSpec) -> None:
    """Raises SpecError where the torch models cannot compute the job's model, or cannot begin from
    the weights that it names."""
    model = job.model
    check_trainable(model.spec)
    if job.train.weights is not None:
        from ratrain.models.huggingface.reader import check_weights  # loads torch

        assert job.path is not None
        check_weights(job.path.parent / job.train.weights, model.spec)


def require_gatherable(job: JobSpec, setup: Setup) -> None:
    """Refuses level 3 of weights that nobody updates among ranks that compute in unlike dtypes:
    they have no master weights of which each rank could be sent its own."""
    if job.unlike and job.train.tuning is not None and setup.sharding == 3:
        raise SpecError(
            "weights that nobody updates are not gathered among kinds of device that compute in "
            "different dtypes yet (sharding 3)",
            place=f"{job.path or 'job'} [schedule] sharding",
            fix="use sharding = 2, one dtype, or train all of the model",
        )


def why_untrainable(model: ModelSpec) -> str | None:
    """Why a model can be planned and simulated here, but not trained; None where it can."""
    try:
        check_trainable(model)
    except SpecError as error:
        return error.what
    return None
