"""A model's embedding, layer and head on this machine: the functions that training runs, timed.

With a tensor degree, one rank's part is timed alone: the sums of its group cost nothing here, so
entries say `sums = "apart"` and the planner adds them over the links. Several layers are timed in
turns, as a stage has them: one that is timed again and again stays in the caches. A time is the
median pass: the fastest is one that a step rarely has. Where a quota made passes wait, it is their
mean: most ran between two pauses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any, NamedTuple

from ratrain.describe.layer_profile import (
    BlockCase,
    BlockName,
    LayerProfile,
    MeasuredTime,
    shape_of,
)
from ratrain.describe.model import ModelSpec
from ratrain.errors import SpecError
from ratrain.profile.clock import BLOCKS
from ratrain.profile.doubt import Doubt, Watch
from ratrain.profile.products import gpu_present, torch_installed
from ratrain.profile.quota import throttled

LEAST_PASSES, WITHIN_S = 3, 1.0
"""Passes of one block: at least this many, and more until this much time has passed."""
MOST_IN_TURNS, IN_TURNS_BYTES = 4, 256 << 20
"""Layers that are timed in turns: as many, while their weights and gradients take no more."""
UNITS: dict[BlockName, str] = {"layer": "0", "embedding": "e", "head": "h"}
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class LayersAsked:
    """Which blocks to time: those of a model, for micro-batches of some sizes."""

    model: ModelSpec
    sequence: int
    micro_batches: tuple[int, ...]
    tensor: int = 1
    dtype: str = "fp32"
    device: str = "cpu"


@dataclass(frozen=True)
class LayersTimed:
    """The entries of a model's layer, embedding and head, and which of their times to doubt."""

    entries: tuple[LayerProfile, ...]
    doubts: tuple[Doubt, ...]


def layer_figure(case: BlockCase, micro_batch: int) -> str:
    """What the times of a block are called in messages."""
    return f"{case}, micro-batch {micro_batch}"


def layer_profiles(request: LayersAsked, progress: Progress | None = None) -> LayersTimed:
    """Times a model's blocks; the machine should have nothing else to do."""
    _require_measurable(request)
    watch, done, total = Watch(), 0, len(UNITS) * len(request.micro_batches)
    entries: list[LayerProfile] = []
    for block in UNITS:
        shape = shape_of(request.model, block)
        case = BlockCase(block, shape.whole, request.sequence, request.tensor, request.dtype)
        times: list[MeasuredTime] = []
        for size in request.micro_batches:
            forward_s, backward_s = _passes(request, block, size, watch, layer_figure(case, size))
            times.append(MeasuredTime(size, forward_s, backward_s))
            done += 1
            if progress:
                progress(done, total)
        entries.append(
            LayerProfile(
                shape,
                request.sequence,
                tuple(times),
                f"measured: ratrain profile, {request.model.name} in torch on {request.device}",
                block,
                request.tensor,
                request.dtype,
            )
        )
    return LayersTimed(tuple(entries), tuple(watch.doubts))


def _require_measurable(request: LayersAsked) -> None:
    if not torch_installed():
        raise SpecError("layers are timed in torch, which is not installed", place="--layers",
                        fix="pip install 'ratrain[train]'")  # fmt: skip
    if request.device == "cuda" and not gpu_present():
        raise SpecError("torch sees no CUDA device", place="--device", fix="use --device cpu")
    from ratrain.models.division import check_divides
    from ratrain.models.trainable import check_trainable

    check_trainable(request.model)
    check_divides(request.model, request.tensor)


