"""The modules of a user's model: made, and their first weights."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]

from ratrain.describe.model import ModelSpec
from ratrain.describe.own import OWN_MODELS, kind_of
from ratrain.errors import SpecError
from ratrain.models.functions.dropout import CountedDropout

KINDS = {"embedding": "first", "layer": "block", "head": "last"}
"""What the argument that makes a kind of unit is called."""


def module_at(name: str, kind: str, module: object) -> nn.Module:
    """A module that can be a unit; SpecError where it cannot."""
    place, which = f"model {name}", f"the {KINDS[kind]} of {name}"
    if not isinstance(module, nn.Module):
        raise SpecError(
            f"{which} is a {type(module).__name__}", place=place, fix="return an nn.Module"
        )
    for path, inner in module.named_modules():
        if isinstance(inner, _NormBase) and inner.track_running_stats:
            raise SpecError(
                f"{path or type(inner).__name__} in {which} keeps statistics of the batches that "
                "it has seen, which would differ from layout to layout",
                place=place,
                fix="use track_running_stats=False, or a norm of each token (LayerNorm, RMSNorm)",
            )
    return module


def first_parameters(spec: ModelSpec, unit: str, seed: int) -> dict[str, Tensor]:
    """The parameters that a unit's module begins with, in fp32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = module_at(spec.name, kind_of(unit), OWN_MODELS[spec.name].module(kind_of(unit)))
    return {name: each.detach().float() for name, each in made.named_parameters()}


def bare_module(name: str, kind: str, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """A unit's module without its parameters: what else it holds is on a device, and in a dtype.
    What it drops follows from where it is, as in RATrain's own units."""
    with torch.random.fork_rng(devices=[]):
        module = module_at(name, kind, OWN_MODELS[name].module(kind))
    for inner in list(module.modules()):
        for path, child in inner.named_children():
            if type(child) is nn.Dropout:
                setattr(inner, path, CountedDropout(child.p))
        for path, parameter in inner.named_parameters(recurse=False):
            empty = torch.empty_like(parameter, device="meta")
            setattr(inner, path, nn.Parameter(empty, requires_grad=False))
        for path, buffer in inner.named_buffers(recurse=False):
            wanted = dtype if buffer.is_floating_point() else buffer.dtype
            setattr(inner, path, buffer.to(device=device, dtype=wanted))
    return module


shared_module = lru_cache(maxsize=6)(bare_module)
"""The same, of which a rank's units of a kind share one: their parameters are given to it."""
