"""The same tokens for every method: by step and position in the global batch."""

from __future__ import annotations

import numpy as np
import torch
from cases import Case
from torch import Tensor


def batch(case: Case, step: int, replica: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one replica in one step."""
    count = case.sequences // case.data
    shape = (case.sequences, case.sequence_length + 1)
    rows = np.random.default_rng((case.seed, step)).integers(0, 256, shape, dtype=np.int64)
    own = torch.from_numpy(rows[replica * count : (replica + 1) * count])
    return own[:, :-1].contiguous(), own[:, 1:].contiguous()