def _passes(
    request: LayersAsked, block: BlockName, size: int, watch: Watch, figure: str
) -> tuple[float, float]:
    """Seconds of one block's forward and of its backward, after one pass to warm up."""
    work = block_work(request, block, size)
    forward_s: list[float] = []
    backward_s: list[float] = []

    def one_pass() -> None:
        start_s = time.perf_counter()
        outputs = work.forward()
        work.settle()
        middle_s = time.perf_counter()
        work.backward(outputs)
        work.settle()
        forward_s.append((middle_s - start_s) / work.blocks)
        backward_s.append((time.perf_counter() - middle_s) / work.blocks)

    one_pass()
    forward_s.clear()
    backward_s.clear()
    waits = throttled()
    with watch.over(figure) as blocks_s:
        began_s = time.perf_counter()
        while len(forward_s) < LEAST_PASSES or time.perf_counter() - began_s < WITHIN_S:
            one_pass()
        passes_s = [sum(both) for both in zip(forward_s, backward_s, strict=True)]
        ends = [len(passes_s) * number // BLOCKS for number in range(BLOCKS + 1)]
        blocks_s += [median(passes_s[start:end]) for start, end in pairwise(ends)]
    if throttled() > waits:
        return fmean(forward_s), fmean(backward_s)
    return median(forward_s), median(backward_s)


class BlockWork(NamedTuple):
    """A forward through several such blocks, their backward given what that returned, waiting for
    the device, and how many blocks."""

    forward: Callable[[], Any]
    backward: Callable[[Any], None]
    settle: Callable[[], None]
    blocks: int


def block_work(request: LayersAsked, block: BlockName, size: int) -> BlockWork:
    """What is timed, on tensors made once."""
    import torch as module  # pyright: ignore[reportMissingImports]

    from ratrain.models.graphs import gradient_of_leaf, graph_of
    from ratrain.models.units import MicroBatch, unit_of

    torch: Any = module
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[request.dtype]
    placement: dict[str, Any] = {"dtype": kind, "device": request.device}
    spec, length = request.model.base, request.sequence
    group = _Alone(request.tensor) if request.tensor > 1 else None
    unit = unit_of(spec, UNITS[block], sequence_length=length, group=group)
    fitting = IN_TURNS_BYTES // (2 * unit.layout.size * kind.itemsize)
    count = max(1, min(MOST_IN_TURNS, fitting)) if block == "layer" else 1
    held = [_weights(unit.layout, placement) for _ in range(count)]
    tokens = torch.randint(0, spec.vocab, (size, length), device=request.device)
    batch = MicroBatch(tokens, tokens)
    shape = (0,) if block == "embedding" else (size, length, spec.hidden)
    x = torch.randn(shape, **placement)
    seed = torch.ones((), device=request.device)
    if block != "head":
        seed = torch.randn((size, length, spec.hidden), **placement).mul_(1e-3)

    def forward() -> list[Any]:
        graphs: list[Any] = []
        given = x
        for weights, _ in held:
            leaf = given.detach().requires_grad_(True)
            given = unit.forward(weights, leaf, batch)
            graphs.append(graph_of(given, leaf))
        return graphs

    def backward(graphs: list[Any]) -> None:
        for (weights, gradient), graph in zip(reversed(held), reversed(graphs), strict=True):
            weights.attach_gradient(gradient)
            gradient_of_leaf(graph, seed)
            weights.attach_gradient(None)

    def settle() -> None:
        if request.device == "cuda":
            torch.cuda.synchronize()

    return BlockWork(forward, backward, settle, count)


def _weights(layout: Any, placement: dict[str, Any]) -> tuple[Any, Any]:
    """Weights, and the gradient that backward adds to, in memory of their own."""
    import torch as module  # pyright: ignore[reportMissingImports]

    from ratrain.models.weights import Weights

    torch: Any = module
    weights = Weights(layout)
    weights.attach_view(torch.randn(layout.size, **placement).mul_(0.02))
    return weights, torch.zeros(layout.size, **placement)


class _Alone:
    """The first rank of a tensor group whose others are not there: sums are left out."""

    divides_rows = False

    def __init__(self, degree: int) -> None:
        from ratrain.models.division import Division

        self.division = Division(0, degree)

    def sum_(self, part: Any) -> None:
        """Nothing: the group's sums are counted apart."""

    def sum_rows(self, parts: Any) -> Any:
        """As if the others' parts were zero."""
        return parts[0]

    def gather_rows(self, rows: Any) -> Any:
        """As if all ranks had the same."""
        return rows.repeat(self.division.degree, 1)

    def gather(self, values: Any) -> list[Any]:
        """As if all ranks had the same."""
        return [values] * self.division.degree


def profile_toml(entries: Sequence[LayerProfile], mark: Callable[[str], str]) -> list[str]:
    """The entries as `[[device.layer_profile]]` tables of a cluster file. `mark`: the comment
    behind a figure of that name, where it is doubtful."""
    lines: list[str] = []
    for entry in entries:
        shape = entry.shape
        keys: dict[str, object] = {"hidden": shape.hidden, "vocab": shape.vocab}
        if shape.own:
            keys = {"hidden": shape.hidden, "own": f'"{shape.own}"'}
        elif entry.block == "layer":
            keys = {
                "hidden": shape.hidden,
                "ffn": shape.ffn,
                "heads": shape.heads,
                "kv_heads": shape.kv_heads,
                "head_dim": shape.head_dim,
            }
            if shape.experts:
                keys |= {"experts": shape.experts, "chosen": shape.chosen}
            if shape.shared:
                keys["shared"] = shape.shared
        inside = ", ".join(f"{key} = {value}" for key, value in keys.items())
        lines += [
            "",
            "[[device.layer_profile]]",
            f'block = "{entry.block}"',
            f"shape = {{{inside}}}",
            f"sequence = {entry.sequence}",
            f"tensor = {entry.tensor}",
            f'dtype = "{entry.dtype}"',
            "times = [",
            *(
                f"  {{micro_batch = {time.micro_batch}, "
                f'forward = "{time.forward_s * 1e3:.6g}ms", '
                f'backward = "{(time.backward_s or 0.0) * 1e3:.6g}ms"}},'
                f"{mark(layer_figure(entry.case, time.micro_batch))}"
                for time in entry.times
            ),
            "]",
            f'source = "{entry.source}"',
        ]
    return lines
