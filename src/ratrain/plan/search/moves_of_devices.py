"""Moves of the search that put devices in other places: in another stage, in a stage or a replica
of their own, beside others as a member, or idle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations, product

from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.pools import Pipeline, Post, StageMembers, tensor_degrees
from ratrain.plan.draft.space import Drafts, Side, Space, sides_of, sorts_of

Pipelines = list[Pipeline]
"""Of each replica; an empty one where it is no more; new ones behind."""
Place = tuple[int, int]
"""A replica, and a stage of it."""


def anew(space: Space, draft: Draft, pipelines: Sequence[Pipeline], like: int = 0) -> Draft | None:
    """The replicas of a draft with other pipelines, and the batch shared out anew. `like`: whose
    micro-batch new ones have. Where nobody shared states, in the first way in which it fits."""
    sides = sides_of(draft)
    made = [
        side._replace(share=None) if members == side.members else Side(members, side.micro_batch)
        for members, side in zip(pipelines, sides, strict=False)
    ]
    made += [Side(members, sides[like].micro_batch) for members in pipelines[len(sides) :]]
    used = [side for side in made if side.members]
    states = [draft.state] if draft.shares_states else space.states
    return next(filter(None, (space.draft(used, state) for state in states)), None)


def _pipelines(draft: Draft) -> tuple[Pipelines, list[list[int]], list[int]]:
    """Those of a draft; the places of replicas that are alike; two at most of each sort."""
    sorts = sorts_of(draft)
    few = [place for same in sorts for place in same[:2]]
    return [part.members for part in draft.parts], sorts, few


def _with(pipelines: Pipelines, *changes: tuple[int, Pipeline]) -> Pipelines:
    changed = list(pipelines)
    for number, members in changes:
        changed[number] = members
    return changed


def two_replicas_joined(space: Space, draft: Draft) -> Drafts:
    """Two replicas as one pipeline; of sorts with as many each, all of them in pairs."""
    pipelines, sorts, few = _pipelines(draft)

    def joined(pairs: Sequence[tuple[int, int]]) -> Draft | None:
        changes = [
            change for a, b in pairs for change in ((a, pipelines[a] + pipelines[b]), (b, ()))
        ]
        return anew(space, draft, _with(pipelines, *changes))

    for pair in permutations(few, 2):
        yield joined([pair])
    for first, second in product(sorts, sorts):
        pairs = list(zip(first, second, strict=False))
        if first is second:
            pairs = list(zip(first[::2], first[1::2], strict=False))
        if len(pairs) > 1 and (first is second or len(first) == len(second)):
            yield joined(pairs)


def a_replica_split(space: Space, draft: Draft) -> Drafts:
    """A pipeline as two replicas; all that are alike at once, too."""
    pipelines, sorts, _ = _pipelines(draft)
    for places in sorts:
        members = pipelines[places[0]]
        for stage in range(1, len(members)):
            for some in (places[:1], places) if len(places) > 1 else (places,):
                halved = _with(pipelines, *((place, members[:stage]) for place in some))
                yield anew(space, draft, [*halved, *[members[stage:]] * len(some)], places[0])


def two_stages_exchanged(space: Space, draft: Draft) -> Drafts:
    """Stages of two replicas in each other's place."""
    pipelines, sorts, _ = _pipelines(draft)
    for a, b in combinations([same[0] for same in sorts], 2):
        first, second, seen = pipelines[a], pipelines[b], set[tuple[Pipeline, Pipeline]]()
        for i, j in product(range(len(first)), range(len(second))):
            exchanged = (
                (*first[:i], second[j], *first[i + 1 :]),
                (*second[:j], first[i], *second[j + 1 :]),
            )
            if first[i] != second[j] and exchanged not in seen:
                seen.add(exchanged)
                yield anew(space, draft, _with(pipelines, *zip((a, b), exchanged, strict=True)))


def stages_as_members(space: Space, draft: Draft) -> Drafts:
    """Two neighbouring stages, or each stage of two replicas of equal depth, as members of one."""
    if not space.may_have_members:
        return
    pipelines, _, few = _pipelines(draft)
    for n in few:
        members = pipelines[n]
        for s, (here, there) in enumerate(pairwise(members) if len(members) > 2 else ()):
            both = _members((*here.computing, *there.computing), here.holding + there.holding)
            yield anew(space, draft, _with(pipelines, (n, (*members[:s], both, *members[s + 2 :]))))
    for a, b in combinations(few, 2):
        if len(pipelines[a]) == len(pipelines[b]) > 1:
            both = tuple(
                _members(here.computing + there.computing, here.holding + there.holding)
                for here, there in zip(pipelines[a], pipelines[b], strict=True)
            )
            yield anew(space, draft, _with(pipelines, (a, both), (b, ())))


def a_device_moved(space: Space, draft: Draft) -> Drafts:
    """A device or tensor group in another place, or idle; one that only holds its stage put to
    work."""
    pipelines, _, _ = _pipelines(draft)
    for (n, s), stage in _stages(draft):
        for post in dict.fromkeys(stage.computing):
            left = _swapped(pipelines, (n, s), [post], [])
            yield anew(space, draft, left)
            for made in _put(space, left, post):
                yield anew(space, draft, made, n)
        for post in dict.fromkeys(stage.holding):
            holding = list(stage.holding)
            holding.remove(post)
            at_work = _members((*stage.computing, post), tuple(holding))
            yield anew(space, draft, _with(pipelines, (n, _replaced(pipelines[n], s, (at_work,)))))


