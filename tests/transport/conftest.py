"""Two engines in this process, over each real provider."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fabric_here import why_no_fabric

from ratrain.transport import Config, Engine

SECRET = b"a secret of tests"


@pytest.fixture(params=["sock", "shm", "ofi"])
def provider(request: pytest.FixtureRequest) -> str:
    if request.param == "ofi" and (reason := why_no_fabric()):
        pytest.skip(reason)
    return request.param


@pytest.fixture
def engines(provider: str) -> Iterator[tuple[Engine, Engine]]:
    config: dict[str, Any] = {"providers": (provider,), "deadline_s": 10.0}
    with Engine(Config(SECRET, "a", **config)) as a, Engine(Config(SECRET, "b", **config)) as b:
        yield a, b
