"""The units of a network: what each reads and leaves of a node, in columns.

A unit multiplies a node's row by weights, or sums rows of neighbours, or both: `gcn` and `gin` are
such units alone, `sage` has further weights for the node's own row. A layer of `gin` is two units,
the second without neighbours. A layer of `gat` is two: the product, to which the scores of every
node are appended, and the attention.

Every unit's backward is a sum over neighbours too, of those that read a node. So nothing that was
gathered is kept or gathered again, and no gradient is scattered (docs/explanation/graphs.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from ratrain.graph.spec import NetworkShape


@dataclass(frozen=True)
class Unit:
    """One unit. Widths are columns of a node's row."""

    number: int  # from 1
    width_in: int
    width: int
    sums: bool = True  # over neighbours
    own: bool = False  # has weights for the node's own row besides
    heads: int = 0  # of attention; 0: none
    scores: int = 0  # heads for which a product appends a node's scores
    relu: bool = True
    last: bool = False

    @property
    def attends(self) -> bool:
        return self.heads > 0

    @property
    def width_out(self) -> int:
        """Of its activations."""
        return self.width + 2 * self.scores

    @property
    def gradient(self) -> int:
        """Of its gradients: attention's say how each node's weights were normalised, too."""
        return self.width_out + 3 * self.heads

    @property
    def kept(self) -> int:
        return self.width + 3 * self.heads if self.attends else 0

    @property
    def sum_forward(self) -> int:
        """Of the sums over neighbours: attention's also of those behind the kink of its leaky ReLU,
        with what normalises both, and the node's score."""
        return 2 * self.width + 4 * self.heads if self.attends else self.width_in * self.sums

    @property
    def sum_backward(self) -> int:
        return 2 * self.width + 2 * self.heads if self.attends else self.width * self.sums

    @property
    def has_weights(self) -> bool:
        return not self.attends

    @property
    def parameters(self) -> int:
        """Numbers that are learned."""
        products = (self.has_weights + self.own) * self.width_in * self.width
        return products + self.width * (2 if self.scores else 1)

    @property
    def reads_own(self) -> bool:
        """Whether forward reads the node's own row beside the sum."""
        return self.own or not self.sums

    @property
    def reads_own_gradient(self) -> bool:
        """The same of backward and the unit's gradients."""
        return self.own or not self.sums or self.attends


def units_of(shape: NetworkShape, width_in: int, classes: int) -> tuple[Unit, ...]:
    """The units of a network, in order."""
    units: list[Unit] = []
    width = width_in
    for layer in range(shape.layers):
        last = layer == shape.layers - 1
        out, number = classes if last else shape.hidden, len(units) + 1
        if shape.kind == "gin":
            inner = shape.hidden
            units.append(Unit(number, width, inner))
            units.append(Unit(number + 1, inner, out, sums=False, relu=not last, last=last))
        elif shape.kind == "gat":
            heads = 1 if last else shape.heads
            units.append(Unit(number, width, out, sums=False, scores=heads, relu=False))
            wide = out + 2 * heads
            units.append(Unit(number + 1, wide, out, heads=heads, relu=not last, last=last))
        else:
            own = shape.kind == "sage"
            units.append(Unit(number, width, out, own=own, relu=not last, last=last))
        width = out
    return tuple(units)