def an_idle_device(space: Space, draft: Draft) -> Drafts:
    """A device that is idle put to work; where memory is short, as one that only holds a stage."""
    pipelines, _, _ = _pipelines(draft)
    used = draft.used(len(space.counts))
    shares = draft.state.sharding in (1, 2) and space.may_have_members
    for pool, (taken, count) in enumerate(zip(used, space.counts, strict=True)):
        if taken == count:
            continue
        for made in _put(space, pipelines, Post(pool, 1)):
            yield anew(space, draft, made)
        for (n, s), stage in _stages(draft):
            if shares and any(mode.again for mode in draft.parts[n].recovery):
                held = _members(stage.computing, (*stage.holding, Post(pool, 1)))
                yield anew(space, draft, _with(pipelines, (n, _replaced(pipelines[n], s, (held,)))))


def a_tensor_group(space: Space, draft: Draft) -> Drafts:
    """A tensor group as two of half its size, or two as one."""
    pipelines, sorts, _ = _pipelines(draft)
    for place, stage in _stages(draft):
        n, s = place
        for post in dict.fromkeys(stage.computing):
            smaller, larger = sized(space, post, post.divided), sized(space, post, draft.divided, 2)
            if smaller is not None:
                half, alone = _swapped(pipelines, place, [post], [smaller]), _members((smaller,))
                behind = (*half[n][: s + 1], alone, *half[n][s + 1 :])
                yield anew(space, draft, half)
                yield anew(space, draft, _with(half, (n, behind)))
                yield anew(space, draft, [*half, (alone,)], n)
                if space.may_have_members:
                    yield anew(space, draft, _swapped(pipelines, place, [post], [smaller, smaller]))
            if larger is None:
                continue
            wide = _swapped(pipelines, place, [post], [larger])
            yield anew(space, draft, wide)
            if stage.computing.count(post) > 1:
                yield anew(space, draft, _swapped(pipelines, place, [post, post], [larger]))
            for other, beside in _stages(draft, twice=True):
                if other != place and post in beside.computing:
                    yield anew(space, draft, _swapped(wide, other, [post], []))
    for places in sorts:  # all that are alike in pairs
        (stage, *further), several = pipelines[places[0]], len(places)
        larger = sized(space, stage.computing[0], draft.divided, 2)
        if larger is None or further or len(stage.posts) > 1 or several < 2 or several % 2:
            continue
        pairs = [(p, (_members((larger,)),)) for p in places[::2]]
        yield anew(space, draft, _with(pipelines, *pairs, *((p, ()) for p in places[1::2])))


def sized(space: Space, post: Post, divided: bool, twice: int = 0) -> Post | None:
    """A tensor group of half the size, or twice; None where there is none."""
    tensor = post.tensor * 2 if twice else post.tensor / 2
    if tensor not in tensor_degrees(space.stages.job, space.stages.pools[post.pool]):
        return None
    return Post(post.pool, int(tensor), divided and tensor > 1)


def _members(computing: Sequence[Post], holding: Sequence[Post] = ()) -> StageMembers:
    return StageMembers(tuple(sorted(computing)), tuple(sorted(holding)))


def _replaced(members: Pipeline, stage: int, by: Pipeline) -> Pipeline:
    return (*members[:stage], *by, *members[stage + 1 :])


def _stages(draft: Draft, *, twice: bool = False) -> Iterator[tuple[Place, StageMembers]]:
    """Every stage that is not as the one before it, of a replica of each sort; `twice`: and of
    another one like it."""
    for same in sorts_of(draft):
        for number in same[: 1 + twice]:
            members = draft.parts[number].members
            for stage, posts in enumerate(members):
                if not stage or members[stage - 1] != posts or twice:
                    yield (number, stage), posts


def _swapped(
    pipelines: Pipelines, place: Place, old: Sequence[Post], new: Sequence[Post]
) -> Pipelines:
    """The pipelines with other members in a stage, without it where none is left."""
    number, stage = place
    members = pipelines[number]
    computing = list(members[stage].computing)
    for post in old:
        computing.remove(post)
    computing += new
    left = (_members(computing, members[stage].holding),) if computing else ()
    return _with(pipelines, (number, _replaced(members, stage, left)))


def _put(space: Space, pipelines: Pipelines, post: Post) -> Iterator[Pipelines]:
    """The pipelines with a post more: as a replica, as a stage of another one, beside others in a
    stage."""
    alone = _members((post,))
    yield [*pipelines, (alone,)]
    for number, members in enumerate(pipelines):
        if not members or members in pipelines[:number]:
            continue
        for s in range(len(members) + 1):
            if s == 0 or members[s - 1] != alone:
                yield _with(pipelines, (number, (*members[:s], alone, *members[s:])))
        for s, stage in enumerate(members if space.may_have_members and len(members) > 1 else ()):
            both = _members((*stage.computing, post), stage.holding)
            yield _with(pipelines, (number, _replaced(members, s, (both,))))
