"""Moves of the search among members of stages: one in another place, joined, divided, added."""

from __future__ import annotations

from collections.abc import Iterator

from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.parts import layers_moved
from ratrain.plan.draft.pools import Post, tensor_degrees
from ratrain.plan.draft.space import Drafts, Side, Space, StageMembers, sides_of
from ratrain.plan.search.limits import MEMBERS_CUTS
from ratrain.plan.search.moves_of_devices import anew

Place = tuple[int, int]
"""A replica, and a stage of it."""
Edits = dict[Place, tuple[list[Post], list[Post]]]
"""Of each stage that is changed the members that compute, and those that only hold it."""


def best_members_cuts(space: Space, draft: Draft) -> Drafts:
    """Layers moved one by one as long as that gains."""
    here = draft
    for _ in range(MEMBERS_CUTS):
        near = filter(None, _layers_moved(space, here))
        other = min(near, key=lambda near_draft: near_draft.estimate_s, default=here)
        if other.estimate_s >= here.estimate_s:
            return
        here = other
        yield here


def _layers_moved(space: Space, draft: Draft) -> Drafts:
    sides = [side._replace(share=None) for side in sides_of(draft)]
    for number, part in enumerate(draft.parts):
        for layers in layers_moved(part.layers):
            other = sides[number]._replace(layers=layers)
            yield space.draft([*sides[:number], other, *sides[number + 1 :]], draft.state)


def a_member_moved(space: Space, draft: Draft) -> Drafts:
    """A member in another stage, or idle."""
    places, stages = _places(draft)
    for place in places:
        computing = stages[place].computing
        for post in dict.fromkeys(computing) if len(computing) > 1 else ():
            left = _without(stages[place], post)
            yield _edited(space, draft, {place: left})
            for target in places:
                if target != place:
                    more = _with(stages[target], post)
                    yield _edited(space, draft, {place: left, target: more})
        for post in dict.fromkeys(stages[place].holding):
            holding = list(stages[place].holding)
            holding.remove(post)
            yield _edited(space, draft, {place: ([*computing, post], holding)})


def an_idle_device_as_member(space: Space, draft: Draft) -> Drafts:
    """An idle device as a member of a stage; where memory is short, as one that only holds it."""
    places, stages = _places(draft)
    used = draft.used(len(space.counts))
    for pool, (taken, count) in enumerate(zip(used, space.counts, strict=True)):
        for place in places if taken < count else ():
            post, stage = Post(pool, 1), stages[place]
            yield _edited(space, draft, {place: _with(stage, post)})
            recovers = any(mode.again for mode in draft.parts[place[0]].recovery)
            if draft.state.sharding in (1, 2) and recovers:
                holding = [*stage.holding, post]
                yield _edited(space, draft, {place: (list(stage.computing), holding)})


def a_members_tensor_group(space: Space, draft: Draft) -> Drafts:
    """A tensor group among members as two of half its size, or two as one."""
    places, stages = _places(draft)
    for place in places:
        computing = stages[place].computing
        for post in dict.fromkeys(computing):
            degrees = tensor_degrees(space.stages.job, space.stages.pools[post.pool])
            half, twice = post.tensor // 2, post.tensor * 2
            if post.tensor % 2 == 0 and half in degrees:
                smaller = Post(post.pool, half, post.divided and half > 1)
                left, holding = _without(stages[place], post)
                yield _edited(space, draft, {place: ([*left, smaller, smaller], holding)})
            if twice in degrees and computing.count(post) > 1:
                left, holding = _without(stages[place], post, post)
                larger = Post(post.pool, twice, draft.divided)
                yield _edited(space, draft, {place: ([*left, larger], holding)})


def _places(draft: Draft) -> tuple[list[Place], dict[Place, StageMembers]]:
    """Every stage, and its members."""
    stages = {
        (number, stage): members
        for number, side in enumerate(sides_of(draft))
        for stage, members in enumerate(_members_of(side))
    }
    return list(stages), stages


def _members_of(side: Side) -> tuple[StageMembers, ...]:
    return side.stages or tuple(StageMembers((post,)) for post in side.shape)


def _without(stage: StageMembers, *posts: Post) -> tuple[list[Post], list[Post]]:
    left = list(stage.computing)
    for post in posts:
        left.remove(post)
    return left, list(stage.holding)


def _with(stage: StageMembers, post: Post) -> tuple[list[Post], list[Post]]:
    return [*stage.computing, post], list(stage.holding)


def _edited(space: Space, draft: Draft, edits: Edits) -> Draft | None:
    """The draft with other members in these stages."""
    changes: dict[int, list[Side]] = {}
    for number, side in enumerate(sides_of(draft)):
        stages = tuple(_edits_of(side, number, edits))
        if any(place[0] == number for place in edits):
            changes[number] = [Side((), side.micro_batch, stages=stages)]
    return anew(space, draft, changes)


def _edits_of(side: Side, number: int, edits: Edits) -> Iterator[StageMembers]:
    for stage, members in enumerate(_members_of(side)):
        computing, holding = edits.get((number, stage), members)
        yield StageMembers(tuple(sorted(computing)), tuple(sorted(holding)))
