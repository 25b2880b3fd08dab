"""The same tokens for every method: by step and position in the global batch."""

from __future__ import annotations

from pathlib import Path

import torch
from cases import Case
from torch import Tensor

from ratrain.corpus.of_job import data_of_job
from ratrain.corpus.samples import Samples
from ratrain.plan.layout.jobs import load_job


def samples_of(folder: Path) -> Samples:
    """The samples of a written case's job."""
    return data_of_job(load_job(folder / "job.toml")).samples


def batch(case: Case, samples: Samples, step: int, replica: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one replica in one step."""
    count = case.sequences // case.data
    batch = samples.batch(step, replica * count, count)
    return torch.from_numpy(batch.tokens), torch.from_numpy(batch.targets)
