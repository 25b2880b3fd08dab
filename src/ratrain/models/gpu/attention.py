"""Causal attention on a GPU, in Triton: forward, and a backward whose sums have one order.

Tensors are [batch, heads, S, d] of any strides, where a head's numbers lie side by side. Key heads
may be fewer than query heads; scores may be capped softly, have a bias for each key (ALiBi), and
read a window alone. Backward makes the scores twice, once by keys and once by queries, so that no
two programs add to one place: the same bits each time, without a copy of the gradients for each
program.
"""

from __future__ import annotations

from math import log2
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_LOG2_E = log2(2.718281828459045)


class Tiles(NamedTuple):
    """How a kernel cuts its work."""

    rows: int  # queries at once
    columns: int  # keys at once
    warps: int
    stages: int


FORWARD, BY_KEYS, BY_QUERIES = Tiles(128, 32, 8, 3), Tiles(64, 128, 8, 2), Tiles(128, 64, 8, 3)
"""The fastest of those tried on an H100, heads of 128."""


class _Scores(NamedTuple):
    """How scores are made, as the kernels take it: in base 2."""

    row: Tensor | None
    scale: float  # of products: to scores in base 2, or to the argument of the cap's tanh
    cap: float
    window: int

    @property
    def flags(self) -> dict[str, bool]:
        return {"biased": self.row is not None, "capped": self.cap > 0, "windowed": self.window > 0}


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    row: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    window: int | None = None,
    tiles: Tiles = FORWARD,
) -> tuple[Tensor, Tensor]:
    """(attention output in token-major memory; the log of the sum of exponents in base 2)."""
    batch, heads, length, width = q.shape
    how = _scores(q, row, scale, softcap, window)
    out = _token_major(q)
    sums = q.new_empty((batch, heads, length), dtype=torch.float32)
    _forward[(triton.cdiv(length, tiles.rows), batch * heads)](
        q, k, v, out, sums, how.row, how.scale, how.cap, how.window,
        heads, heads // k.shape[1], length, *_strides(q, k, v, out),
        **how.flags, **_sizes(width, length, tiles),
    )  # fmt: skip
    return out, sums


def gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    sums: Tensor,
    *,
    row: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    window: int | None = None,
    tiles: tuple[Tiles, Tiles] = (BY_KEYS, BY_QUERIES),
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, a token's side by side in memory; `sums` as `forward` made them."""
    batch, heads, length, width = q.shape
    how = _scores(q, row, scale, softcap, window)
    natural = width**-0.5 if scale is None else scale
    counts = (heads, k.shape[1], v.shape[1])
    whole = q.new_empty(batch, length, sum(counts), width)
    dq, dk, dv = (part.transpose(1, 2) for part in whole.split(counts, 2))
    products = torch.empty_like(sums)
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    _row_products[(triton.cdiv(length, 64), batch * heads)](
        output, grad, products, heads, length, *_strides(output, grad),
        width=width, padded=triton.next_power_of_2(width), rows_at_once=64,
    )  # fmt: skip
    groups = heads // k.shape[1]
    shared = (sums, products, how.row, how.scale, how.cap, how.window, natural)
    by_keys, by_queries = tiles
    _by_keys[(triton.cdiv(length, by_keys.columns), batch * k.shape[1])](
        q, k, v, grad, dk, dv, *shared, heads, groups, length, *_strides(q, k, v, grad, dk, dv),
        **how.flags, **_sizes(width, length, by_keys),
    )  # fmt: skip
    _by_queries[(triton.cdiv(length, by_queries.rows), batch * heads)](
        q, k, v, grad, dq, *shared, heads, groups, length, *_strides(q, k, v, grad, dq),
        **how.flags, **_sizes(width, length, by_queries),
    )  # fmt: skip
    return dq, dk, dv


def _scores(
    q: Tensor,
    row: Tensor | None,
    scale: float | None,
    softcap: float | None,
    window: int | None,
) -> _Scores:
    natural = q.shape[-1] ** -0.5 if scale is None else scale
    bias = None if row is None else (row.float() * _LOG2_E).expand(1, q.shape[1], 1, -1)
    if bias is not None:
        bias = bias.reshape(q.shape[1], -1).contiguous()
    within = window if window is not None and window < q.shape[2] else 0
    if softcap is None:
        return _Scores(bias, natural * _LOG2_E, 0.0, within)
    return _Scores(bias, natural / softcap, softcap * _LOG2_E, within)


