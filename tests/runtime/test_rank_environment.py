"""What a rank's process finds in its environment before torch is loaded."""

from __future__ import annotations

from ratrain.engines.places import place_of
from ratrain.runtime.rank.__main__ import set_for_torch


def of_rank(**set_by_user: str) -> dict[str, str]:
    environment = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"} | set_by_user
    set_for_torch(environment, place_of(environment), 2, allocator=False)
    return environment


def test_threads_spin_as_long_beside_a_second_team_as_alone() -> None:
    # libgomp spins GOMP_SPINCOUNT turns with one team and, with `active`, at most 1,000 with more.
    environment = of_rank()
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment["OMP_WAIT_POLICY"] == "active"
    assert environment["GOMP_SPINCOUNT"] == "1000"


def test_how_threads_wait_is_the_users_where_she_says_it() -> None:
    assert "GOMP_SPINCOUNT" not in of_rank(OMP_WAIT_POLICY="passive")
    assert "OMP_WAIT_POLICY" not in of_rank(GOMP_SPINCOUNT="5")
