"""A unit as one buffer again: what was trained of it, what was not, and adapters added to their
matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from ratrain.models.parameters import UnitParameters


def merged(
    plain: UnitParameters, layout: UnitParameters, trained: Tensor, frozen: Tensor
) -> Tensor:
    """The buffer of the layout `plain`, in which everything is trained, of a whole unit with the
    layout `layout` whose two buffers are given, in fp32."""
    flat = torch.zeros(plain.size)
    for parameter in plain.parameters:
        into = flat[parameter.offset : parameter.end].view(parameter.shape)
        into.copy_(_values(layout, parameter.name, trained, frozen))
        adapter = layout.adapter_of.get(parameter.name.removesuffix(".weight"))
        if adapter is not None and parameter.name.endswith(".weight"):
            a, b = (_values(layout, name, trained, frozen) for name in (adapter.a, adapter.b))
            into.addmm_(b, a, alpha=layout.adapter_scale)
    return flat


def _values(layout: UnitParameters, name: str, trained: Tensor, frozen: Tensor) -> Tensor:
    held = layout.by_name[name]
    flat = trained if held.trained else frozen
    return flat[held.offset : held.end].view(held.shape)