def _token_major(x: Tensor) -> Tensor:
    batch, heads, length, width = x.shape
    return x.new_empty(batch, length, heads, width).transpose(1, 2)


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for tensor in tensors for stride in tensor.stride()[:3]]


def _sizes(width: int, length: int, tiles: Tiles) -> dict[str, int | bool]:
    rows, columns, warps, stages = tiles
    return {
        "width": width,
        "padded": triton.next_power_of_2(width),
        "rows_at_once": rows,
        "columns_at_once": columns,
        "even": length % max(rows, columns) == 0,
        "num_warps": warps,
        "num_stages": stages,
    }


@triton.jit
def _loaded(
    at, rows, stride, length, width: tl.constexpr, padded: tl.constexpr, even: tl.constexpr
):
    """Rows of a matrix [rows, width]; zeros outside."""
    columns = tl.arange(0, padded)
    places = at + rows[:, None] * stride + columns[None, :]
    if even and width == padded:
        return tl.load(places)
    inside = (rows < length)[:, None] & (columns < width)[None, :]
    return tl.load(places, mask=inside, other=0.0)


@triton.jit
def _stored(
    at, rows, stride, length, values, width: tl.constexpr, padded: tl.constexpr
):  # fmt: skip
    columns = tl.arange(0, padded)
    inside = (rows < length)[:, None] & (columns < width)[None, :]
    tl.store(at + rows[:, None] * stride + columns[None, :], values, mask=inside)


@triton.jit
def _capped(products, scale, cap, capped: tl.constexpr):
    """Products as scores in base 2."""
    if capped:
        return cap * (2.0 * tl.sigmoid(2.0 * products * scale) - 1.0)
    return products * scale


@triton.jit
def _is_read(row, column, window, windowed: tl.constexpr):
    """Whether a query reads a key."""
    if windowed:
        return (column <= row) & (row - column < window)
    return column <= row


