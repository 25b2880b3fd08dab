"""A plan tried out: its program proved in full, its step timed by short programs.

Memory is printed as proved, so it is that of the whole program (`settled`). A step's time grows
linearly with micro-batches once the pipeline is full, so to rank candidates two short programs are
simulated and extrapolated; a compute order that declares no repeating middle is simulated whole.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ratrain.errors import ProgramError
from ratrain.plan.layout.plan import Plan
from ratrain.plan.price.places import PlanCosts
from ratrain.program.program import Program
from ratrain.program.repeating import MOST_OPS, Make, Repeating, compute_ops, shortest
from ratrain.program.replicas import Replica
from ratrain.program.settled import Proved, proved_from
from ratrain.program.setup import Setup
from ratrain.program.skeletons import SKELETONS
from ratrain.program.strategies import Choices, Strategy, apply_strategy
from ratrain.program.verify import Rule, Verdict, verify
from ratrain.simulate.simulate import step_time_s

SLOTS = 2
"""Slots that the tensors of micro-batches take turns in, between stages and in recovery."""
STEPS = 3
"""Steps simulated to time a candidate."""


def maker(strategy: Strategy, choices: Choices) -> Make:
    """What builds a configuration's program for a setup. One of more ops than memory has room for
    is refused."""

    def make(setup: Setup) -> Program:
        ops = compute_ops(setup)
        if ops > MOST_OPS:
            raise ProgramError(
                f"the {strategy.skeleton} order has {ops:,} compute ops for this batch and no "
                f"repeating part, so all must be written out; at most {MOST_OPS:,} can be",
                place="[batch] sequences",
                fix="cut the batch into fewer micro-batches, or use an order that repeats: 1f1b",
            )
        return apply_strategy(strategy, setup, choices)

    return make


@lru_cache(maxsize=1)  # whoever chooses a configuration and whoever runs it next ask the same
def proof(strategy: Strategy, setup: Setup, choices: Choices) -> Proved:
    """The program of a configuration, proved in full."""
    return proved_from(short_form(strategy, setup, choices), maker(strategy, choices), setup)


@lru_cache(maxsize=8)  # those tried for one job: each is timed, and then proved
def short_form(strategy: Strategy, setup: Setup, choices: Choices) -> Repeating | None:
    """The `shortest` form of a configuration's program."""
    return shortest(maker(strategy, choices), setup, strategy.skeleton)


def timed(plan: Plan, *, proved_later: bool = False) -> tuple[float | None, int]:
    """Seconds of a step of a layout's plan, None where a short program already breaks a rule; and
    ops of one step that this took to find. Where the whole program will be proved, short ones need
    only run."""
    counts, times, ops = list[int](), list[float](), 0
    strategy, setup, choices = plan.strategy, plan.setup, plan.choices
    costs, checked = PlanCosts(plan), proved_later
    for rounds in (1, 2):
        short = shortened(strategy, setup, rounds)
        count = short.replicas[0].micro_batches
        if counts and count == counts[-1]:
            break
        program = _made(strategy, setup, choices, short)
        if not checked and not verify(program).sound:
            return None, ops
        checked = True
        try:
            times.append(step_time_s(program, costs.of(program.setup), steps=STEPS))
        except ProgramError:
            if verify(program).sound:
                raise
            return None, ops  # it gets stuck
        counts.append(count)
        ops += len(program.table)
    step_s = times[-1]
    if len(times) > 1:
        slope = (times[1] - times[0]) / (counts[1] - counts[0])
        step_s += slope * (setup.replicas[0].micro_batches - counts[1])
    return step_s, ops


def _made(strategy: Strategy, setup: Setup, choices: Choices, short: Setup) -> Program:
    """The program of a short form of a setup: lengthened, where that is the same."""
    known = short_form(strategy, setup, choices)
    count = short.replicas[0].micro_batches
    lengthened = known.of_micro_batches(count) if known is not None else None
    return lengthened or maker(strategy, choices)(short)


def shortened(strategy: Strategy, setup: Setup, rounds: int) -> Setup:
    """The setup with a few rounds of the pipeline's micro-batches, where the compute order says
    that its middle repeats. The last micro-batch ends in the slots where it ends in the whole
    setup: steps of other lengths differ in more than length."""
    skeleton = SKELETONS[strategy.skeleton]

    def fewer(replica: Replica) -> Replica:
        ranks, chunks = replica.ranks, len(replica.stages) // replica.ranks
        depth = ranks * 4 if skeleton.chunks else ranks + 3
        stride = skeleton.stride(ranks, chunks) or 1
        wanted = rounds * max(depth, 2 * stride)
        count = skeleton.shortened(replica.micro_batches, wanted, ranks, chunks)
        if (replica.micro_batches - count) % SLOTS:
            count = skeleton.shortened(replica.micro_batches, wanted + stride, ranks, chunks)
        return replace(replica, micro_batches=count)

    return replace(setup, replicas=tuple(fewer(replica) for replica in setup.replicas))


def only_over_budget(verdict: Verdict) -> bool:
    """Whether memory is all that is wrong."""
    return all(finding.rule is Rule.OVER_BUDGET for finding in verdict.findings)
