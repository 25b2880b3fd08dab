"""What is wrong with the work and its messages, however messages queue.

Each stage computes each micro-batch once forward and, if any is, once backward (B, or I and W), in
that order. What a stage needs of a stage on another rank has been received, in its row, before;
what it makes for one is sent after. Between stages of one rank nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ratrain.program.pipelining.cells import Act, Action, Schedule, steps_of
from ratrain.program.pipelining.findings import Finding, Wrong, of_action
from ratrain.program.pipelining.messages import Mail, Message, Name, passes

Turns = dict[tuple[int, int], list[Action]]
"""The actions of each stage and micro-batch."""


@dataclass(frozen=True)
class Work:
    """The compute of a schedule by what it makes: outputs, gradients of inputs (by B or I), and
    gradients of weights (by B or W)."""

    forward: Turns
    backward: Turns
    weights: Turns

    def maker(self, name: Name) -> Action | None:
        """What makes a message, None where nothing does."""
        made = self.forward if name.forward else self.backward
        return next(iter(made.get((name.source, name.micro_batch), ())), None)


def work_of(schedule: Schedule) -> Work:
    """The compute of a schedule."""
    work = Work({}, {}, {})
    for action in schedule.actions:
        key = action.stage, action.micro_batch
        for step in steps_of(action):
            if step is Act.FORWARD:
                work.forward.setdefault(key, []).append(action)
            if step in (Act.BACKWARD, Act.INPUT):
                work.backward.setdefault(key, []).append(action)
            if step in (Act.BACKWARD, Act.WEIGHTS):
                work.weights.setdefault(key, []).append(action)
    return work


def findings_of_work(schedule: Schedule, work: Work, mail: Mail) -> Iterator[Finding]:
    """Everything that is wrong with compute and messages."""
    yield from _missing(schedule, work)
    for stage, micro_batch in sorted({*work.forward, *work.backward, *work.weights}):
        yield from _of_compute(work, stage, micro_batch)
        yield from _of_input(schedule, work, mail, stage, micro_batch, forward=True)
        yield from _of_input(schedule, work, mail, stage, micro_batch, forward=False)
    for messages in mail.by_name.values():
        yield from _of_messages(work, messages)
    for action in mail.strays:
        yield _of_stray(schedule, action)


# ---- compute ----------------------------------------------------------------------------


def _missing(schedule: Schedule, work: Work) -> Iterator[Finding]:
    """What stages leave out."""
    turns = work.forward, {**work.backward, **work.weights}
    made = [_of_stages(of_turns, schedule.stages) for of_turns in turns]
    for stage, rank in enumerate(schedule.rank_of):
        forward, backward = (of_stages[stage] for of_stages in made)
        yield from _left_out(schedule, Wrong.MISSING_FORWARD, rank, f"{stage}F", forward)
        if work.backward or work.weights:  # else forward alone
            yield from _left_out(schedule, Wrong.MISSING_BACKWARD, rank, f"{stage}B", backward)


def _of_stages(turns: Turns, stages: int) -> list[set[int]]:
    """The micro-batches of each stage."""
    found: list[set[int]] = [set() for _ in range(stages)]
    for stage, micro_batch in turns:
        found[stage].add(micro_batch)
    return found


def _left_out(
    schedule: Schedule, wrong: Wrong, rank: int, what: str, made: set[int]
) -> Iterator[Finding]:
    """The micro-batches that are not made, in one finding: there may be very many."""
    number = schedule.micro_batches - len(made)
    if number:
        first = next(m for m in range(schedule.micro_batches) if m not in made)
        others = f", nor that of {number - 1:,} other micro-batches" if number > 1 else ""
        yield Finding(wrong, f"row {rank + 1} has no {what}{first}{others}", rank)


def _of_compute(work: Work, stage: int, micro_batch: int) -> Iterator[Finding]:
    """Of one stage and micro-batch: each once, and in order."""
    forward, backward, weights = (
        made.get((stage, micro_batch), []) for made in (work.forward, work.backward, work.weights)
    )
    seen: set[Action] = set()
    for made in (forward, backward, weights):
        for again in made[1:]:
            if again not in seen:
                seen.add(again)
                yield of_action(Wrong.DOUBLE_COMPUTE, again, f"is computed by {made[0]} too")
    if bool(backward) != bool(weights):
        there, lacks = (backward[0], "W") if backward else (weights[0], "I")
        words = f"is there, and {stage}{lacks}{micro_batch} is not"
        yield of_action(Wrong.MISSING_BACKWARD, there, words)
    if forward and backward and _before(backward[0], forward[0]):
        words = f"comes before its forward, {forward[0]}"
        yield of_action(Wrong.BACKWARD_BEFORE_FORWARD, backward[0], words)
    if backward and weights and _before(weights[0], backward[0]):
        words = f"comes before {backward[0]}, which makes what it needs"
        yield of_action(Wrong.WEIGHTS_BEFORE_INPUT, weights[0], words)


def _before(first: Action, second: Action) -> bool:
    return first.turn < second.turn


# ---- what compute needs of other stages -------------------------------------------------


def _of_input(
    schedule: Schedule, work: Work, mail: Mail, stage: int, micro_batch: int, *, forward: bool
) -> Iterator[Finding]:
    taken = (work.forward if forward else work.backward).get((stage, micro_batch))
    name = Name(forward, stage + (-1 if forward else 1), micro_batch)
    if not taken or not 0 <= name.source < schedule.stages:
        return
    taker = taken[0]
    if not passes(schedule, name):
        maker = work.maker(name)
        if maker is not None and _before(taker, maker):
            words = f"comes before {maker}, which makes what it needs"
            yield of_action(Wrong.COMPUTE_BEFORE_INPUT, taker, words)
        return
    messages = mail.by_name.get(name, [])
    receive = next((m.receive for m in messages if m.receive is not None), None)
    if receive is not None and _before(taker, receive):
        words = f"comes before {receive}, which brings what it needs"
        yield of_action(Wrong.COMPUTE_BEFORE_RECEIVE, taker, words)
    if not messages:
        words = f"needs {name.receive}, and there is neither that nor {name.send}"
        yield of_action(Wrong.MISSING_MESSAGE, taker, words)


# ---- messages ---------------------------------------------------------------------------


def _of_messages(work: Work, messages: list[Message]) -> Iterator[Finding]:
    """What is wrong with the messages of one name."""
    first, *others = messages
    if first.send is None and first.receive is not None:
        words = f"waits for a send that is not there: {first.name.send}"
        yield of_action(Wrong.MISSING_SEND, first.receive, words)
    if first.receive is None and first.send is not None:
        words = f"waits for a receive that is not there: {first.name.receive}"
        yield of_action(Wrong.MISSING_RECEIVE, first.send, words)
    if first.send is not None:
        maker = work.maker(first.name)
        if maker is None:
            words = "sends what nothing makes"
            yield of_action(Wrong.SEND_BEFORE_COMPUTE, first.send, words)
        elif _before(first.send, maker):
            words = f"comes before {maker}, which makes what it sends"
            yield of_action(Wrong.SEND_BEFORE_COMPUTE, first.send, words)
    for message in others:
        for end, before in ((message.send, first.send), (message.receive, first.receive)):
            if end is not None:
                yield of_action(Wrong.DOUBLE_MESSAGE, end, f"is there before: {before}")


def _of_stray(schedule: Schedule, action: Action) -> Finding:
    stages, rank_of = schedule.stages, schedule.rank_of
    if action.stage < stages and rank_of[action.stage] != action.rank:
        words = (
            f"is on rank {action.rank}, and stage {action.stage} on rank {rank_of[action.stage]}"
        )
        return of_action(Wrong.WRONG_RANK, action, words)
    forward = action.act in (Act.SEND_F, Act.RECV_F)
    upwards = forward == (action.act in (Act.SEND_F, Act.SEND_B))
    neighbour = action.stage + (1 if upwards else -1)
    if not 0 <= action.stage < stages or not 0 <= neighbour < stages:
        words = f"names a stage that is not there; there are {stages}"
    elif rank_of[neighbour] == rank_of[action.stage]:
        words = f"is to or from its own rank, which has stages {action.stage} and {neighbour}"
    else:
        words = f"names a micro-batch that nothing computes; there are {schedule.micro_batches}"
    return of_action(Wrong.NO_SUCH_MESSAGE, action, words)
