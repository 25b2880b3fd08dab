"""Drafts of stages with members that differ from another by one change."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ratrain.plan.search.members import MembersDraft, MembersPart, MembersParts
from ratrain.plan.search.members_clock import MembersClock
from ratrain.plan.search.members_drafts import shares_of
from ratrain.plan.search.parts import layers_moved
from ratrain.plan.search.pools import Post, Shape, tensor_degrees
from ratrain.plan.search.stages import Stages

Makers = Callable[[int, int], MembersParts]
"""Who makes parts with micro-batches of a size, in drafts of so many parts."""
Stage = tuple[list[Post], list[Post]]
"""The members that compute, and those that only hold."""


def members_changed(
    stages: Stages, clock: MembersClock, makers: Makers, draft: MembersDraft
) -> Iterator[MembersDraft]:
    """Every draft one change away: a layer or a device in another stage; a device left idle or put
    to work; a tensor group divided, or two joined; half or twice the micro-batch."""
    yield from layers_changed(stages, clock, makers, draft)
    size = draft.parts[0].micro_batch
    maker = makers(size, len(draft.parts))
    for changed in _posts_changed(stages, draft):
        parts = {
            number: maker.made(_shapes(of_part, 0), holders=_shapes(of_part, 1))
            for number, of_part in changed.items()
        }
        yield from _with(stages, clock, draft, parts)
    for other in (size * 2, size // 2):
        if other > 0 and stages.job.batch.sequences % other == 0:
            maker = makers(other, len(draft.parts))
            parts = {
                number: maker.made(part.shapes, holders=part.holders, layers=part.layers)
                for number, part in enumerate(draft.parts)
            }
            yield from _with(stages, clock, draft, parts)


def layers_changed(
    stages: Stages, clock: MembersClock, makers: Makers, draft: MembersDraft
) -> Iterator[MembersDraft]:
    """Every draft with a layer in another stage."""
    maker = makers(draft.parts[0].micro_batch, len(draft.parts))
    for number, part in enumerate(draft.parts):
        for layers in layers_moved(part.layers):
            made = maker.made(part.shapes, holders=part.holders, layers=layers)
            yield from _with(stages, clock, draft, {number: made})


def _with(
    stages: Stages, clock: MembersClock, draft: MembersDraft, parts: dict[int, MembersPart | None]
) -> Iterator[MembersDraft]:
    """The draft with other parts in these places, and shares made anew."""
    made = [parts.get(number, part) for number, part in enumerate(draft.parts)]
    fitting = [part for part in made if part is not None]
    if len(fitting) < len(made) or not any(part.has_members for part in fitting):
        return
    batches = stages.job.batch.sequences // fitting[0].micro_batch
    shares = shares_of(fitting, batches)
    other = clock.draft(fitting, shares, draft.state) if shares is not None else None
    if other is not None:
        yield other


def _posts_changed(stages: Stages, draft: MembersDraft) -> Iterator[dict[int, list[Stage]]]:
    """The stages of each part that has other members."""
    places = [(n, s) for n, part in enumerate(draft.parts) for s in range(len(part.shapes))]
    used = draft.used(len(stages.pools))
    idle = [
        Post(pool, 1)
        for pool, (each, count) in enumerate(zip(stages.pools, used, strict=True))
        if count < len(each.devices)
    ]
    for n, s in places:
        for post in dict.fromkeys(draft.parts[n].shapes[s]):
            without = _edited(draft, (n, s), [post], [])
            if len(draft.parts[n].shapes[s]) > 1:
                yield without
                for target in places:
                    if target != (n, s):
                        yield without | _edited(draft, target, [], [post], without)
            yield from _regrouped(stages, draft, (n, s), post)
        for post in dict.fromkeys(draft.parts[n].holders[s]):
            yield _edited(draft, (n, s), [], [post], _edited(draft, (n, s), [post], [], None, 1))
        for post in idle:
            yield _edited(draft, (n, s), [], [post])
            if draft.state.sharding in (1, 2) and draft.parts[n].recovers:
                yield _edited(draft, (n, s), [], [post], None, 1)


def _regrouped(
    stages: Stages, draft: MembersDraft, place: tuple[int, int], post: Post
) -> Iterator[dict[int, list[Stage]]]:
    """A tensor group as two halves, and two as one."""
    degrees = tensor_degrees(stages.job, stages.pools[post.pool])
    half, twice = post.tensor // 2, post.tensor * 2
    if post.tensor % 2 == 0 and half in degrees:
        smaller = Post(post.pool, half, post.divided and half > 1)
        yield _edited(draft, place, [post], [smaller, smaller])
    members = draft.parts[place[0]].shapes[place[1]]
    if twice in degrees and members.count(post) > 1:
        yield _edited(draft, place, [post, post], [Post(post.pool, twice, draft.divided)])


def _edited(
    draft: MembersDraft,
    place: tuple[int, int],
    gone: list[Post],
    new: list[Post],
    begun: dict[int, list[Stage]] | None = None,
    sort: int = 0,
) -> dict[int, list[Stage]]:
    """A stage without some members and with others, beside what was `begun`; `sort`: 0 those that
    compute, 1 those that only hold."""
    number, stage = place
    part = draft.parts[number]
    before = (begun or {}).get(number) or [
        (list(computing), list(holding))
        for computing, holding in zip(part.shapes, part.holders, strict=True)
    ]
    of_part = [(list(computing), list(holding)) for computing, holding in before]
    for post in gone:
        of_part[stage][sort].remove(post)
    of_part[stage][sort].extend(new)
    of_part[stage][sort].sort()
    return {**(begun or {}), number: of_part}


def _shapes(of_part: list[Stage], sort: int) -> tuple[Shape, ...]:
    return tuple(tuple(stage[sort]) for stage in of_part)
