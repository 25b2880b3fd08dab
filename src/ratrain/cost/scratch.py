"""Bytes that one op needs beside its states: what the runtime's own functions hold for a moment.

Read off the functions in `models/` and `runtime/`, and held to what an allocator counts by tests.
Jobs that are only planned and simulated, for machines with kernels of their own, count none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from ratrain.cost.blocks import Tensor
from ratrain.describe.model import ModelSpec
from ratrain.describe.runs_on import is_gpu

CHUNK_BYTES = 1 << 20
"""Reductions go in pieces of this size."""

PRODUCT_ELEMENTS = 1 << 20
"""Gradients that add up in fp32 get their 16-bit products in pieces of this many elements on a CPU,
and where ranks cut buckets."""

BUCKET_ROWS = 8
"""A matrix that is larger than a bucket is cut after a multiple of this many rows. Products of such
pieces had the bits of the whole matrix' product in every shape that was tried on CPUs; other cuts
had not. No library promises it."""


@dataclass(frozen=True)
class Pieces:
    """Elements that are worked on at once. On a CPU they stay in a core's cache; a GPU takes some
    microseconds to begin each piece, so there they are many."""

    product: int  # of gradients that add up in fp32: their 16-bit products
    update: int  # of the optimizer: 2-byte gradients are widened to fp32 first
    narrowed: int  # rounded for the network, or widened behind it


ON_CPU = Pieces(PRODUCT_ELEMENTS, 1 << 18, 1 << 18)
_ON_GPU = Pieces(1 << 25, 1 << 24, 1 << 24)


def pieces_on(kind: str) -> Pieces:
    """By what ranks compute on, or by torch's type of a tensor's device."""
    return _ON_GPU if is_gpu(kind) else ON_CPU


RESIDUAL_ELEMENTS = 1 << 16
"""With error feedback, residuals are taken in pieces of this many elements, widened beside them on
the lane that then holds a reduction's chunks."""

SMALL_THINGS_BYTES = 2 << 20
"""Two steps' tokens, the network library's own buffers, what control rounds and records take."""

KERNELS = 32
"""Compiled products that oneDNN may keep; ranks start with this as its capacity. A layer and a head
need some 25: a shape each for forward, input gradient and weight gradient."""

_KERNEL_BYTES = 520_000
"""Of one; on CPUs with bf16 instructions oneDNN 3 allocates 516,752 bytes for any shape."""


