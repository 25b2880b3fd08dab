"""Whether a checkpoint holds the states of a job's optimizer. Needs no torch: the launcher asks."""

from __future__ import annotations

from ratrain.checkpoint.entries import OPTIMIZER
from ratrain.checkpoint.manifest import Manifest
from ratrain.describe.job import JobSpec
from ratrain.describe.optimizers import USUAL_OPTIMIZER
from ratrain.errors import CannotResume


def require_optimizer(job: JobSpec, manifest: Manifest, place: str) -> None:
    """Refuses a checkpoint that holds the states of another optimizer."""
    began = manifest.meta.state.get(OPTIMIZER, USUAL_OPTIMIZER)
    if began != job.train.optimizer:
        raise CannotResume(
            f"holds the states of the optimizer {began}, and [train] optimizer is "
            f"{job.train.optimizer!r}",
            place=place,
            fix=f'write optimizer = "{began}", or begin from its weights alone: `ratrain export` '
            "them, and name their folder in [train] weights",
        )
