"""A schedule as written, checked: what is wrong with it, and how it runs under each rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ratrain.program.pipelining.buffers import Buffers, buffers_of
from ratrain.program.pipelining.cells import Act, Schedule
from ratrain.program.pipelining.findings import Finding, Wrong, of_action
from ratrain.program.pipelining.messages import Mail, crossings, mail_of
from ratrain.program.pipelining.queues import TIMES, Queueing, Run, ops_of, run
from ratrain.program.pipelining.stops import Stop, stop_of
from ratrain.program.pipelining.weights import GATHERS, findings_of_weights
from ratrain.program.pipelining.work import findings_of_work, work_of


@dataclass(frozen=True)
class Queued:
    """A schedule under one rule of how messages queue."""

    rule: Queueing
    findings: tuple[Finding, ...]
    """What is wrong under this rule, and would not be if messages did not queue."""
    stop: Stop | None
    step_time: float | None
    """Of one step, in the times given; None where it does not run to its end."""


@dataclass(frozen=True)
class Check:
    """What was found of a schedule."""

    schedule: Schedule
    findings: tuple[Finding, ...]
    """What is wrong whatever the rule."""
    queued: tuple[Queued, ...]
    """Under each rule, strictest first."""
    buffers: Buffers | None
    """None where work or messages are wrong."""
    unchecked: tuple[str, ...]
    """What the file does not say, or the model leaves out: not checked."""

    def findings_under(self, rules: Iterable[Queueing]) -> tuple[Finding, ...]:
        """What is wrong under any of these rules. One that several rules have is there once."""
        asked = tuple(rules)
        of_rules = (finding for q in self.queued if q.rule in asked for finding in q.findings)
        return tuple(dict.fromkeys((*self.findings, *of_rules)))

    def sound_under(self, rule: Queueing) -> bool:
        """Whether nothing is wrong under a rule."""
        return not self.findings_under((rule,))


def check(schedule: Schedule, times: Mapping[str, float] = TIMES) -> Check:
    """A schedule, checked under every rule. A `ProgramError` where its stages make no sense."""
    work, mail = work_of(schedule), mail_of(schedule)
    of_work = tuple(findings_of_work(schedule, work, mail))
    findings = (*of_work, *findings_of_weights(schedule))
    crossed = tuple(_crossed(mail))
    queued = tuple(
        _queued(schedule, mail, rule, times, () if rule is Queueing.FREE else crossed)
        for rule in Queueing
    )
    buffers = None if of_work else buffers_of(schedule, work, mail)
    return Check(schedule, findings, queued, buffers, tuple(_unchecked(schedule)))


def _queued(
    schedule: Schedule,
    mail: Mail,
    rule: Queueing,
    times: Mapping[str, float],
    crossed: tuple[Finding, ...],
) -> Queued:
    ran: Run = run(ops_of(schedule, mail, rule), times)
    stop = stop_of(ran, rule)
    if stop is None:
        return Queued(rule, crossed, None, None if ran.stops else ran.time)
    stuck = sum(end is None for end in ran.ended)
    first = stop.hops[0].waits
    words = f"is one of {stuck:,} actions that never run: " + "; ".join(stop.lines())
    return Queued(rule, (*crossed, of_action(Wrong.DEADLOCK, first, words)), stop, None)


def _crossed(mail: Mail) -> Iterator[Finding]:
    for received, sent in crossings(mail):
        assert received.receive is not None and sent.send is not None and sent.receive is not None
        source, target = received.ranks
        words = (
            f"is received before {sent.receive}, and {received.send} is sent after {sent.send}: a "
            f"queue from rank {source} to rank {target} brings the wrong one, or stops"
        )
        yield of_action(Wrong.CROSSED_ORDER, received.receive, words)


def _unchecked(schedule: Schedule) -> Iterator[str]:
    yield "memory, since no bytes were given"
    there = {action.act for action in schedule.actions}
    if not there & GATHERS:
        yield "gathers of weights, since there is no UNSHARD: they are taken to be there"
    if Act.REDUCE_GRAD not in there:
        yield "reductions of gradients, since there is no REDUCE_GRAD"
    if there & (GATHERS | {Act.REDUCE_GRAD}):
        yield "the time of gathers and reductions, and the other ranks that take part in them"
    yield "shapes and sizes of messages"