def compute_scratch_bytes(
    model: ModelSpec,
    kind: str,
    sequence: int,
    micro_batch: int,
    element_bytes: int,
    tensor: int = 1,
    gradient_bytes: int | None = None,
    *,
    sequence_parallel: bool = False,
    runs_on: str = "cpu",
) -> int:
    """The largest moment of a unit's forward or backward, on one of `tensor` ranks, where a
    gradient's element has `gradient_bytes` (left out: as any).

    layer: the gradients of gate, up and their product (3 S b f), of experts those of one, whose
    tokens may be all, beside the input's gradient; head: the logits' gradient in
    fp32 (4 S b V) beside their own place. In a tensor group there are two more tensors of width h:
    a sum in the middle of a layer and what it is made from. Where the group divides sequences
    there are three in a layer and in a head, gathered for products: the gradient of the output or
    the input, the norm's output, and the part of a sum that comes of them; an embedding's gradient,
    and the rows of it whose words are here. Where gradients add up in a wider dtype, a piece of a
    product, and as much again that the library copies for it.
    """
    rows = sequence * micro_batch
    gathered = rows * model.hidden * element_bytes * sequence_parallel
    wider = gradient_bytes is not None and gradient_bytes > element_bytes
    if kind == "embedding":
        piece = min(pieces_on(runs_on).product, rows * model.hidden) * 4 if wider else 0
        return piece + 2 * gathered + _looked_up_bytes(model, sequence, rows, element_bytes)
    widest = model.vocab
    if kind == "layer":  # experts are not cut
        widest = max(model.dense_ffn, model.ffn * tensor if model.experts else 0)
    product = -(-max(widest, model.query_hidden) // tensor) * model.hidden
    piece = 2 * min(pieces_on(runs_on).product, product) * element_bytes if wider else 0
    if kind == "head":
        chunk = min(pieces_on(runs_on).product, rows * model.vocab)
        capped = 2 * 4 * chunk if model.logit_softcap else 0
        return rows * model.vocab * 4 // tensor + 3 * gathered + piece + capped
    sums = 0 if tensor == 1 else 3 * gathered or 2 * rows * model.hidden * element_bytes
    inside = _inside_bytes(model, element_bytes, tensor)
    widths = max(inside, _attention_bytes(model, element_bytes))
    between = 2 * model.hidden * element_bytes if model.parallel_residual else 0
    capped = _capped_bytes(model, sequence, element_bytes, tensor)
    return rows * (widths + between) + capped + sums + piece


def unpacked_bytes(tensors: Iterable[Tensor], element_bytes: int, tensor: int, runs_on: str) -> int:
    """Of a unit whose matrices are held in 8 bits: the largest as it is computed with, of a stack
    one of its matrices, and a piece of it in fp32."""
    matrices = [(len(t.shape), prod(t.shape[-2:])) for t in tensors if t.held == "int8"]
    if not matrices:
        return 0
    whole = max(size if dims > 2 else -(-size // tensor) for dims, size in matrices)
    pieces = pieces_on(runs_on)
    piece = pieces.product if is_gpu(runs_on) else pieces.update
    return element_bytes * whole + 4 * min(whole, piece)


def _looked_up_bytes(model: ModelSpec, sequence: int, rows: int, element_bytes: int) -> int:
    """Beside an embedding's gradient: the same scaled; of learned positions, in fp32."""
    scaled = rows * model.hidden * element_bytes if model.embedding_scale else 0
    return scaled + (4 * sequence * model.hidden if model.position == "learned" else 0)


def _inside_bytes(model: ModelSpec, element_bytes: int, tensor: int) -> int:
    """Of one token, in the backward of a layer's MLP. Of an expert its three gradients, or two rows
    of them gathered, beside the gradient of all rows; of the choices tokens, weights and their
    gradients; of the router two gradients in fp32. Of an MLP beside experts what it alone has, and
    the gradient that they have made."""
    experts = model.experts
    dense = 3 * model.dense_ffn // tensor * element_bytes
    if experts is None:
        return dense
    widths = model.hidden + max(3 * model.ffn, model.ffn + model.hidden, 2 * model.hidden)
    routed = widths * element_bytes + (4 * 4 + 4) * experts.chosen + 2 * 4 * experts.count
    return max(routed, dense + 2 * model.hidden * element_bytes) if dense else routed


def _attention_bytes(model: ModelSpec, element_bytes: int) -> int:
    """Of one token, in attention's backward: gradients of queries, keys, values and of what they
    make; where queries are normalised, their gradient before and behind the norm, which computes
    three copies in fp32. Counted whole in a tensor group too."""
    gradients = model.query_hidden + 2 * model.kv_hidden
    if model.qk_norm == "none":
        return (gradients + model.query_hidden) * element_bytes
    copies = 2 * element_bytes + (12 if element_bytes == 2 else 4)
    return gradients * element_bytes + max(model.query_hidden, model.kv_hidden) * copies


def _capped_bytes(model: ModelSpec, sequence: int, element_bytes: int, tensor: int) -> int:
    """Soft caps are no kernel's: of one sequence scores, their gradients, and what is capped."""
    if model.attention_softcap is None:
        return 0
    return 3 * element_bytes * (model.heads // tensor) * sequence**2


def masks_bytes(model: ModelSpec, sequence: int) -> int:
    """Masks of S x S that attention keeps from one op to the next, and what they are made of: where
    scores have a soft cap three of a byte; of a window one in fp32, and as many."""
    if model.attention_softcap is not None:
        return 3 * sequence**2
    return 7 * sequence**2 if model.window is not None and model.window < sequence else 0


def dropped_scratch_bytes(
    model: ModelSpec, sequence: int, micro_batch: int, element_bytes: int, runs_on: str = "cpu"
) -> int:
    """What dropout holds beside the rest of a unit: what it reads, its gradient, and that of what
    it was added to; of a piece the mask and what it is made of."""
    piece = pieces_on(runs_on).product if is_gpu(runs_on) else 1 << 16
    elements = sequence * micro_batch * model.hidden
    return 3 * elements * element_bytes + 6 * 4 * min(piece, sequence * model.hidden)


def stored_scratch_bytes(
    model: ModelSpec, sequence: int, element_bytes: int, tensor: int = 1
) -> int:
    """What attention that stores its scores needs beside them: of one sequence their gradients,
    before the softmax and after; and where keys come after their query."""
    return (2 * element_bytes * (model.heads // tensor) + 1) * sequence**2


def buckets_scratch_bytes(
    model: ModelSpec, kind: str, sequence: int, micro_batch: int, element_bytes: int
) -> int:
    """What backward into buckets needs beside that: of an embedding, the gradients of the tokens
    whose rows lie in a bucket."""
    tokens = min(PRODUCT_ELEMENTS, sequence * micro_batch * model.hidden)
    return tokens * element_bytes if kind == "embedding" else 0


def kernels_scratch_bytes(element_bytes: int, runs_on: str = "cpu") -> int:
    """Compiled products in 16 bit on CPUs, which stay allocated from one op to the next; fp32
    products are another library's, and allocate next to nothing."""
    return KERNELS * _KERNEL_BYTES if element_bytes == 2 and runs_on == "cpu" else 0


def product_rows(width: int) -> int:
    """Rows of such a piece of a matrix with rows of this width: a multiple of BUCKET_ROWS where
    they are that many, so that ranks that need no such pieces may cut there as well."""
    rows = max(1, PRODUCT_ELEMENTS // width)
    return rows if rows < BUCKET_ROWS else rows // BUCKET_ROWS * BUCKET_ROWS


def reduction_chunks(data: int) -> int:
    """Chunks that a reduction over `data` ranks holds at once, by any algorithm: in a direct
    exchange two from each peer and the piece's sum; others take pieces that fit into as much."""
    return 2 * (data - 1) + 1 if data > 1 else 0


def lanes_scratch_bytes(
    data: int,
    tensor: int = 1,
    *,
    tied: bool = False,
    narrow_boundaries: bool = False,
    unlike_views: bool = False,
    runs_on: str = "cpu",
    copies: int = 2,
    whole: int = 0,
) -> int:
    """What the lanes beside compute hold: two pieces from each peer of a reduction and the piece's
    sum (on the same lane, at another time: two pieces of a tied matrix' other copy); what an update
    makes of a piece of the optimizer's (`copies`: the widened gradient, the same scaled, and what
    the optimizer makes besides; `whole`: elements of its largest piece, where it takes matrices
    whole); and what the sums of a tensor group hold, inside compute and
    beside it: a piece from each peer, and the piece's sum in fp32. Where boundary tensors travel
    narrower than they are, each of the four message lanes has a 2-byte piece of one. Where a view
    is gathered in unlike dtypes, the lane of gathers has a 2-byte piece of what leaves."""
    reduction = reduction_chunks(data)
    sums = 2 * (tensor - 1 + 2) if tensor > 1 else 0
    pieces = max(reduction, 2 if tied else 0) + sums
    at_once = pieces_on(runs_on)
    rounded = (4 * narrow_boundaries + unlike_views) * 2 * at_once.narrowed
    return (
        pieces * CHUNK_BYTES
        + copies * 4 * max(at_once.update, whole)
        + rounded
        + SMALL_THINGS_BYTES
    )
