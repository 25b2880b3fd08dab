"""A layer profile: how long a device took for a layer, an embedding or a head, as measured.

Each entry holds the times of one shape at one sequence length, tensor degree and dtype, for one
micro-batch size or several. docs/reference/describe.md, "Layer profile", explains the keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from ratrain.describe.amounts import NOT_STATED, Count, Name, TimeS, Tokens, Width
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import Rule
from ratrain.errors import SpecError

HeadsOrNone = Annotated[int, Rule(low=0, high=1 << 16)]
WidthOrNone = Annotated[int, Rule(low=0, high=1 << 24)]
BlockName = Literal["layer", "embedding", "head"]


@dataclass(frozen=True)
class BlockShape:
    """What a block's time depends on: of a layer its widths and heads; of an embedding or a head
    `hidden` and `vocab`."""

    hidden: Width  # width
    ffn: WidthOrNone = 0  # the MLP's width, of a layer
    heads: HeadsOrNone = 0  # of a layer
    kv_heads: HeadsOrNone = 0  # left out: as `heads`
    head_dim: WidthOrNone = 0  # left out: hidden / heads
    gated_mlp: bool = True  # of a layer
    vocab: WidthOrNone = 0  # of an embedding or a head
    experts: HeadsOrNone = 0  # of a layer that has some
    chosen: HeadsOrNone = 0  # of them, for each token
    shared: WidthOrNone = 0  # the width of an MLP that every token has beside them
    own: Annotated[str, Rule(high=255)] = ""  # a model of one's own modules, by its name

    def __str__(self) -> str:
        if self.own:
            return f"hidden {self.hidden}, {self.own}'s own"
        if self.vocab:
            return f"hidden {self.hidden}, vocabulary {self.vocab}"
        kind = "" if self.gated_mlp else "plain "
        grouped = f" ({self.kv_heads} kv)" if self.kv_heads not in (0, self.heads) else ""
        mlp = f"{kind}MLP {self.ffn}"
        if self.experts:
            beside = f" and MLP {self.shared}" if self.shared else ""
            mlp = f"{self.chosen} of {self.experts} experts of {self.ffn}{beside}"
        return f"hidden {self.hidden}, {mlp}, {self.heads} heads{grouped}"

    @property
    def whole(self) -> BlockShape:
        """The shape with what was left out filled in."""
        if self.vocab or not self.heads:
            return self
        return replace(
            self,
            kv_heads=self.kv_heads or self.heads,
            head_dim=self.head_dim or self.hidden // self.heads,
        )


@dataclass(frozen=True)
class BlockCase:
    """A block in the conditions that one entry is about."""

    block: BlockName
    shape: BlockShape
    sequence: int
    tensor: int
    dtype: str
    sequence_parallel: bool = False

    def __str__(self) -> str:
        degree = f", tensor {self.tensor}" if self.tensor > 1 else ""
        divided = ", sequence parallel" if self.sequence_parallel else ""
        return f"{self.block} ({self.shape}), {self.sequence} tokens{degree}{divided}, {self.dtype}"


@dataclass(frozen=True)
class MeasuredTime:
    """Forward and backward of one micro-batch; the backward without recomputation."""

    micro_batch: Count  # sequences
    forward_s: TimeS
    backward_s: TimeS | None = None  # without recomputation; left out: from the forward


@dataclass(frozen=True)
class LayerProfile:
    """Times of one block by micro-batch size. `update_s`: one optimizer step on the rank's
    parameters of the block."""

    shape: BlockShape
    sequence: Tokens  # tokens
    times: tuple[MeasuredTime, ...]  # by micro-batch
    source: str = NOT_STATED  # where it was measured
    block: BlockName = "layer"  # what was measured
    tensor: Count = 1  # degree of the tensor group
    dtype: Name = "fp16"
    sequence_parallel: bool = False
    # "included": the group's all-reduces are in the times
    sums: Literal["apart", "included"] = "apart"
    update_s: TimeS | None = None  # left out: priced by the memory's bandwidth
    # of a pass, what does not grow with the micro-batch; of times of one micro-batch alone
    fixed_s: TimeS = 0.0

    def __post_init__(self) -> None:
        for key in ("ffn", "heads") if self.block == "layer" else ("vocab",):
            if not self.shape.own and not getattr(self.shape, key):
                raise self._wrong("shape", f"its shape lacks {key}", f"add {key} to shape")
        if not self.times:
            raise self._wrong("times", "it has no times", "add times")
        sizes: set[int] = set()
        for number, time in enumerate(self.times):
            here = f"times.{number}"
            if time.micro_batch in sizes:
                raise self._wrong(
                    here, f"micro-batch {time.micro_batch} is given twice", "keep one"
                )
            sizes.add(time.micro_batch)
            # An embedding's input needs no gradient; everything else takes time.
            if not time.forward_s or (time.backward_s == 0 and self.block != "embedding"):
                raise self._wrong(
                    here,
                    f"micro-batch {time.micro_batch} takes 0 seconds",
                    "leave out what was not measured",
                )

        if self.fixed_s:
            self._check_fixed()

    def _check_fixed(self) -> None:
        if len(self.times) > 1:
            raise self._wrong(
                "fixed",
                "several micro-batches say by themselves what is fixed",
                "leave fixed out, or keep one micro-batch",
            )
        passes_s = [
            seconds
            for time in self.times
            for seconds in (time.forward_s, time.backward_s)
            if seconds
        ]
        if self.fixed_s > min(passes_s):
            what = "its fixed part is longer than a whole pass"
            raise self._wrong("fixed", what, "give the part of one pass that is fixed")

    @property
    def case(self) -> BlockCase:
        """What only one entry of a device may be about."""
        return BlockCase(
            self.block,
            self.shape.whole,
            self.sequence,
            self.tensor,
            self.dtype,
            self.sequence_parallel,
        )

    def _wrong(self, key: str, what: str, fix: str) -> SpecError:
        return SpecError(f"{self.case}: {what}", place=key, fix=fix)


def shape_of(model: ModelSpec, block: BlockName) -> BlockShape:
    """The shape of a model's layer, embedding or head."""
    if model.own:
        return BlockShape(model.hidden, own=model.name)
    if block != "layer":
        return BlockShape(model.hidden, vocab=model.vocab)
    shape = BlockShape(
        model.hidden, model.ffn, model.heads, model.kv_heads, model.head_dim, model.gated_mlp
    )
    experts = model.experts
    if experts is None:
        return shape
    shared = model.shared_expert or 0
    return replace(shape, experts=experts.count, chosen=experts.chosen, shared=shared)
