"""Experts: MLPs in place of one, of which a router chooses some for each token (arXiv 2101.03961).

Logits of the router make probabilities; the chosen experts' are the weights of what they give, by
themselves or as parts of one. A pair is a token and an expert that it has chosen. Pairs are sorted
by expert, so each expert's are rows of one product.

In a tensor group each rank has some of the experts and computes them for all of the group's tokens:
its output is a part of the sum that joins them anyway. So is the router divided, whose logits are
gathered; every rank chooses by the same bits.

Kept for backward: probabilities, which experts were chosen and the pairs' order, gate, up and their
product of each pair that is here. A router may send every token to experts of one rank: so many
pairs are counted.

With a weight for their balance each sequence adds E sum_e f_e P_e to its tokens' mean loss: f_e the
share of its tokens that have chosen expert e, P_e its mean probability, the mean over layers. A
sequence at a time, so that it depends on no layout; by it and by layer what Transformers has for
all of a batch and all layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ratrain.describe.model import Experts, ModelSpec
from ratrain.describe.parameters import EXPERTS, ROUTER
from ratrain.models.expert_load import ExpertLoad
from ratrain.models.functions.activation import activated, activation_gradients_
from ratrain.models.functions.linear import accumulation_dtype, row_dots, scale_rows_
from ratrain.models.functions.rows import Rows, add_own, by_rank, summed
from ratrain.models.tensor_group import TensorGroup, division_of
from ratrain.models.weights import Weights

GATE, UP, DOWN = (f"{name}.weight" for name in EXPERTS)
ROUTER_WEIGHT = f"{ROUTER}.weight"


@dataclass(frozen=True)
class Balance:
    """Of a micro-batch: by how much the balance of each sequence counts."""

    weights: Tensor  # [b]


@dataclass(frozen=True)
class ExpertPairs:
    """An expert that is here, its pairs' tokens, their numbers and their place among those here."""

    expert: int  # among those here
    tokens: Tensor
    pairs: Tensor
    place: slice


