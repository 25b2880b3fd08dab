"""Moves of the search that put devices in other places: in stages of one member each, and among the
members of stages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.parts import layers_moved
from ratrain.plan.draft.pools import Post, Shape, tensor_degrees
from ratrain.plan.draft.space import Drafts, Side, Space, StageMembers, replaced, sides_of, sorts_of
from ratrain.plan.search.limits import MEMBERS_CUTS


def anew(space: Space, draft: Draft, changes: dict[int, list[Side]]) -> Draft | None:
    """Replicas replaced, and the batch shared out anew."""
    sides = [side._replace(share=None) for side in replaced(sides_of(draft), changes)]
    return space.draft(sides, draft.state)


def _fresh(shape: Shape, like: Side) -> Side:
    return Side(shape, like.micro_batch)


def two_replicas_joined(space: Space, draft: Draft) -> Drafts:
    """Two replicas as one pipeline; of sorts with as many each, all of them in pairs."""
    sides, sorts = sides_of(draft), sorts_of(draft)
    firsts = [place for same in sorts for place in same[:2]]
    for a, b in permutations(firsts, 2):
        yield anew(space, draft, {a: [_fresh(sides[a].shape + sides[b].shape, sides[a])], b: []})
    for first, second in product(sorts, sorts):
        pairs = list(zip(first, second, strict=False))
        if first is second:
            pairs = list(zip(first[::2], first[1::2], strict=False))
        if len(pairs) > 1 and (first is second or len(first) == len(second)):
            joined = {a: [_fresh(sides[a].shape + sides[b].shape, sides[a])] for a, b in pairs} | {
                b: [] for _, b in pairs
            }
            yield anew(space, draft, joined)


def a_replica_split(space: Space, draft: Draft) -> Drafts:
    """A pipeline as two replicas; all that are alike at once, too."""
    sides = sides_of(draft)
    for places in sorts_of(draft):
        side = sides[places[0]]
        for stage in range(1, len(side.shape)):
            halves = [_fresh(side.shape[:stage], side), _fresh(side.shape[stage:], side)]
            for some in (places[:1], places) if len(places) > 1 else (places,):
                yield anew(space, draft, dict.fromkeys(some, halves))


def a_stage_moved(space: Space, draft: Draft) -> Drafts:
    """A device or tensor group in another place of its pipeline, in another replica, as a replica
    of its own, or idle."""
    sides, firsts = sides_of(draft), [same[0] for same in sorts_of(draft)]
    seconds = [same[1] for same in sorts_of(draft) if len(same) > 1]
    for n in firsts:
        shape = sides[n].shape
        for stage, post in enumerate(shape):
            if stage and shape[stage - 1] == post:
                continue
            left = shape[:stage] + shape[stage + 1 :]
            rest = [_fresh(left, sides[n])] if left else []
            yield anew(space, draft, {n: rest})
            if left:
                yield anew(space, draft, {n: [*rest, _fresh((post,), sides[n])]})
            for target in (*firsts, *seconds):
                if target != n:
                    for longer in _with(sides[target].shape, post):
                        yield anew(space, draft, {n: rest, target: [_fresh(longer, sides[target])]})
            for longer in _with(left, post) if left else ():
                if longer != shape:
                    yield anew(space, draft, {n: [_fresh(longer, sides[n])]})


def _with(shape: Shape, post: Post) -> Iterator[Shape]:
    """A shape with one stage more, in every place."""
    for stage in range(len(shape) + 1):
        if stage == 0 or shape[stage - 1] != post:
            yield (*shape[:stage], post, *shape[stage:])


def two_stages_exchanged(space: Space, draft: Draft) -> Drafts:
    """Stages of two replicas in each other's place."""
    sides, firsts = sides_of(draft), [same[0] for same in sorts_of(draft)]
    for place, a in enumerate(firsts):
        for b in firsts[place + 1 :]:
            first, second = sides[a].shape, sides[b].shape
            seen: set[tuple[Shape, Shape]] = set()
            for i, j in product(range(len(first)), range(len(second))):
                if first[i] == second[j]:
                    continue
                shapes = (
                    (*first[:i], second[j], *first[i + 1 :]),
                    (*second[:j], first[i], *second[j + 1 :]),
                )
                if shapes not in seen:
                    seen.add(shapes)
                    one, other = (_fresh(s, sides[n]) for s, n in zip(shapes, (a, b), strict=True))
                    yield anew(space, draft, {a: [one], b: [other]})


def an_idle_device(space: Space, draft: Draft) -> Drafts:
    """A device that is idle, as a replica of its own or as a stage of another."""
    sides, firsts = sides_of(draft), [same[0] for same in sorts_of(draft)]
    used = [0] * len(space.counts)
    for side in sides:
        for post in side.shape:
            used[post.pool] += post.tensor
    for pool, (taken, count) in enumerate(zip(used, space.counts, strict=True)):
        if taken < count:
            post = Post(pool, 1)
            yield anew(space, draft, {0: [sides[0], _fresh((post,), sides[0])]})
            for n in firsts:
                for longer in _with(sides[n].shape, post):
                    yield anew(space, draft, {n: [_fresh(longer, sides[n])]})


def a_tensor_group(space: Space, draft: Draft) -> Drafts:
    """A tensor group as two of half its size, or two as one."""
    sides, sorts = sides_of(draft), sorts_of(draft)
    firsts = [same[0] for same in sorts]
    for places in sorts:
        n = places[0]
        shape = sides[n].shape
        for stage, post in enumerate(shape):
            degrees = tensor_degrees(space.stages.job, space.stages.pools[post.pool])
            half, twice = post.tensor // 2, post.tensor * 2
            if post.tensor % 2 == 0 and half in degrees:
                smaller = Post(post.pool, half, post.divided and half > 1)
                for several in ((smaller, smaller), (smaller,)):
                    split = (*shape[:stage], *several, *shape[stage + 1 :])
                    yield anew(space, draft, {n: [_fresh(split, sides[n])]})
                alone = [_fresh((*shape[:stage], smaller, *shape[stage + 1 :]), sides[n])]
                yield anew(space, draft, {n: [*alone, _fresh((smaller,), sides[n])]})
            if twice not in degrees:
                continue
            larger = Post(post.pool, twice, draft.divided)
            wide = _fresh((*shape[:stage], larger, *shape[stage + 1 :]), sides[n])
            yield anew(space, draft, {n: [wide]})
            if stage + 1 < len(shape) and shape[stage + 1] == post:
                joined = (*shape[:stage], larger, *shape[stage + 2 :])
                yield anew(space, draft, {n: [_fresh(joined, sides[n])]})
            for other in (*firsts, *places[1:2]):
                if other != n and post in sides[other].shape:
                    left = list(sides[other].shape)
                    left.remove(post)
                    rest = [_fresh(tuple(left), sides[other])] if left else []
                    yield anew(space, draft, {n: [wide], other: rest})
            if len(places) > 1:
                joined = {p: [wide] for p in places[::2]} | {p: list[Side]() for p in places[1::2]}
                if shape == (post,) and len(places) % 2 == 0:
                    yield anew(space, draft, joined)


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


def _joined_by(stage: StageMembers, post: Post) -> tuple[list[Post], list[Post]]:
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
