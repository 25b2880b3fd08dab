"""Moves of the search that put devices in other places: in stages of one member each, and among the
members of stages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import permutations, product
from math import inf

from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.parts import layers_moved
from ratrain.plan.draft.pools import Pipeline, Post, Shape, StageMembers, tensor_degrees
from ratrain.plan.draft.space import Drafts, Side, Space, replaced, side_of, sides_of, sorts_of
from ratrain.plan.search.climb import climbed
from ratrain.plan.search.limits import MEMBERS_CUTS


def anew(space: Space, draft: Draft, changes: dict[int, list[Side]]) -> Draft | None:
    """Replicas replaced, and the batch shared out anew."""
    sides = [side._replace(share=None) for side in replaced(sides_of(draft), changes)]
    return space.draft(sides, draft.state)


def _fresh(members: Pipeline, like: Side) -> Side:
    return Side(members, like.micro_batch)


def two_replicas_joined(space: Space, draft: Draft) -> Drafts:
    """Two replicas as one pipeline; of sorts with as many each, all of them in pairs."""
    sides, sorts = sides_of(draft), sorts_of(draft)

    def joined(a: int, b: int) -> dict[int, list[Side]]:
        return {a: [_fresh(sides[a].members + sides[b].members, sides[a])], b: []}

    firsts = [place for same in sorts for place in same[:2]]
    for a, b in permutations(firsts, 2):
        yield anew(space, draft, joined(a, b))
    for first, second in product(sorts, sorts):
        pairs = list(zip(first, second, strict=False))
        if first is second:
            pairs = list(zip(first[::2], first[1::2], strict=False))
        if len(pairs) > 1 and (first is second or len(first) == len(second)):
            yield anew(space, draft, {n: of for a, b in pairs for n, of in joined(a, b).items()})


def a_replica_split(space: Space, draft: Draft) -> Drafts:
    """A pipeline as two replicas; all that are alike at once, too."""
    sides = sides_of(draft)
    for places in sorts_of(draft):
        side = sides[places[0]]
        for stage in range(1, len(side.members)):
            halves = [_fresh(side.members[:stage], side), _fresh(side.members[stage:], side)]
            for some in (places[:1], places) if len(places) > 1 else (places,):
                yield anew(space, draft, dict.fromkeys(some, halves))


def a_stage_moved(space: Space, draft: Draft) -> Drafts:
    """A device or tensor group in another place of its pipeline, in another replica, as a replica
    of its own, or idle."""
    sides, firsts = sides_of(draft), [same[0] for same in sorts_of(draft)]
    seconds = [same[1] for same in sorts_of(draft) if len(same) > 1]
    for n in firsts:
        members = sides[n].members
        for place, stage in enumerate(members):
            if place and members[place - 1] == stage:
                continue
            left = members[:place] + members[place + 1 :]
            rest = [_fresh(left, sides[n])] if left else []
            yield anew(space, draft, {n: rest})
            if left:
                yield anew(space, draft, {n: [*rest, _fresh((stage,), sides[n])]})
            for target in (*firsts, *seconds):
                if target != n:
                    for longer in _with(sides[target].members, stage):
                        yield anew(space, draft, {n: rest, target: [_fresh(longer, sides[target])]})
            for longer in _with(left, stage) if left else ():
                if longer != members:
                    yield anew(space, draft, {n: [_fresh(longer, sides[n])]})


def _with(members: Pipeline, stage: StageMembers) -> Iterator[Pipeline]:
    """A pipeline with one stage more, in every place."""
    for place in range(len(members) + 1):
        if place == 0 or members[place - 1] != stage:
            yield (*members[:place], stage, *members[place:])


def two_stages_exchanged(space: Space, draft: Draft) -> Drafts:
    """Stages of two replicas in each other's place."""
    sides, firsts = sides_of(draft), [same[0] for same in sorts_of(draft)]
    for place, a in enumerate(firsts):
        for b in firsts[place + 1 :]:
            first, second = sides[a].members, sides[b].members
            seen: set[tuple[Pipeline, Pipeline]] = set()
            for i, j in product(range(len(first)), range(len(second))):
                if first[i] == second[j]:
                    continue
                exchanged = (
                    (*first[:i], second[j], *first[i + 1 :]),
                    (*second[:j], first[i], *second[j + 1 :]),
                )
                if exchanged not in seen:
                    seen.add(exchanged)
                    one, other = (
                        _fresh(of, sides[n]) for of, n in zip(exchanged, (a, b), strict=True)
                    )
                    yield anew(space, draft, {a: [one], b: [other]})


def an_idle_device(space: Space, draft: Draft) -> Drafts:
    """A device that is idle, as a replica of its own or as a stage of another."""
    sides, firsts = sides_of(draft), [same[0] for same in sorts_of(draft)]
    used = draft.used(len(space.counts))
    for pool, (taken, count) in enumerate(zip(used, space.counts, strict=True)):
        if taken < count:
            stage = StageMembers((Post(pool, 1),))
            yield anew(space, draft, {0: [sides[0], _fresh((stage,), sides[0])]})
            for n in firsts:
                for longer in _with(sides[n].members, stage):
                    yield anew(space, draft, {n: [_fresh(longer, sides[n])]})


