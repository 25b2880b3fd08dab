"""What the ops of the compute lane do to rows of a partition, in torch: forward, the loss, and a
backward of sums over the nodes that read a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from ratrain.graph.blocks import Block, Blocks
from ratrain.graph.read import NO_LABEL
from ratrain.graph.spmm import add_product
from ratrain.graph.trace import ADD, BACKWARD, FORWARD, KEPT, OPEN, OPEN_B, Datum, Item
from ratrain.graph.units import Unit

SLOPE = 0.2
"""Of attention's leaky ReLU below zero."""

Rows = Mapping[Datum, torch.Tensor]
Parameters = dict[str, torch.Tensor]


def parameters_of(units: tuple[Unit, ...], dtype: torch.dtype, seed: int) -> Parameters:
    """The network's parameters by name, as drawn from a seed (Glorot)."""
    draw = torch.Generator().manual_seed(seed)

    def drawn(rows: int, columns: int) -> torch.Tensor:
        bound = (6 / (rows + columns)) ** 0.5
        return (torch.rand(rows, columns, generator=draw, dtype=torch.float64) * 2 - 1) * bound

    parameters: Parameters = {}
    for u in units:
        if u.has_weights:
            parameters[f"{u.number}.weight"] = drawn(u.width_in, u.width)
        if u.own:
            parameters[f"{u.number}.own"] = drawn(u.width_in, u.width)
        if u.scores:
            for side in ("source", "target"):
                parameters[f"{u.number}.{side}"] = drawn(u.scores, u.width // u.scores)
        else:
            parameters[f"{u.number}.bias"] = torch.zeros(u.width)
    return {name: value.to(dtype).clone().requires_grad_() for name, value in parameters.items()}


@dataclass
class Tally:
    """What an epoch's forward said of the labelled nodes."""

    loss: float = 0.0
    learned: int = 0
    learned_right: int = 0
    others: int = 0
    others_right: int = 0


@dataclass
class Network:
    """The parameters, and what is computed with them. `labels` and `is_train` are of all nodes in
    the partitions' order; partition `p` begins at `bounds[p]`."""

    units: tuple[Unit, ...]
    parameters: Parameters
    forward: Blocks
    backward: Blocks
    labels: torch.Tensor
    is_train: torch.Tensor
    bounds: list[int]
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self._learned = int(self.is_train.sum())

    def begin_epoch(self) -> None:
        """Gradients and counts from zero."""
        self.tally = Tally()
        for parameter in self.parameters.values():
            parameter.grad = torch.zeros_like(parameter)

    def flat_gradients(self) -> np.ndarray:
        """Those of all parameters, in order."""
        gradients = [parameter.grad for parameter in self.parameters.values()]
        return torch.cat([each.reshape(-1) for each in gradients if each is not None]).numpy()

    def set_gradients(self, flat: np.ndarray) -> None:
        """The other way round."""
        parameters = list(self.parameters.values())
        parts = torch.from_numpy(flat).split([each.numel() for each in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    @torch.no_grad()
    def run(self, item: Item, rows: Rows, sums: torch.Tensor | None) -> None:
        """One op. `rows`: what it reads and makes; `sums`: its sum's rows."""
        unit = self.units[item.unit - 1]
        read = [rows[datum] for datum in item.reads]
        made = {datum.family: rows[datum] for datum in item.makes if datum in rows}
        if item.verb in (OPEN, OPEN_B):
            assert sums is not None
            _open(unit, item.verb, sums, read)
        elif item.source >= 0:
            assert sums is not None
            blocks = self.forward if item.verb == ADD else self.backward
            _add(unit, item.verb, blocks[item.part, item.source], sums, read[0])
        elif item.verb == FORWARD:
            out = rows[item.makes[0]]
            z = self._forward(unit, sums, read, out, made.get(KEPT))
            if unit.last:
                self._loss(unit, item.part, z, out, made.get(KEPT))
        elif item.verb == BACKWARD:
            self._backward(item, unit, sums, rows)

    # ---- forward ------------------------------------------------------------------------

    def _forward(
        self,
        u: Unit,
        sums: torch.Tensor | None,
        read: list[torch.Tensor],
        out: torch.Tensor,
        kept: torch.Tensor | None,
    ) -> torch.Tensor:
        """The unit's rows, in `out` unless a loss follows, which has them on the side."""
        z = out.new_empty(len(out), u.width) if u.last else out[:, : u.width]
        if u.attends:
            assert sums is not None and kept is not None
            _normalised(u, sums, z, kept)
        else:
            summed = sums if sums is not None else read[0]
            torch.mm(summed, self._of(u, "weight"), out=z) if z.is_contiguous() else z.copy_(
                summed @ self._of(u, "weight")
            )
            if u.own:
                z.addmm_(read[0], self._of(u, "own"))
        if u.scores:
            self._score(u, z, out)
        else:
            z += self._of(u, "bias")
        if u.relu:
            z.relu_()
        return z

    def _score(self, u: Unit, z: torch.Tensor, out: torch.Tensor) -> None:
        by_head = z.reshape(len(z), u.scores, -1)
        for at, side in enumerate(("source", "target")):
            columns = slice(u.width + at * u.scores, u.width + (at + 1) * u.scores)
            out[:, columns] = (by_head * self._of(u, side)).sum(-1)

    def _loss(
        self, u: Unit, part: int, z: torch.Tensor, out: torch.Tensor, kept: torch.Tensor | None
    ) -> None:
        """Cross-entropy, its gradient into `out`, and what is counted."""
        here = slice(self.bounds[part], self.bounds[part + 1])
        labels, learned = self.labels[here], self.is_train[here]
        logs = torch.log_softmax(z, 1)
        right = z.argmax(1) == labels
        others = (labels != NO_LABEL) & ~learned
        tally = self.tally
        tally.loss -= float(logs[learned, labels[learned]].double().sum()) / self._learned
        tally.learned += int(learned.sum())
        tally.learned_right += int((right & learned).sum())
        tally.others += int(others.sum())
        tally.others_right += int((right & others).sum())
        grad = logs.exp_()
        rows = torch.arange(len(z))[learned]
        grad[rows, labels[learned]] -= 1
        grad[~learned] = 0
        grad /= self._learned
        self._pass_down(u, z, grad, out, kept)

    # ---- backward -----------------------------------------------------------------------

    def _backward(self, item: Item, u: Unit, sums: torch.Tensor | None, rows: Rows) -> None:
        own = self.bounds[item.part + 1] - self.bounds[item.part]
        below, gradient = rows[item.reads[0]][:own], None  # a snapshot goes on with others' rows
        if u.reads_own_gradient:
            gradient = rows[item.reads[1]]
        if u.attends:
            assert sums is not None and gradient is not None
            _attention_down(u, sums, below, gradient, rows[item.reads[2]], rows[item.makes[0]])
            return
        if u.scores:
            assert gradient is not None
            summed = self._scores_down(u, below, gradient)
        else:
            summed = sums if sums is not None else gradient
        assert summed is not None
        self._add_gradient(u, "weight", below.T @ summed)
        if u.own:
            assert gradient is not None
            self._add_gradient(u, "own", below.T @ gradient)
        if not item.makes:
            return
        grad = summed @ self._of(u, "weight").T
        if u.own and gradient is not None:
            grad.addmm_(gradient, self._of(u, "own").T)
        lower = self.units[u.number - 2]
        kept = rows[item.reads[-1]] if lower.attends else None
        self._pass_down(lower, below, grad, rows[item.makes[0]], kept)

    def _scores_down(self, u: Unit, below: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of a product's rows from theirs and their scores'."""
        summed = gradient[:, : u.width].clone()
        weight = self._of(u, "weight").reshape(u.width_in, u.scores, -1)
        for at, side in enumerate(("source", "target")):
            by_node = gradient[:, u.width + at * u.scores : u.width + (at + 1) * u.scores]
            change = torch.einsum("ihd,ih->hd", weight, below.T @ by_node)
            self._add_gradient(u, side, change)
            summed += (by_node[:, :, None] * self._of(u, side)).reshape(len(summed), u.width)
        return summed

    def _pass_down(
        self,
        u: Unit,
        rows: torch.Tensor,
        grad: torch.Tensor,
        out: torch.Tensor,
        kept: torch.Tensor | None,
    ) -> None:
        """Writes the gradient of a unit's rows, before its ReLU, and what its backward reads with
        it. `rows`: its activations."""
        if u.relu:
            grad.masked_fill_(rows <= 0, 0)
        if not u.scores:
            self._add_gradient(u, "bias", grad.sum(0))
        out[:, : grad.shape[1]] = grad
        if u.attends:
            assert kept is not None
            h, d = u.heads, u.width
            weighed = (grad * (rows - self._of(u, "bias"))).reshape(len(rows), h, -1).sum(-1)
            out[:, d : d + h] = weighed
            out[:, d + h :] = kept[:, d + h :]

    def _of(self, u: Unit, name: str) -> torch.Tensor:
        return self.parameters[f"{u.number}.{name}"]

    def _add_gradient(self, u: Unit, name: str, value: torch.Tensor) -> None:
        held = self._of(u, name).grad
        assert held is not None
        held += value


# ---- sums over neighbours -----------------------------------------------------------------


def _open(u: Unit, verb: str, sums: torch.Tensor, read: list[torch.Tensor]) -> None:
    """An empty sum; of attention with the node's score, and nothing seen so far."""
    sums.zero_()
    if u.attends:
        d, h = u.width, u.heads
        if verb == OPEN:
            sums[:, 2 * d : 2 * d + h] = -torch.inf
            sums[:, 2 * d + 3 * h :] = read[0][:, d + h :]
        else:
            sums[:, 2 * d + h :] = read[0][:, d : d + h]


def _add(u: Unit, verb: str, block: Block, sums: torch.Tensor, rows: torch.Tensor) -> None:
    if not u.attends:
        add_product(sums, block, block.values, rows)
    elif verb == ADD:
        _attend(u, block, sums, rows)
    else:
        _attend_back(u, block, sums, rows)


def _attend(u: Unit, block: Block, sums: torch.Tensor, rows: torch.Tensor) -> None:
    """Neighbours' rows by their weights, normalised as far as seen (online softmax)."""
    d, h = u.width, u.heads
    own = torch.from_numpy(block.rows).long()
    most, total, behind, score = (sums[:, 2 * d + k * h : 2 * d + (k + 1) * h] for k in range(4))
    counts = np.diff(block.starts)
    sources = rows[:, d : d + h].numpy()[block.columns]
    linear = sources + np.repeat(score[own].numpy(), counts, axis=0)
    kink = np.where(linear > 0, 1, SLOPE).astype(linear.dtype)
    exponent = linear * kink
    first = block.starts[:-1]
    seen = most[own]
    higher = torch.maximum(seen, torch.from_numpy(np.maximum.reduceat(exponent, first, axis=0)))
    shrink = torch.exp(seen - higher)
    weights = np.exp(exponent - np.repeat(higher.numpy(), counts, axis=0))
    kinked = weights * kink
    most[own] = higher
    total[own] = total[own] * shrink + torch.from_numpy(np.add.reduceat(weights, first, axis=0))
    behind[own] = behind[own] * shrink + torch.from_numpy(np.add.reduceat(kinked, first, axis=0))
    wide = shrink.repeat_interleave(d // h, 1)
    for at, values in ((0, weights), (d, kinked)):
        sums[own, at : at + d] *= wide
        _add_heads(sums[:, at : at + d], block, values, rows[:, :d], h)


def _add_heads(
    out: torch.Tensor, block: Block, values: np.ndarray, rows: torch.Tensor, heads: int
) -> None:
    width = out.shape[1] // heads
    for head in range(heads):
        of_head = slice(head * width, (head + 1) * width)
        own = np.ascontiguousarray(values[:, head])
        add_product(out[:, of_head], block, own, rows[:, of_head])


def _normalised(u: Unit, sums: torch.Tensor, z: torch.Tensor, kept: torch.Tensor) -> None:
    """What attention leaves, and keeps for its backward: the sum behind the kink, with its weight,
    the logarithm of the normaliser, the node's score."""
    d, h = u.width, u.heads
    most, total, behind, score = (sums[:, 2 * d + k * h : 2 * d + (k + 1) * h] for k in range(4))
    wide = total.repeat_interleave(d // h, 1)
    z.copy_(sums[:, :d] / wide)
    kept[:, :d] = sums[:, d : 2 * d] / wide
    kept[:, d : d + h] = behind / total
    kept[:, d + h : d + 2 * h] = most + total.log()
    kept[:, d + 2 * h :] = score


def _attend_back(u: Unit, block: Block, sums: torch.Tensor, rows: torch.Tensor) -> None:
    """Of the nodes that read a node: their gradients by the weights that they gave it."""
    d, h = u.width, u.heads
    own = torch.from_numpy(block.rows).long()
    weighed, normaliser, score = (
        rows[:, d + k * h : d + (k + 1) * h].numpy()[block.columns] for k in range(3)
    )
    counts = np.diff(block.starts)
    linear = score + np.repeat(sums[own, 2 * d + h :].numpy(), counts, axis=0)
    kink = np.where(linear > 0, 1, SLOPE).astype(linear.dtype)
    weights = np.exp(linear * kink - normaliser)
    kinked = weights * kink
    of_normaliser = np.add.reduceat(kinked * weighed, block.starts[:-1], axis=0)
    sums[own, 2 * d : 2 * d + h] += torch.from_numpy(of_normaliser)
    for at, values in ((0, weights), (d, kinked)):
        _add_heads(sums[:, at : at + d], block, values, rows[:, :d], h)


def _attention_down(
    u: Unit,
    sums: torch.Tensor,
    below: torch.Tensor,
    gradient: torch.Tensor,
    kept: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """The gradients of a node's row and of its two scores."""
    d, h, n = u.width, u.heads, len(out)

    def by_head(rows: torch.Tensor) -> torch.Tensor:
        return rows.reshape(n, h, -1).sum(-1)

    out[:, :d] = sums[:, :d]
    out[:, d : d + h] = by_head(sums[:, d : 2 * d] * below[:, :d]) - sums[:, 2 * d : 2 * d + h]
    behind = gradient[:, d : d + h] * kept[:, d : d + h]
    out[:, d + h : d + 2 * h] = by_head(gradient[:, :d] * kept[:, :d]) - behind
