"""Cross entropy where each rank of a tensor group has the logits of some words (1909.08053).

A rank sends three numbers a token: its largest logit, the sum of its exponents relative to that,
and the target's logit where the target is among its words. Whole rows of logits never travel.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ratrain.models.tensor_group import TensorGroup


def divided_losses(
    logits: Tensor,
    rows: Tensor,
    elsewhere: Tensor,
    group: TensorGroup,
    chunks: Iterable[slice],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """(loss of each token; log of the sum of exponents over all words), both in `dtype`.

    `rows` are the targets among this rank's words, where not `elsewhere`.
    """
    own_sums = torch.zeros((3, logits.shape[0]), dtype=dtype, device=logits.device)
    for part in chunks:
        values = logits[part].to(dtype)
        largest = values.amax(1)
        own_sums[0, part] = largest
        own_sums[1, part] = (values - largest.unsqueeze(1)).exp_().sum(1)
        own_sums[2, part] = values.gather(1, rows[part].unsqueeze(1)).squeeze(1)
    own_sums[2].masked_fill_(elsewhere, 0)
    all_sums = group.gather(own_sums)
    largest = torch.stack([partial[0] for partial in all_sums]).amax(0)
    total, target_logits = torch.zeros_like(largest), torch.zeros_like(largest)
    for partial in all_sums:
        total += partial[1] * (partial[0] - largest).exp_()
        target_logits += partial[2]
    logsumexp = total.log_().add_(largest)
    return logsumexp - target_logits, logsumexp
