"""The moves of the search: each makes of a draft those that differ from it in one thing.

A move is declared by its name, here or in a file of your own (docs/how-to/extending.md). It yields
drafts, or None in place of one that cannot be; the search prices what comes, and keeps the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, permutations, product
from math import gcd

from ratrain.plan.search.aligned import cut_alike, moved_alike
from ratrain.plan.search.draft import Draft
from ratrain.plan.search.parts import recut
from ratrain.plan.search.pools import Post, Shape, divisions_of, in_division, tensor_degrees
from ratrain.plan.search.shares import best_shares, in_best_sizes
from ratrain.plan.search.space import Side, Space, replaced, sides_of, sorts_of
from ratrain.plugins import Registry

MOST_STAGES, FULLEST = 16, 6
"""Stages up to which any gives a layer to any; of more, so many give and so many take."""

Drafts = Iterator[Draft | None]


@dataclass(frozen=True)
class Move:
    """`words`: what it changes, as `explain` says it. `polishes`: it makes the best of what a
    draft leaves open, whatever its estimate says of that, and is tried first."""

    words: str
    changes: Callable[[Space, Draft], Drafts]
    polishes: bool = False


@dataclass(frozen=True)
class MoveTried:
    """What a move would make of a plan: how many drafts, and the step of the fastest, at the grain
    of stages; None where it makes none that fits. `step_s`: the plan's own, timed so."""

    name: str
    words: str
    drafts: int
    best_s: float | None
    step_s: float


MOVES: Registry[Move] = Registry("move")


def declare_move(name: str, move: Move) -> None:
    """Lets the search try it."""
    MOVES.declare(name, move)


def changed(space: Space, draft: Draft, *, polishing: bool = False) -> Iterator[Draft]:
    """Every draft one move away: of those moves that polish, or of the others."""
    for move in MOVES.values():
        if move.polishes is polishing:
            yield from filter(None, move.changes(space, draft))


# ---- the work of replicas that stay where they are ---------------------------------------------


def a_micro_batch(space: Space, draft: Draft) -> Drafts:
    """A micro-batch of one replica given to another; as many of all alike ones given to all of
    another sort as comes out even."""
    sides, sorts = sides_of(draft), sorts_of(draft)
    for source, target in permutations([place for same in sorts for place in same[:2]], 2):
        if sides[source].micro_batch == sides[target].micro_batch:
            yield space.draft(_given(sides, {source: -1, target: 1}), draft.state)
    for givers, takers in permutations(sorts, 2):
        few = gcd(len(givers), len(takers))
        given, taken = len(takers) // few, len(givers) // few
        if sides[givers[0]].micro_batch == sides[takers[0]].micro_batch and given + taken > 2:
            moved = dict.fromkeys(givers, -given) | dict.fromkeys(takers, taken)
            yield space.draft(_given(sides, moved), draft.state)


def _given(sides: list[Side], moved: dict[int, int]) -> list[Side]:
    return [
        side._replace(share=(side.share or 0) + moved.get(place, 0))
        for place, side in enumerate(sides)
    ]


def a_layer(space: Space, draft: Draft) -> Drafts:
    """A layer in another stage. Of many stages, the busiest give and the least busy take."""
    for places in sorts_of(draft):
        part = draft.parts[places[0]]
        count = len(part.layers)
        busiest = sorted(range(count), key=lambda stage: -part.works[stage].busy_s)
        givers, takers = sorted(busiest[:FULLEST]), sorted(busiest[-FULLEST:])
        if count <= MOST_STAGES:
            givers = takers = list(range(count))
        for source, target in product(givers, takers):
            if source != target and part.layers[source] > 1:
                layers = list(part.layers)
                layers[source] -= 1
                layers[target] += 1
                yield from _in_place(space, draft, places, layers=tuple(layers))


def two_neighbours(space: Space, draft: Draft) -> Drafts:
    """Two neighbouring stages in the other order."""
    for places in sorts_of(draft):
        shape = draft.parts[places[0]].shape
        for stage, (here, there) in enumerate(pairwise(shape)):
            if here != there:
                swapped = (*shape[:stage], there, here, *shape[stage + 2 :])
                yield from _in_place(space, draft, places, shape=swapped, layers=None)