def a_tensor_group(space: Space, draft: Draft) -> Drafts:
    """A tensor group as two of half its size, or two as one."""
    sides, sorts = sides_of(draft), sorts_of(draft)
    firsts = [same[0] for same in sorts]
    for places in sorts:
        n = places[0]
        shape = sides[n].shape

        def changed(shape: Shape, like: Side = sides[n]) -> Side:
            return side_of(shape, like.micro_batch)

        for stage, post in enumerate(shape):
            smaller, larger = sized(space, post, post.divided), sized(space, post, draft.divided, 2)
            if smaller is not None:
                for several in ((smaller, smaller), (smaller,)):
                    split = (*shape[:stage], *several, *shape[stage + 1 :])
                    yield anew(space, draft, {n: [changed(split)]})
                alone = [changed((*shape[:stage], smaller, *shape[stage + 1 :]))]
                yield anew(space, draft, {n: [*alone, changed((smaller,))]})
            if larger is None:
                continue
            wide = changed((*shape[:stage], larger, *shape[stage + 1 :]))
            yield anew(space, draft, {n: [wide]})
            if stage + 1 < len(shape) and shape[stage + 1] == post:
                yield anew(
                    space, draft, {n: [changed((*shape[:stage], larger, *shape[stage + 2 :]))]}
                )
            for other in (*firsts, *places[1:2]):
                if other != n and post in sides[other].shape:
                    left = list(sides[other].shape)
                    left.remove(post)
                    rest = [changed(tuple(left), sides[other])] if left else []
                    yield anew(space, draft, {n: [wide], other: rest})
            if shape == (post,) and len(places) > 1 and len(places) % 2 == 0:
                joined = {p: [wide] for p in places[::2]} | {p: list[Side]() for p in places[1::2]}
                yield anew(space, draft, joined)


def sized(space: Space, post: Post, divided: bool, twice: int = 0) -> Post | None:
    """A tensor group of half the size, or twice; None where there is none."""
    tensor = post.tensor * 2 if twice else post.tensor / 2
    if tensor not in tensor_degrees(space.stages.job, space.stages.pools[post.pool]):
        return None
    return Post(post.pool, int(tensor), divided and tensor > 1)


Place = tuple[int, int]
"""A replica, and a stage of it."""
Edits = dict[Place, tuple[list[Post], list[Post]]]
"""Of each stage that is changed the members that compute, and those that only hold it."""


def best_members_cuts(space: Space, draft: Draft) -> Drafts:
    """Layers moved one by one as long as that gains, at the grain of stages."""

    def time_s(here: Draft) -> float:
        return space.clock.step_s(here) or inf

    near = partial(_layers_moved, space)
    return climbed(draft, near, time_s, rounds=MEMBERS_CUTS, gain=0.0)


def _layers_moved(space: Space, draft: Draft) -> Iterator[Draft]:
    sides = [side._replace(share=None) for side in sides_of(draft)]
    for number, part in enumerate(draft.parts):
        for layers in layers_moved(part.layers):
            other = sides[number]._replace(layers=layers)
            made = space.draft([*sides[:number], other, *sides[number + 1 :]], draft.state)
            if made is not None:
                yield made


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
                    more = _joined_by(stages[target], post)
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
            yield _edited(space, draft, {place: _joined_by(stage, post)})
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
            smaller, larger = sized(space, post, post.divided), sized(space, post, draft.divided, 2)
            if smaller is not None:
                left, holding = _without(stages[place], post)
                yield _edited(space, draft, {place: ([*left, smaller, smaller], holding)})
            if larger is not None and computing.count(post) > 1:
                left, holding = _without(stages[place], post, post)
                yield _edited(space, draft, {place: ([*left, larger], holding)})


def _places(draft: Draft) -> tuple[list[Place], dict[Place, StageMembers]]:
    """Every stage, and its members."""
    stages = {
        (number, stage): members
        for number, side in enumerate(sides_of(draft))
        for stage, members in enumerate(side.members)
    }
    return list(stages), stages


def _without(stage: StageMembers, *posts: Post) -> tuple[list[Post], list[Post]]:
    left = list(stage.computing)
    for post in posts:
        left.remove(post)
    return left, list(stage.holding)


def _joined_by(stage: StageMembers, post: Post) -> tuple[list[Post], list[Post]]:
    return [*stage.computing, post], list(stage.holding)


def _edited(space: Space, draft: Draft, edits: Edits) -> Draft | None:
    """The draft with other members in these stages."""
    changes: dict[int, list[Side]] = {}
    for number, side in enumerate(sides_of(draft)):
        if any(place[0] == number for place in edits):
            changes[number] = [_fresh(tuple(_edits_of(side, number, edits)), side)]
    return anew(space, draft, changes)


def _edits_of(side: Side, number: int, edits: Edits) -> Iterator[StageMembers]:
    for stage, members in enumerate(side.members):
        computing, holding = edits.get((number, stage), members)
        yield StageMembers(tuple(sorted(computing)), tuple(sorted(holding)))
