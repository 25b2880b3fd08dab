"""By how much rounding may take an operator's results from their exact values: one rule for each
family of operators, of its arguments in fp64. What has no rule is judged by its measured condition.

A rule gives for each result what comes from the operator's own sums and functions; the last
rounding, a unit in the last place of the result's dtype, is added to all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ratrain.check.arithmetic import FUNCTION_ULPS, last_place, unit_of
from ratrain.check.call import Call, widened
from ratrain.devices.operators import leaves, mapped

Bound = Callable[[Call, list[Tensor]], list[Tensor]]
"""Of a call and its exact results: by how much each element may be off before it is rounded."""
BOUNDS: dict[str, Bound] = {}
"""By family of operators, "aten.mm"."""
OWN: dict[str, Callable[[Call], list[Tensor]]] = {}
"""Exact results of operators that torch cannot compute in fp64: those of `models.kernels`."""
_MOVES = (
    "_to_copy _unsafe_view abs arange bincount bitwise_and bitwise_not bitwise_or cat clamp "
    "clamp_min clamp_max clone constant_pad_nd contiguous copy embedding eq fill flip full "
    "full_like gather ge gt index index_copy index_select isfinite isinf isnan le "
    "logical_and logical_not logical_or lt masked_fill masked_scatter max maximum min "
    "minimum ne neg new_full new_ones new_zeros ones ones_like relu repeat roll scatter sign "
    "slice_scatter sort stack topk tril triu where zero zeros zeros_like amax amin"
)
MOVES = frozenset(f"aten.{name}" for name in _MOVES.split())
"""What only moves, chooses or counts values: exact, but for a last rounding to a narrower dtype."""


def bound(*families: str) -> Callable[[Bound], Bound]:
    """Declares the rule of families of operators."""

    def declare(rule: Bound) -> Bound:
        for family in families:
            BOUNDS[family] = rule
        return rule

    return declare


def exact_results(call: Call) -> list[Tensor]:
    """What a call would give in exact arithmetic: in fp64, which is to it as exact."""
    if call.family in OWN:
        return OWN[call.family](call)
    return call.evaluated(mapped(_copied, call.exact))


def limits(call: Call, exact: list[Tensor], dtypes: list[torch.dtype]) -> list[Tensor]:
    """By how much each element of the results may differ from the exact ones."""
    if call.family in MOVES:
        return [_rounding(x, dtype) for x, dtype in zip(exact, dtypes, strict=True)]
    rule = BOUNDS.get(call.family, measured)
    made = zip(exact, rule(call, exact), dtypes, strict=True)
    return [_with_last(x, within, dtype) for x, within, dtype in made]


def is_declared(family: str) -> bool:
    """Whether a family has a rule: not judged by its measured condition."""
    return family in BOUNDS or family in MOVES


def _with_last(exact: Tensor, within: Tensor, dtype: torch.dtype) -> Tensor:
    if not dtype.is_floating_point:
        return torch.zeros_like(exact, dtype=torch.float64)
    within = within.broadcast_to(exact.shape).nan_to_num(nan=0.0, posinf=torch.inf)
    total = within + last_place(exact, dtype)
    # In fp64 what is called exact is not: it is off by as much.
    return total * 2 if dtype == torch.float64 else total


def _rounding(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """A unit in the last place where the value is none of `dtype`, else nothing."""
    if not dtype.is_floating_point:
        return torch.zeros_like(exact, dtype=torch.float64)
    kept = exact.double().to(dtype).double()
    same = (kept == exact) | (kept.isnan() & exact.isnan())
    return last_place(exact, dtype).masked_fill_(same, 0)


def _copied(x: Any) -> Any:
    return x.clone() if isinstance(x, Tensor) else x


def absolute(call: Call, **changes: Any) -> list[Tensor]:
    """What the call gives of the absolute values of its arguments: sums of magnitudes."""
    return call.evaluated(mapped(_magnitude, {**call.exact, **changes}))


def _magnitude(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.abs() if x.is_floating_point() else x.clone()
    return abs(x) if isinstance(x, float) else x


# ---- single values --------------------------------------------------------------------------


@bound("aten.add", "aten.mul", "aten.div", "aten.addcmul", "aten.addcdiv", "aten.square")
def _of_magnitudes(call: Call, _: list[Tensor]) -> list[Tensor]:
    changes = {"value": abs(call.named["value"])} if "value" in call.named else {}
    if "alpha" in call.named:
        changes["alpha"] = abs(call.named["alpha"])
    return [4 * call.arithmetic.unit * x for x in absolute(call, **changes)]


@bound("aten.sub", "aten.rsub")
def _difference(call: Call, exact: list[Tensor]) -> list[Tensor]:
    size = widened(torch.as_tensor(call.exact["self"])).abs()
    other = widened(torch.as_tensor(call.exact["other"])).abs()
    alpha = abs(call.named.get("alpha", 1))
    return [4 * call.arithmetic.unit * (alpha * (size + other)).broadcast_to(exact[0].shape)]


@bound("aten.lerp")
def _between(call: Call, _: list[Tensor]) -> list[Tensor]:
    low, high = call.exact["self"].abs(), call.exact["end"].abs()
    weight = torch.as_tensor(call.exact["weight"], dtype=torch.float64).abs()
    return [4 * call.arithmetic.unit * (low + weight * (low + high))]


@bound("aten.sqrt", "aten.rsqrt", "aten.reciprocal")
def _of_results(call: Call, exact: list[Tensor]) -> list[Tensor]:
    return [4 * call.arithmetic.unit * x.abs() for x in exact]


@bound(
    *(
        f"aten.{name}"
        for name in ["exp", "log", "sigmoid", "silu", "tanh", "erf", "cos", "sin", "pow"]
    )
)
def _function(call: Call, exact: list[Tensor]) -> list[Tensor]:
    """Its last places, and what rounding its argument would change."""
    moved = _moved(call, 2 * call.arithmetic.unit)
    ulps = FUNCTION_ULPS * call.arithmetic.unit
    return [ulps * x.abs() + m for x, m in zip(exact, moved, strict=True)]


@bound("aten.gelu")
def _gelu(call: Call, _: list[Tensor]) -> list[Tensor]:
    """x (1 + f) / 2 with f near -1 for small x: off by the last places of 1, times x."""
    return [FUNCTION_ULPS * call.arithmetic.unit * call.exact["self"].abs()]


@bound("aten.gelu_backward", "aten.silu_backward", "aten.tanh_backward", "aten.sigmoid_backward")
def _activation_gradient(call: Call, _: list[Tensor]) -> list[Tensor]:
    """g (f + x f'), whose two terms may cancel: |f| <= 1, |f'| <= 1."""
    x = call.exact.get("self", call.exact.get("output"))
    assert x is not None
    grad = call.exact["grad_output"].abs()
    return [FUNCTION_ULPS * call.arithmetic.unit * grad * (1 + x.abs() + x.square() / (1 + x**2))]


# ---- sums -----------------------------------------------------------------------------------


@bound("aten.mm", "aten.bmm", "aten.mv", "aten.dot")
def _product(call: Call, _: list[Tensor]) -> list[Tensor]:
    terms = call.exact["self"].shape[-1]
    return [call.arithmetic.of_sum(terms, x) for x in absolute(call)]


@bound("aten.addmm", "aten.baddbmm", "aten.addmv", "aten.addbmm")
def _product_onto(call: Call, exact: list[Tensor]) -> list[Tensor]:
    """The product may be rounded before it is added."""
    left = next(name for name in ("mat1", "batch1", "mat") if name in call.named)
    terms = call.exact[left].shape[-1] + 1
    scales = {name: abs(call.named[name]) for name in ("alpha", "beta") if name in call.named}
    out = {"out": torch.zeros_like(exact[0])} if "out" in call.named else {}
    total = absolute(call, **scales, **out)[0]
    added = call.exact["self"].abs() * abs(call.named.get("beta", 1))
    rounded = (total - added).clamp_min(0) * torch.finfo(call.arithmetic.dtype).eps
    return [call.arithmetic.of_sum(terms, total) + rounded]


@bound("aten.sum", "aten.mean", "aten.cumsum", "aten.linalg_vector_norm", "aten.norm")
def _sum(call: Call, exact: list[Tensor]) -> list[Tensor]:
    wide = call.exact["self"]
    terms = wide.shape[call.named["dim"]] if call.family == "aten.cumsum" else 0
    terms = terms or -(-wide.numel() // max(1, exact[0].numel()))
    return [call.arithmetic.of_sum(terms + 2, x) for x in absolute(call)]


@bound("aten.index_add", "aten.scatter_add", "aten.index_put", "aten._index_put_impl")
def _sum_in_place(call: Call, _: list[Tensor]) -> list[Tensor]:
    """Each term is added to what is there, in its dtype."""
    if "index_put" in call.family and not call.named.get("accumulate", False):
        return [torch.zeros(())]
    source = call.exact.get("source", call.exact.get("src", call.exact.get("values")))
    assert source is not None
    dim = call.named.get("dim", 0)
    terms = source.shape[dim] if source.dim() else 1
    unit = unit_of(call.named["self"].dtype)
    return [(terms + 1) * unit / max(1 - terms * unit, 0.5) * x for x in absolute(call)]


@bound("aten._softmax")
def _softmax(call: Call, exact: list[Tensor]) -> list[Tensor]:
    (made,), dim = exact, call.named["dim"]
    wide = call.exact["self"]
    below = (wide.amax(dim, keepdim=True) - wide).nan_to_num(0, posinf=0)
    spread = (made * below).sum(dim, keepdim=True)
    share = below + spread + wide.shape[dim] + 2 * FUNCTION_ULPS
    return [call.arithmetic.unit * share * made]


@bound("aten._log_softmax")
def _log_softmax(call: Call, exact: list[Tensor]) -> list[Tensor]:
    (made,), dim = exact, call.named["dim"]
    wide = call.exact["self"]
    below = (wide.amax(dim, keepdim=True) - wide).nan_to_num(0, posinf=0)
    spread = (made.exp() * below).sum(dim, keepdim=True)
    share = below + spread + wide.shape[dim] + 2 * FUNCTION_ULPS + made.abs().nan_to_num(0, 0, 0)
    return [call.arithmetic.unit * share]


@bound("aten._softmax_backward_data")
def _softmax_gradient(call: Call, _: list[Tensor]) -> list[Tensor]:
    grad, made = call.exact["grad_output"].abs(), call.exact["output"].abs()
    dim = call.named["dim"]
    size = made * (grad + (grad * made).sum(dim, keepdim=True))
    return [call.arithmetic.of_sum(made.shape[dim] + 4, size)]


# ---- any other ------------------------------------------------------------------------------


def measured(call: Call, exact: list[Tensor]) -> list[Tensor]:
    """What moving each argument by its rounding changes, times the terms that may be summed."""
    floats = (x.numel() for v in call.exact.values() for x in leaves(v) if _is_float(x))
    widest = max(floats, default=0)  # 0: of whole numbers alone
    unit = call.arithmetic.unit
    moved = _moved(call, unit)
    bounds: list[Tensor] = []
    for x, m in zip(exact, moved, strict=True):
        if not x.is_floating_point():
            bounds.append(torch.zeros_like(x, dtype=torch.float64))
            continue
        terms = -(-widest // max(1, x.numel()))
        bounds.append((FUNCTION_ULPS + terms) * (m + unit * x.abs()))
    return bounds


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _moved(call: Call, share: float) -> list[Tensor]:
    """By how much the results move where each argument in turn moves by a share of itself, up or
    down by chance."""
    chance = torch.Generator().manual_seed(0)
    step = max(share, 1e-9)  # else fp64 does not show it
    total: list[Tensor] | None = None
    base = exact_results(call)
    for name, value in call.exact.items():
        if not any(_is_float(x) for x in leaves(value)):
            continue

        def shifted(x: Any) -> Any:
            if not _is_float(x):
                return _copied(x)
            signs = torch.randint(0, 2, x.shape, generator=chance).double().mul_(2).sub_(1)
            return x * (1 + step * signs)

        other = mapped(_copied, call.exact) | {name: mapped(shifted, value)}
        results = call.evaluated(other)
        deltas = [
            (a.double() - b.double()).abs().nan_to_num(0, 0, 0) * (share / step)
            for a, b in zip(results, base, strict=True)
        ]
        total = deltas if total is None else [t + d for t, d in zip(total, deltas, strict=True)]
    return total or [torch.zeros_like(x, dtype=torch.float64) for x in base]
