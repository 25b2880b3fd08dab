"""World ranks of replicas of any depth, and of tensor groups of any degree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ratrain.runtime.seats import Seats


@st.composite
def any_seats(draw: st.DrawFn) -> Seats:
    degrees = draw(
        st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=3)
    )
    of_class = tuple(map(tuple, degrees))
    classes = draw(st.lists(st.integers(0, len(of_class) - 1), max_size=3))
    depths = tuple(map(len, of_class))
    return Seats(
        pipeline=max(depths),
        data=len(of_class) + len(classes),
        replica_class=(*range(len(of_class)), *classes),
        first_rank=tuple(sum(depths[:number]) for number in range(len(of_class))),
        tensor=max(map(max, of_class)),
        depths=depths,
        degrees=of_class,
    )


@given(any_seats())
def test_every_world_rank_has_one_part_beside_those_of_its_tensor_group(seats: Seats) -> None:
    everybody = [rank for group in seats.tensor_groups() for rank in group]
    assert everybody == list(range(seats.world_size))
    assert sorted(r for data in range(seats.data) for r in seats.replica(data)) == everybody
    for seat in seats.all():
        place = seat.pipeline, seat.data
        assert seats.world_rank(*place, seat.division.rank) == seat.world_rank
        assert seats.tensor_group(*place)[seat.division.rank] == seat.world_rank
        assert seat.division.degree == seats.degree(*place)
        assert seat.division.degree == len(seats.tensor_group(*place))
        degrees = seats.degrees[seats.replica_class[seat.data]]
        assert degrees[seat.pipeline] == seat.division.degree


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_groups_of_one_degree_are_numbered_as_a_grid(pipeline: int, data: int, tensor: int) -> None:
    alike = Seats(pipeline, data, (0,) * data, (0,), tensor)
    told = Seats(pipeline, data, (0,) * data, (0,), tensor, (), ((tensor,) * pipeline,))
    assert alike.all() == told.all()
    for seat in alike.all():
        number = (seat.pipeline * data + seat.data) * tensor + seat.division.rank
        assert seat.world_rank == number