@triton.jit
def _begin(at, number, heads, of_batch, of_head):
    """Where a sequence's head begins."""
    return at + (number // heads).to(tl.int64) * of_batch + (number % heads).to(tl.int64) * of_head


@triton.jit
def _forward(
    q, k, v, out, sums, bias, scale, cap, window, heads, group, length,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    out_batch, out_head, out_token,
    biased: tl.constexpr, capped: tl.constexpr, windowed: tl.constexpr,
    width: tl.constexpr, padded: tl.constexpr, rows_at_once: tl.constexpr,
    columns_at_once: tl.constexpr, even: tl.constexpr,
):  # fmt: skip
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest first
    number = tl.program_id(1)
    sequence, head = number // heads, number % heads
    key_number = sequence * (heads // group) + head // group
    q = _begin(q, number, heads, q_batch, q_head)
    k = _begin(k, key_number, heads // group, k_batch, k_head)
    v = _begin(v, key_number, heads // group, v_batch, v_head)
    first = block * rows_at_once
    rows = first + tl.arange(0, rows_at_once)
    queries = _loaded(q, rows, q_token, length, width, padded, even)
    most = tl.full((rows_at_once,), -float("inf"), tl.float32)
    total = tl.zeros((rows_at_once,), tl.float32)
    mixed = tl.zeros((rows_at_once, padded), tl.float32)
    begin, middle = 0, first // columns_at_once * columns_at_once
    if windowed:
        begin = tl.maximum(first - window + 1, 0) // columns_at_once * columns_at_once
        middle = begin
    for at in range(begin, middle, columns_at_once):  # keys that all queries read
        columns = at + tl.arange(0, columns_at_once)
        keys = _loaded(k, columns, k_token, length, width, padded, even)
        scores = _capped(tl.dot(queries, tl.trans(keys)), scale, cap, capped)
        if biased:
            scores += tl.load(bias + head * length + columns)[None, :]
        above = tl.maximum(most, tl.max(scores, 1))
        shares = tl.math.exp2(scores - above[:, None])
        shrunk = tl.math.exp2(most - above)
        total = total * shrunk + tl.sum(shares, 1)
        values = _loaded(v, columns, v_token, length, width, padded, even)
        mixed = tl.dot(shares.to(values.dtype), values, mixed * shrunk[:, None])
        most = above
    end = tl.minimum(first + rows_at_once, length)
    for at in range(middle, end, columns_at_once):
        columns = at + tl.arange(0, columns_at_once)
        keys = _loaded(k, columns, k_token, length, width, padded, even)
        scores = _capped(tl.dot(queries, tl.trans(keys)), scale, cap, capped)
        if biased:
            scores += tl.load(bias + head * length + columns, mask=columns < length)[None, :]
        read = _is_read(rows[:, None], columns[None, :], window, windowed)
        scores = tl.where(read, scores, -float("inf"))
        above = tl.maximum(most, tl.max(scores, 1))
        base = above
        if windowed:  # of some queries no key may have come yet
            base = tl.where(above == -float("inf"), 0.0, above)
        shares = tl.math.exp2(scores - base[:, None])
        shrunk = tl.math.exp2(most - base)
        total = total * shrunk + tl.sum(shares, 1)
        values = _loaded(v, columns, v_token, length, width, padded, even)
        mixed = tl.dot(shares.to(values.dtype), values, mixed * shrunk[:, None])
        most = above
    out = _begin(out, number, heads, out_batch, out_head)
    result = (mixed / total[:, None]).to(queries.dtype)
    _stored(out, rows, out_token, length, result, width, padded)
    tl.store(sums + number.to(tl.int64) * length + rows, most + tl.log2(total), mask=rows < length)


@triton.jit
def _row_products(
    output, grad, products, heads, length,
    o_batch, o_head, o_token, g_batch, g_head, g_token,
    width: tl.constexpr, padded: tl.constexpr, rows_at_once: tl.constexpr,
):  # fmt: skip
    """Each query's output times its gradient."""
    rows = tl.program_id(0) * rows_at_once + tl.arange(0, rows_at_once)
    number = tl.program_id(1)
    output = _begin(output, number, heads, o_batch, o_head)
    grad = _begin(grad, number, heads, g_batch, g_head)
    made = _loaded(output, rows, o_token, length, width, padded, False).to(tl.float32)
    wanted = _loaded(grad, rows, g_token, length, width, padded, False).to(tl.float32)
    at = products + number.to(tl.int64) * length + rows
    tl.store(at, tl.sum(made * wanted, 1), mask=rows < length)


@triton.jit
def _by_keys(
    q, k, v, grad, dk, dv, sums, products, bias, scale, cap, window, natural,
    heads, group, length,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    g_batch, g_head, g_token, dk_batch, dk_head, dk_token, dv_batch, dv_head, dv_token,
    biased: tl.constexpr, capped: tl.constexpr, windowed: tl.constexpr,
    width: tl.constexpr, padded: tl.constexpr, rows_at_once: tl.constexpr,
    columns_at_once: tl.constexpr, even: tl.constexpr,
):  # fmt: skip
    """Gradients of some keys and values: over all query heads that they serve."""
    key_heads = heads // group
    number = tl.program_id(1)
    sequence, key_head = number // key_heads, number % key_heads
    first = tl.program_id(0) * columns_at_once
    columns = first + tl.arange(0, columns_at_once)
    keys = _loaded(
        _begin(k, number, key_heads, k_batch, k_head), columns, k_token, length, width, padded, even
    )
    values = _loaded(
        _begin(v, number, key_heads, v_batch, v_head), columns, v_token, length, width, padded, even
    )
    of_keys = tl.zeros((columns_at_once, padded), tl.float32)
    of_values = tl.zeros((columns_at_once, padded), tl.float32)
    begin = first // rows_at_once * rows_at_once
    end = length
    if windowed:
        end = tl.minimum(length, first + columns_at_once - 1 + window)
    for member in range(0, group):
        query_number = sequence * heads + key_head * group + member
        own_q = _begin(q, query_number, heads, q_batch, q_head)
        own_grad = _begin(grad, query_number, heads, g_batch, g_head)
        own_sums = sums + query_number.to(tl.int64) * length
        own_products = products + query_number.to(tl.int64) * length
        for at in range(begin, end, rows_at_once):
            rows = at + tl.arange(0, rows_at_once)
            queries = _loaded(own_q, rows, q_token, length, width, padded, even)
            scores = _capped(tl.dot(keys, tl.trans(queries)), scale, cap, capped)
            turn = scores
            if biased:
                place = (key_head * group + member) * length + columns
                scores += tl.load(bias + place, mask=columns < length, other=0.0)[:, None]
            known = tl.load(own_sums + rows, mask=rows < length, other=float("inf"))
            shares = tl.math.exp2(scores - known[None, :])
            read = _is_read(rows[None, :], columns[:, None], window, windowed)
            shares = tl.where(read, shares, 0.0)
            wanted = _loaded(own_grad, rows, g_token, length, width, padded, even)
            of_values = tl.dot(shares.to(wanted.dtype), wanted, of_values)
            changes = tl.dot(values, tl.trans(wanted))
            product = tl.load(own_products + rows, mask=rows < length, other=0.0)
            changes = shares * (changes - product[None, :])
            if capped:
                changes *= 1.0 - (turn / cap) * (turn / cap)
            of_keys = tl.dot(changes.to(queries.dtype), queries, of_keys)
    dk = _begin(dk, number, key_heads, dk_batch, dk_head)
    dv = _begin(dv, number, key_heads, dv_batch, dv_head)
    _stored(dk, columns, dk_token, length, (of_keys * natural).to(keys.dtype), width, padded)
    _stored(dv, columns, dv_token, length, of_values.to(values.dtype), width, padded)


@triton.jit
def _by_queries(
    q, k, v, grad, dq, sums, products, bias, scale, cap, window, natural, heads, group, length,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    g_batch, g_head, g_token, dq_batch, dq_head, dq_token,
    biased: tl.constexpr, capped: tl.constexpr, windowed: tl.constexpr,
    width: tl.constexpr, padded: tl.constexpr, rows_at_once: tl.constexpr,
    columns_at_once: tl.constexpr, even: tl.constexpr,
):  # fmt: skip
    """Gradients of some queries."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    number = tl.program_id(1)
    sequence, head = number // heads, number % heads
    key_number = sequence * (heads // group) + head // group
    k = _begin(k, key_number, heads // group, k_batch, k_head)
    v = _begin(v, key_number, heads // group, v_batch, v_head)
    first = block * rows_at_once
    rows = first + tl.arange(0, rows_at_once)
    queries = _loaded(
        _begin(q, number, heads, q_batch, q_head), rows, q_token, length, width, padded, even
    )
    wanted = _loaded(
        _begin(grad, number, heads, g_batch, g_head), rows, g_token, length, width, padded, even
    )
    place = number.to(tl.int64) * length + rows
    known = tl.load(sums + place, mask=rows < length, other=float("inf"))
    product = tl.load(products + place, mask=rows < length, other=0.0)
    total = tl.zeros((rows_at_once, padded), tl.float32)
    begin = 0
    if windowed:
        begin = tl.maximum(first - window + 1, 0) // columns_at_once * columns_at_once
    end = tl.minimum(first + rows_at_once, length)
    for at in range(begin, end, columns_at_once):
        columns = at + tl.arange(0, columns_at_once)
        keys = _loaded(k, columns, k_token, length, width, padded, even)
        scores = _capped(tl.dot(queries, tl.trans(keys)), scale, cap, capped)
        turn = scores
        if biased:
            bias_here = tl.load(bias + head * length + columns, mask=columns < length, other=0.0)
            scores += bias_here[None, :]
        shares = tl.math.exp2(scores - known[:, None])
        read = _is_read(rows[:, None], columns[None, :], window, windowed)
        shares = tl.where(read, shares, 0.0)
        values = _loaded(v, columns, v_token, length, width, padded, even)
        changes = shares * (tl.dot(wanted, tl.trans(values)) - product[:, None])
        if capped:
            changes *= 1.0 - (turn / cap) * (turn / cap)
        total = tl.dot(changes.to(keys.dtype), keys, total)
    dq = _begin(dq, number, heads, dq_batch, dq_head)
    _stored(dq, rows, dq_token, length, (total * natural).to(queries.dtype), width, padded)
