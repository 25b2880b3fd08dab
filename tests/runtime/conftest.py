"""What tests of the runtime share: processes that stay for all tests of a file."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from crew import Crew


@pytest.fixture(scope="session")
def crew() -> Generator[Crew]:
    with Crew(4) as made:
        yield made