@dataclass(frozen=True)
class SparseMlp:
    """The inside of a layer's second half (`mlp_block.Inside`)."""

    activation: str
    experts: Experts
    layers: int
    balance_loss: float
    load: ExpertLoad = field(compare=False)
    multiplier: float = 1.0  # of the result, by that of the experts' weights
    group: TensorGroup | None = None

    def balance(self, targets: Tensor, loss_weight: float) -> Balance | None:
        """Where the experts' balance is trained for: each sequence's counts as its tokens do."""
        if not self.balance_loss:
            return None
        counted = (targets >= 0).sum(1, dtype=torch.float32)
        return Balance(counted.mul_(self.balance_loss * loss_weight / self.layers))

    def forward(
        self, weights: Weights, inputs: Rows, residual: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        output, kept = self.part(weights, inputs)
        if residual is None:
            return summed(output, self.group), kept
        return add_own(output, residual, self.group), kept

    def part(self, weights: Weights, inputs: Rows) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(this rank's part of the output; what backward needs)."""
        rows = inputs.all()
        probabilities, chosen = self._routed(weights, rows)
        order = chosen.view(-1).argsort(stable=True)
        here = list(self._pairs(self._tokens(chosen), order))
        count = here[-1].place.stop if here else 0
        width = weights.layout.by_name[UP].shape[1]
        gate, up = (rows.new_empty(count, width) for _ in range(2))
        for each in here:
            given = rows.index_select(0, each.tokens)
            for name, made in ((GATE, gate), (UP, up)):
                torch.mm(given, weights.of_stack(name, each.expert).t(), out=made[each.place])
            del given
        output = torch.zeros_like(rows)
        del rows
        inputs.let_go()
        act = activated(self.activation, up, gate)
        shares = self._shares(probabilities, chosen).view(-1).mul_(self.multiplier)
        for each in here:
            made = act[each.place] @ weights.of_stack(DOWN, each.expert).t()
            scale_rows_(made, shares.index_select(0, each.pairs))
            output.index_add_(0, each.tokens, made)
            del made
        return by_rank(output, self.group), (probabilities, chosen, order, gate, up, act)

    def backward(
        self,
        weights: Weights,
        grad: Rows,
        inputs: Rows,
        kept: tuple[Tensor, ...],
        balance: Balance | None,
    ) -> Tensor:
        probabilities, chosen, order, gate, up, act = kept
        tokens, rows = self._tokens(chosen), grad.all()
        self.load.count(tokens, division_of(self.group).degree)
        here = list(self._pairs(tokens, order))
        shares = self._shares(probabilities, chosen)
        weighed, d_shares = shares * self.multiplier, torch.zeros_like(shares)
        d_rows = torch.zeros_like(rows)
        for each in here:
            d_act = rows.index_select(0, each.tokens) @ weights.of_stack(DOWN, each.expert)
            of_pairs = row_dots(d_act, act[each.place])
            d_shares.view(-1).index_copy_(0, each.pairs, of_pairs)
            scale_rows_(d_act, weighed.view(-1).index_select(0, each.pairs))
            d_up, d_gate = up[each.place], gate[each.place]
            activation_gradients_(self.activation, d_act, d_up, d_gate)
            del d_act
            given = d_gate @ weights.of_stack(GATE, each.expert)
            given.addmm_(d_up, weights.of_stack(UP, each.expert))
            d_rows.index_add_(0, each.tokens, given)
            del given
        if self.group is not None:
            self.group.sum_(d_shares)
        d_shares.mul_(self.multiplier)
        d_logits = self._router_gradient(probabilities, chosen, shares, d_shares, balance)
        own = d_logits[:, self._own].to(rows.dtype).contiguous()
        del d_logits
        weights.add_product(ROUTER_WEIGHT, Rows(own), inputs)
        d_rows.addmm_(own, weights[ROUTER_WEIGHT])
        self._weight_gradients(weights, here, grad, inputs, weighed.view(-1), (gate, up, act))
        return d_rows

    @property
    def _own(self) -> slice:
        """The experts that are here."""
        return division_of(self.group).of(self.experts.count)

    def _routed(self, weights: Weights, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(probabilities [tokens, E]; which are chosen, [tokens, k])."""
        logits = rows @ weights[ROUTER_WEIGHT].t()
        if self.group is not None:
            logits = torch.cat(self.group.gather(logits), 1)
        probabilities = logits.softmax(1, dtype=accumulation_dtype(rows.dtype))
        return probabilities, probabilities.topk(self.experts.chosen, 1).indices

    def _shares(self, probabilities: Tensor, chosen: Tensor) -> Tensor:
        """The weights of the chosen experts, [tokens, k]."""
        shares = probabilities.gather(1, chosen)
        return shares.div_(shares.sum(1, keepdim=True)) if self.experts.normalised else shares

    def _tokens(self, chosen: Tensor) -> list[int]:
        """How many tokens have chosen each expert."""
        return chosen.view(-1).bincount(minlength=self.experts.count).cpu().tolist()

    def _pairs(self, counts: list[int], order: Tensor) -> Iterator[ExpertPairs]:
        """Expert by expert what is chosen of those that are here; `order`: of pairs, by expert."""
        own = self._own
        begin = first = sum(counts[: own.start])
        for expert, count in enumerate(counts[own]):
            if count:
                pairs = order[begin : begin + count]
                tokens = pairs.div(self.experts.chosen, rounding_mode="floor")
                place = slice(begin - first, begin - first + count)
                yield ExpertPairs(expert, tokens, pairs, place)
            begin += count

    def _router_gradient(
        self,
        probabilities: Tensor,
        chosen: Tensor,
        shares: Tensor,
        d_shares: Tensor,
        balance: Balance | None,
    ) -> Tensor:
        """The gradient of the logits, by that of the chosen experts' weights."""
        if self.experts.normalised:
            mean = (d_shares * shares).sum(1, keepdim=True)
            total = probabilities.gather(1, chosen).sum(1, keepdim=True)
            d_shares = d_shares.sub_(mean).div_(total)
        gradient = torch.zeros_like(probabilities).scatter_(1, chosen, d_shares)
        if balance is not None:
            self._add_balance(gradient, chosen, balance)
        gradient.mul_(probabilities)
        return gradient.addcmul_(probabilities, gradient.sum(1, keepdim=True), value=-1)

    def _add_balance(self, gradient: Tensor, chosen: Tensor, balance: Balance) -> None:
        """Adds the gradient of probabilities that the experts' balance has."""
        sequences, count = len(balance.weights), self.experts.count
        length = len(chosen) // sequences
        for number, of_sequence in enumerate(chosen.view(sequences, -1)):
            counts = of_sequence.bincount(minlength=count).to(gradient.dtype)
            by_token = counts.mul_(balance.weights[number] * (count / length**2))
            gradient[number * length : (number + 1) * length] += by_token

    def _weight_gradients(
        self,
        weights: Weights,
        here: list[ExpertPairs],
        grad: Rows,
        inputs: Rows,
        shares: Tensor,
        made: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        """Adds each expert's; what is read of all tokens is gathered when it is needed."""
        gate, up, act = made

        def of_output(each: ExpertPairs) -> Tensor:
            rows = grad.all().index_select(0, each.tokens)
            return scale_rows_(rows, shares.index_select(0, each.pairs))

        def of_input(each: ExpertPairs) -> Tensor:
            return inputs.all().index_select(0, each.tokens)

        by_expert = {each.expert: each for each in here}
        weights.add_stack(DOWN, by_expert, lambda each: (of_output(each), act[each.place]))
        weights.add_stack(GATE, by_expert, lambda each: (gate[each.place], of_input(each)))
        weights.add_stack(UP, by_expert, lambda each: (up[each.place], of_input(each)))


def sparse_mlp(spec: ModelSpec, group: TensorGroup | None) -> SparseMlp:
    """That of a model's layers."""
    assert spec.experts is not None
    load = ExpertLoad([0] * spec.experts.count)
    return SparseMlp(
        spec.activation,
        spec.experts,
        spec.layers,
        spec.balance_loss,
        load,
        spec.residual_multiplier,
        group,
    )