def _in_place(space: Space, draft: Draft, places: list[int], **fields: object) -> Drafts:
    """One replica changed, and all that are like it: with the shares as they are, and anew."""
    sides = sides_of(draft)
    for some in (places[:1], places) if len(places) > 1 else (places,):
        made = [
            side._replace(**fields) if place in some else side for place, side in enumerate(sides)
        ]
        yield space.draft(made, draft.state)
        yield space.draft([side._replace(share=None) for side in made], draft.state)


def half_or_twice_the_micro_batch(space: Space, draft: Draft) -> Drafts:
    """Half or twice the micro-batch, of replicas that are alike or of all."""
    sides = sides_of(draft)
    for places, up in product([*sorts_of(draft), list(range(len(sides)))], (False, True)):
        some = set(places)
        sized = [
            side._replace(micro_batch=side.micro_batch * 2 if up else side.micro_batch // 2)
            if place in some
            else side
            for place, side in enumerate(sides)
        ]
        yield space.draft([side._replace(share=None) for side in sized], draft.state)


def layers_between_hosts(space: Space, draft: Draft) -> Drafts:
    """Layers moved from one pool of devices to another in all replicas at once, so that what is
    reduced stays inside pools."""
    if not space.stages.links.nearer_inside:
        return
    for cut in (moved_alike, cut_alike):
        for parts in cut(space.stages, draft.parts, draft.state):
            sides = [
                side._replace(layers=part.layers)
                for side, part in zip(sides_of(draft), parts, strict=True)
            ]
            yield space.draft(sides, draft.state)
            yield space.draft([side._replace(share=None) for side in sides], draft.state)


def state_sharing(space: Space, draft: Draft) -> Drafts:
    """States shared among replicas in another way."""
    if len(draft.parts) > 1:
        for state in space.states:
            if state != draft.state:
                yield space.draft(sides_of(draft), state)


def sequence_parallelism(space: Space, draft: Draft) -> Drafts:
    """Sequences divided in tensor groups, or not."""
    if len(divisions_of(space.stages.job, (part.shape for part in draft.parts))) > 1:
        sides = [
            side._replace(shape=in_division(side.shape, not draft.divided))
            for side in sides_of(draft)
        ]
        yield space.draft(sides, draft.state)


# ---- devices in other places -------------------------------------------------------------------


def _anew(space: Space, draft: Draft, changes: dict[int, list[Side]]) -> Draft | None:
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
        yield _anew(space, draft, {a: [_fresh(sides[a].shape + sides[b].shape, sides[a])], b: []})
    for first, second in product(sorts, sorts):
        pairs = list(zip(first, second, strict=False))
        if first is second:
            pairs = list(zip(first[::2], first[1::2], strict=False))
        if len(pairs) > 1 and (first is second or len(first) == len(second)):
            joined = {a: [_fresh(sides[a].shape + sides[b].shape, sides[a])] for a, b in pairs} | {
                b: [] for _, b in pairs
            }
            yield _anew(space, draft, joined)


def a_replica_split(space: Space, draft: Draft) -> Drafts:
    """A pipeline as two replicas; all that are alike at once, too."""
    sides = sides_of(draft)
    for places in sorts_of(draft):
        side = sides[places[0]]
        for stage in range(1, len(side.shape)):
            halves = [_fresh(side.shape[:stage], side), _fresh(side.shape[stage:], side)]
            for some in (places[:1], places) if len(places) > 1 else (places,):
                yield _anew(space, draft, dict.fromkeys(some, halves))


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
            yield _anew(space, draft, {n: rest})
            if left:
                yield _anew(space, draft, {n: [*rest, _fresh((post,), sides[n])]})
            for target in (*firsts, *seconds):
                if target != n:
                    for longer in _with(sides[target].shape, post):
                        yield _anew(
                            space, draft, {n: rest, target: [_fresh(longer, sides[target])]}
                        )
            for longer in _with(left, post) if left else ():
                if longer != shape:
                    yield _anew(space, draft, {n: [_fresh(longer, sides[n])]})


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
                    yield _anew(space, draft, {a: [one], b: [other]})


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
            yield _anew(space, draft, {0: [sides[0], _fresh((post,), sides[0])]})
            for n in firsts:
                for longer in _with(sides[n].shape, post):
                    yield _anew(space, draft, {n: [_fresh(longer, sides[n])]})


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
                    yield _anew(space, draft, {n: [_fresh(split, sides[n])]})
                alone = [_fresh((*shape[:stage], smaller, *shape[stage + 1 :]), sides[n])]
                yield _anew(space, draft, {n: [*alone, _fresh((smaller,), sides[n])]})
            if twice not in degrees:
                continue
            larger = Post(post.pool, twice, draft.divided)
            wide = _fresh((*shape[:stage], larger, *shape[stage + 1 :]), sides[n])
            yield _anew(space, draft, {n: [wide]})
            if stage + 1 < len(shape) and shape[stage + 1] == post:
                joined = (*shape[:stage], larger, *shape[stage + 2 :])
                yield _anew(space, draft, {n: [_fresh(joined, sides[n])]})
            for other in (*firsts, *places[1:2]):
                if other != n and post in sides[other].shape:
                    left = list(sides[other].shape)
                    left.remove(post)
                    rest = [_fresh(tuple(left), sides[other])] if left else []
                    yield _anew(space, draft, {n: [wide], other: rest})
            if len(places) > 1:
                joined = {p: [wide] for p in places[::2]} | {p: list[Side]() for p in places[1::2]}
                if shape == (post,) and len(places) % 2 == 0:
                    yield _anew(space, draft, joined)


def best_cuts(space: Space, draft: Draft) -> Drafts:
    """The same shares of the step, the layers of each replica moved as long as its pipeline then
    takes less."""
    parts = {
        (part, share): recut(space.stages, [part], len(draft.parts), draft.state, share)[0]
        for part, share in dict.fromkeys(zip(draft.parts, draft.shares, strict=True))
    }
    sides = sides_of(draft)
    pairs = zip(draft.parts, draft.shares, strict=True)
    yield space.draft(
        [side._replace(layers=parts[pair].layers) for side, pair in zip(sides, pairs, strict=True)],
        draft.state,
    )


def best_micro_batches(space: Space, draft: Draft) -> Drafts:
    """The same shares of the step, each replica in the micro-batch in which it is fastest."""
    yield in_best_sizes(space, draft)


def all_shares(space: Space, draft: Draft) -> Drafts:
    """A small batch shared out anew, each replica in the micro-batch that suits its share."""
    yield _best_shares(space)(draft)


_best_shares = lru_cache(maxsize=4)(best_shares)

declare_move("share", Move("a micro-batch given to another replica", a_micro_batch))
declare_move("layer", Move("a layer in another stage", a_layer))
declare_move("neighbours", Move("two neighbouring stages in the other order", two_neighbours))
declare_move("micro-batch", Move("half or twice the micro-batch", half_or_twice_the_micro_batch))
declare_move("best-sizes", Move("each replica in its best micro-batch", best_micro_batches, True))
declare_move("best-cuts", Move("layers in the best place of each pipeline", best_cuts, True))
declare_move("all-shares", Move("the batch shared out anew", all_shares, True))
declare_move("between-hosts", Move("layers between hosts, in all replicas", layers_between_hosts))
declare_move("states", Move("states shared in another way", state_sharing))
declare_move("sequences", Move("sequence parallelism on or off", sequence_parallelism))
declare_move("join", Move("two replicas as one pipeline", two_replicas_joined))
declare_move("split", Move("a pipeline as two replicas", a_replica_split))
declare_move("stage", Move("a stage in another place, or idle", a_stage_moved))
declare_move("exchange", Move("two stages in each other's place", two_stages_exchanged))
declare_move("idle", Move("an idle device put to work", an_idle_device))
declare_move("tensor", Move("a tensor group divided, or two joined", a_tensor_group))
