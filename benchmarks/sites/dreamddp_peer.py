"""One rank of DreamDDP's published order (arXiv 2502.11058) by hooks on torch over gloo, at a place
of a lab: `python dreamddp_peer.py METHOD CONFIG LENGTH BATCH STEPS PERIOD OUT`. Rank 0 writes each
step's seconds. Own code by the published description; nothing of its repository is in here.

A hook on the first parameter of each leaf module whose gradient is complete starts, in the step
that the schedule gives the module, one asynchronous sum per parameter, in place on the weights.
All are awaited behind backward, divided, and the optimizer steps by the gradient at the weights
before. The schedule is the published search, of seconds that ranks measure before they train: of
each leaf's backward, and of sums of two sizes.

METHOD `search` is that; `equal` divides leaves into runs of equal numbers ("ENP" there).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

import torch
import torch.distributed as dist
from peer import begun, timed
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

PROFILED = 5
SIZES = 1 << 14, 1 << 18
"""Elements of the two sums whose difference gives the line's rate."""


def leaves_of(model: nn.Module) -> list[list[nn.Parameter]]:
    """The own parameters of each module that has some, in the order of forward."""
    every = (list(module.parameters(recurse=False)) for module in model.modules())
    return [parameters for parameters in every if parameters]


def searched(backward_s: Sequence[float], sync_s: Sequence[float], period: int) -> list[int]:
    """The published search over runs of the order of backward: a slot is filled while its sums end
    within backward; the first unit that does not fit is taken too, or begins the next slot. The
    last slot has the rest. Each unit's slot; the same calls are made once."""
    count, ready = len(backward_s), list(accumulate(backward_s))

    @cache
    def best(first: int, slot: int) -> tuple[float, int]:
        """What is exposed from a unit on, and where the slot ends that begins with it."""
        end_s, at = 0.0, first
        if slot == period - 1:
            return max(0.0, ended(first, count) - ready[-1]), count
        while at < count and (then := max(end_s, ready[at]) + sync_s[at]) <= ready[-1]:
            end_s, at = then, at + 1
        if at == count:
            return 0.0, count
        taken = max(0.0, ended(first, at + 1) - ready[-1]) + best(at + 1, slot + 1)[0]
        left = best(at, slot + 1)[0] if at > first else float("inf")
        return (taken, at + 1) if taken <= left else (left, at)

    def ended(first: int, last: int) -> float:
        end_s = 0.0
        for unit in range(first, last):
            end_s = max(end_s, ready[unit]) + sync_s[unit]
        return end_s

    slots, at = list[int](), 0
    for slot in range(period):
        upto = best(at, slot)[1] if at < count else count
        slots += [slot] * (upto - at)
        at = upto
    return slots


def equal(count: int, period: int) -> list[int]:
    """Runs of equal numbers of units."""
    return [unit * period // count for unit in range(count)]


class Hooked:
    """An optimizer that awaits what hooks have begun, and then steps."""

    def __init__(
        self,
        leaves: Sequence[Sequence[nn.Parameter]],
        slots: Sequence[int],
        period: int,
        inner: torch.optim.Optimizer,
    ) -> None:
        self._inner, self._period, self._step = inner, period, 0
        self._begun: list[tuple[dist.Work, Tensor]] = []
        for parameters, slot in zip(leaves, slots, strict=True):
            parameters[0].register_post_accumulate_grad_hook(self._hook(parameters, slot))

    def _hook(self, parameters: Sequence[nn.Parameter], slot: int):
        def begin(_first: Tensor) -> None:
            for parameter in parameters if self._step % self._period == slot else ():
                work = dist.all_reduce(parameter.data, async_op=True)
                assert work is not None
                self._begun.append((work, parameter.data))

        return begin

    def step(self) -> None:
        for work, weights in self._begun:
            work.wait()
            weights /= dist.get_world_size()
        self._begun.clear()
        self._inner.step()
        self._step += 1

    def zero_grad(self) -> None:
        self._inner.zero_grad()


def profile(
    model: nn.Module, leaves: Sequence[Sequence[nn.Parameter]], tokens: Tensor
) -> tuple[list[float], list[float]]:
    """Seconds of each leaf's backward, and of its sums, in the order of backward given: the slower
    rank's."""
    marks = list[float]()
    hooks = [
        leaf[0].register_post_accumulate_grad_hook(lambda _: marks.append(time.monotonic()))
        for leaf in leaves
    ]
    rows = list[list[float]]()
    for _ in range(PROFILED):
        loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        marks[:] = [time.monotonic()]
        loss.backward()
        model.zero_grad()
        rows.append([after - before for before, after in pairwise(marks)])
    for hook in hooks:
        hook.remove()
    took_s = list[float]()
    for size in SIZES:
        of_size = list[float]()
        for _ in range(3):
            dist.barrier()
            began_s = time.monotonic()
            dist.all_reduce(torch.zeros(size))
            of_size.append(time.monotonic() - began_s)
        took_s.append(median(of_size))
    each_s = max((took_s[1] - took_s[0]) / (SIZES[1] - SIZES[0]), 0.0)
    fixed_s = max(took_s[0] - SIZES[0] * each_s, 0.0)
    sync_s = [sum(fixed_s + each_s * p.numel() for p in leaf) for leaf in leaves]
    backward_s = [median(column) for column in zip(*rows, strict=True)]
    both = torch.tensor([backward_s, sync_s])
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    return both[0].tolist(), both[1].tolist()


def in_order(model: nn.Module, tokens: Tensor) -> list[list[nn.Parameter]]:
    """Leaves in the order in which backward completes their first parameters."""
    leaves, order = leaves_of(model), list[int]()
    hooks = [
        leaf[0].register_post_accumulate_grad_hook(lambda _, place=place: order.append(place))
        for place, leaf in enumerate(leaves)
    ]
    cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    model.zero_grad()
    for hook in hooks:
        hook.remove()
    return [leaves[place] for place in order]


def main(method: str, config: str, length: int, batch: int, steps: int, period: int) -> list[float]:
    """Seconds of each step."""
    spec, model = begun(config, length)
    tokens = torch.randint(spec.vocab, (batch, length + 1))
    leaves = in_order(model, tokens)
    slots = equal(len(leaves), period)
    if method == "search":
        slots = searched(*profile(model, leaves, tokens), period)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dist.barrier()
    return timed(model, Hooked(leaves, slots, period, inner), tokens, steps)


if __name__ == "__main__":
    name, path, *numbers, out = sys.argv[1:]
    measured = main(name, path, *map(int, numbers))
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(measured))
    dist.barrier()
