"""Two engines in this process, over each real provider."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kinds import ALL, options, skip_if_absent

from ratrain.transport import Config, Engine

SECRET = b"a secret of tests"


@pytest.fixture(params=ALL)
def provider(request: pytest.FixtureRequest) -> str:
    skip_if_absent(request.param)
    return request.param


@pytest.fixture
def engines(provider: str) -> Iterator[tuple[Engine, Engine]]:
    config = {**options(provider), "deadline_s": 10.0}
    with Engine(Config(SECRET, "a", **config)) as a, Engine(Config(SECRET, "b", **config)) as b:
        yield a, b
