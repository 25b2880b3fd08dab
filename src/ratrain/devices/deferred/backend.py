"""Makes `deferred` known to torch as a kind of device, in Python alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ratrain.devices.deferred.tensor import NAME, current
from ratrain.errors import SpecError

_KEY = "PrivateUse1"


@cache
def register() -> torch.library.Library:
    """Once a process; a `SpecError` where torch cannot."""
    try:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        _setup_privateuseone_for_python_backend(NAME)
    except (ImportError, AttributeError, RuntimeError) as error:
        raise SpecError(
            f"torch {torch.__version__} cannot have a device that is written in Python: {error}",
            place="[train] device",
            fix="install torch 2.13, without another back end of its own, or use --device cpu",
        ) from error
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", _empty, _KEY)
    library.impl("empty_strided", _empty_strided, _KEY)
    library.impl("_copy_from", _copy_from, _KEY)
    return library


@cache
def require_backward() -> None:
    """Refuses a process whose autograd has its threads already: it has none for this device."""
    with torch.enable_grad():
        leaf = torch.zeros((), device=torch.device(NAME, 0), requires_grad=True)
        try:
            torch.autograd.grad(leaf * 1, leaf)
        except RuntimeError as error:
            raise SpecError(
                "autograd's threads of this process know no device deferred",
                place="[train] device",
                fix="make the device before this process' first backward",
            ) from error


def _empty(size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    strides, elements = list[int](), 1
    for length in reversed(size):
        strides.append(elements)
        elements *= max(length, 1)
    return _empty_strided(size, strides[::-1], dtype=dtype)


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    dtype = dtype or torch.get_default_dtype()
    return current().empty((torch.Size(size), tuple(stride), dtype))


def _copy_from(source: Tensor, target: Tensor, *_: bool) -> Tensor:
    return current().call(torch.ops.aten.copy_.default, (target, source), {})
