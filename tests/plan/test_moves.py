"""The moves of the search: a registry, each of whose moves makes drafts that can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from random import Random

import pytest
from extending_page import write_files
from member_drafts import member_drafts
from registered import declared_inside
from test_left_out import job_file
from test_unequal_search import LEVEL_1, LOCAL, stages_of

from ratrain.describe.job import JobSpec
from ratrain.errors import ProgramError
from ratrain.plan.draft.draft import Draft
from ratrain.plan.draft.pools import Post, Shape, pipeline_of
from ratrain.plan.draft.space import Side, Space, sides_of
from ratrain.plan.layout.jobs import load_job
from ratrain.plan.search.beam import Beam, seeds
from ratrain.plan.search.every_plan import plan_of_job
from ratrain.plan.search.limits import effort_of
from ratrain.plan.search.moves import MOVES, Drafts, Move, changed, declare_move
from ratrain.plan.search.moves_of_work import a_layer
from ratrain.plan.words.explain import others_text


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Space:
    """Seven devices of three kinds; one kind in a host of its own, so that tensor groups are."""
    folder = tmp_path_factory.mktemp("moves")
    return Space(stages_of(job_of(folder)), (LEVEL_1, LOCAL))


def job_of(folder: Path) -> JobSpec:
    path = job_file(folder, sequences=24, fast=(40, 4), middle=(20, 2), slow=(10, 1))
    cluster = folder / "cluster.toml"
    text = cluster.read_text()
    one_each = 'device = "fast"\ndevices = 1\ncount = 4'
    assert one_each in text
    cluster.write_text(text.replace(one_each, 'device = "fast"\ndevices = 4\ncount = 1'))
    return load_job(path)


def random_drafts(space: Space, count: int) -> Iterator[Draft]:
    """Drafts some moves away from a seed, half of them of stages with several members."""
    plain = list(seeds(space, divided=False, state=LEVEL_1))
    with_members = member_drafts(space, LEVEL_1)
    for number in range(count):
        dice = Random(number)
        draft = dice.choice(with_members if number % 2 else plain)
        for _ in range(dice.randrange(4)):
            draft = dice.choice(list(changed(space, draft)))
        yield draft


@pytest.mark.slow
def test_every_move_shares_the_whole_batch_among_devices_that_exist(space: Space) -> None:
    seen = Counter[str]()
    for draft in random_drafts(space, 5):
        made = [(name, other) for name, move in MOVES.items() for other in move.of(space, draft)]
        for name, other in made:
            seen[name] += 1
            used = Counter[int]()
            for part in other.parts:
                assert sum(part.layers) == space.stages.job.model.spec.layers
            for post in other.all_posts:
                used[post.pool] += post.tensor
            assert all(used[pool] <= count for pool, count in enumerate(space.counts)), name
            sides = zip(other.parts, other.shares, strict=True)
            assert sum(part.micro_batch * share for part, share in sides) == 24, name
    assert set(seen) >= set(MOVES) - {"between-hosts"}, "each has made something"


def test_every_draft_of_three_devices_is_some_moves_away_from_a_seed(tmp_path: Path) -> None:
    """So nothing is out of the search's reach: every shape in every grouping."""
    spec = load_job(job_file(tmp_path, sequences=4, fast=(40, 2), slow=(10, 1)))
    space = Space(stages_of(spec), (LEVEL_1,))
    waiting = list(seeds(space, divided=False, state=LEVEL_1))
    reached: set[object] = set()
    while waiting:
        draft = waiting.pop()
        topology = frozenset(Counter(part.shape for part in draft.parts).items())
        if topology not in reached:
            reached.add(topology)
            waiting += changed(space, draft)
    fast, slow = Post(0, 1), Post(1, 1)
    pipelines = [(fast,), (slow,), (fast, fast), (fast, slow), (slow, fast)]
    pipelines += [(fast, fast, slow), (fast, slow, fast), (slow, fast, fast)]
    sets = [[shape] for shape in pipelines]
    sets += [[(fast,), other] for other in ((fast,), (slow,), (fast, slow), (slow, fast))]
    sets += [[(slow,), (fast, fast)]]
    sets += [[(fast,), (fast,), (slow,)]]
    wanted = {frozenset(Counter(shapes).items()) for shapes in sets}
    assert wanted <= reached


def test_a_move_of_one_s_own_is_found_by_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft that no seed is, and that is priced as the fastest, by the only move that there is:
    a fast device in the middle."""

    space = Space(stages_of(load_job(job_file(tmp_path, fast=(40, 1), slow=(20, 2)))), (LEVEL_1,))
    wanted: Shape = (Post(1, 1), Post(0, 1), Post(1, 1))
    turned: Shape = (Post(0, 1), Post(1, 1), Post(1, 1))

    def time_s(draft: Draft) -> float:
        return draft.estimate_s * 0.1 ** any(part.shape == wanted for part in draft.parts)

    def found() -> bool:
        best = Beam(space, effort_of(3), time_s, bool).best((), lambda _: True)
        return any(part.shape == wanted for _, draft in best for part in draft.parts)

    def turned_round(space: Space, draft: Draft) -> Drafts:
        for side in sides_of(draft):
            if side.shape == turned:
                yield space.draft([Side(pipeline_of(wanted), side.micro_batch)], draft.state)

    monkeypatch.setattr(MOVES, "_known", {})
    assert not found()
    declare_move("turned", Move("the fast device in the middle", turned_round))
    assert found()


def test_a_name_is_declared_once() -> None:
    with pytest.raises(ProgramError, match="the move layer is declared twice"):
        declare_move("layer", Move("again", a_layer))


def test_the_page_s_move_joins_the_search_and_explain_lists_it(tmp_path: Path) -> None:
    """The file of docs/how-to/extending.md, without a change to the source."""
    folder = write_files(tmp_path / "page")
    with declared_inside(folder):
        import_module("turned")
        path = job_file(tmp_path, sequences=4, fast=(40, 1), slow=(20, 1))
        subject, known = plan_of_job(load_job(path))
        said = "\n".join(others_text(subject, 1.0, known))
        assert "turned: all pipelines the other way round" in said
        assert known.unequal is not None
        (turned,) = (move for move in known.unequal.moves if move.name == "turned")
        assert turned.drafts <= 1
    assert "turned" not in MOVES
