"""A check in words: lines of at most 80 columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from textwrap import fill

from ratrain.program.pipelining.check import Check, Queued
from ratrain.program.pipelining.findings import Finding, Wrong
from ratrain.program.pipelining.queues import Queueing

MOST_FINDINGS = 20
_FIRST = max(len(rule.words) for rule in Queueing) + 2


def lines_of(
    checked: Check, rules: Collection[Queueing], times: Mapping[str, float]
) -> Iterator[str]:
    """What a check found: what is wrong under these rules, how it runs under all of them, what
    was not checked, and the verdict."""
    schedule = checked.schedule
    numbers = (
        f"{len(schedule.rows):,} ranks, {schedule.stages:,} stages, {schedule.micro_batches:,} "
        f"micro-batches, {len(schedule.actions):,} actions; messages: as written"
    )
    yield from _filled(numbers)
    yield ""
    found = [f for f in checked.findings_under(rules) if f.wrong is not Wrong.DEADLOCK]
    for finding in found[:MOST_FINDINGS]:
        yield from _filled(f"{finding.wrong}: {finding.message}")
    if len(found) > MOST_FINDINGS:
        yield f"... and {len(found) - MOST_FINDINGS:,} more"
    yield from _stops(checked, rules)
    yield from [""] * bool(checked.findings_under(rules))
    yield from _table(checked, times)
    yield from _buffers(checked)
    yield ""
    for one in checked.unchecked:
        yield from _filled(f"not checked: {one}")
    yield from _filled(verdict_of(checked, rules))


def verdict_of(checked: Check, rules: Collection[Queueing]) -> str:
    """Whether it is sound under these rules, and under which it is."""
    sound = [rule for rule in Queueing if checked.sound_under(rule)]
    if len(sound) == len(Queueing):
        return "sound however a rank's messages queue"
    survived = f"sound if messages queue: {'; '.join(rule.words for rule in sound)}"
    if set(rules) <= set(sound):
        return survived
    return f"not sound; {survived}" if sound else "not sound"


def _filled(text: str) -> list[str]:
    return fill(text, 80, subsequent_indent="  ").splitlines()


def _stops(checked: Check, rules: Collection[Queueing]) -> Iterator[str]:
    """Where it stops, of the laxest rule first: what stops there stops under stricter ones too."""
    told: list[Queued] = []
    for queued in reversed(checked.queued):
        if queued.stop is None or queued.rule not in rules:
            continue
        like = next((other for other in told if _alike(other, queued)), None)
        if like is not None:
            yield f"{Wrong.DEADLOCK}: {queued.rule.words}: the same"
            continue
        told.append(queued)
        (finding,) = (f for f in queued.findings if f.wrong is Wrong.DEADLOCK)
        yield from _filled(f"{finding.wrong}: {queued.rule.words}: {_head(finding)}")
        for line in queued.stop.lines():
            yield from fill(line, 80, initial_indent="  - ", subsequent_indent="    ").splitlines()


def _head(finding: Finding) -> str:
    return finding.message.split(": ", 1)[0]


def _alike(one: Queued, other: Queued) -> bool:
    """Whether two rules stop at the same waits, for the same reasons or others."""
    if one.stop is None or other.stop is None:
        return False
    pairs = [[(hop.waits, hop.what) for hop in stop.hops] for stop in (one.stop, other.stop)]
    return pairs[0] == pairs[1]


def _table(checked: Check, times: Mapping[str, float]) -> Iterator[str]:
    """A row for each rule: whether it is sound, and its step."""
    free = checked.queued[-1].step_time
    yield f"{'messages queue':{_FIRST}}{'':10}{'step':>8}  longer than free"
    for queued in checked.queued:
        sound = "sound" if checked.sound_under(queued.rule) else "stops" if queued.stop else "wrong"
        row = f"{queued.rule.words:{_FIRST}}{sound:10}"
        if queued.step_time is not None and not checked.findings:
            row += f"{queued.step_time:8.2f}"
            if free and queued.step_time > free:
                row += f"  {queued.step_time / free - 1:.1%}".replace("%", " %")
        yield row.rstrip()
    said = ", ".join(f"{name} {time:g}" for name, time in times.items())
    yield from _filled(f"step: in units of {said}")


def _buffers(checked: Check) -> Iterator[str]:
    buffers = checked.buffers
    if buffers is None:
        return
    yield ""
    yield "receive buffers by rank"
    pools = (("a pool per stage and direction", buffers.by_stage), ("one pool", buffers.by_rank))
    for name, numbers in pools:
        each = ", ".join(map(str, numbers))
        yield from _filled(f"{name}: {each}; {sum(numbers):,} in all")
