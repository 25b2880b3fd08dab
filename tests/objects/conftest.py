"""A store that the tests of this folder share, and a way to it."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from s3_server import Way, environment, s3_server, variables

from ratrain.objects.client import close_stores


@pytest.fixture(scope="session")
def server() -> Generator[int]:
    """The port of an S3 server."""
    with s3_server() as port:
        yield port


@pytest.fixture
def way(server: int) -> Generator[Way]:
    """What stands between this process's clients and the server."""
    way = Way(server)
    with variables(environment(way.port)):
        try:
            yield way
        finally:
            close_stores()
            way.close()
