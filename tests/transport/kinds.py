"""What the tests run over: the providers, and `sock` under TLS."""

from __future__ import annotations

from typing import Any

import pytest
from fabric_here import why_no_fabric

from ratrain.transport import Tls

SEALED = pytest.param("tls", marks=pytest.mark.slow)
"""Slow: what is TLS's own is in `test_transport_tls.py`, and quick."""
ALL = ("sock", SEALED, "shm", "ofi")


def options(kind: str) -> dict[str, Any]:
    """The options of an engine over `kind`."""
    if kind == "tls":
        return {"providers": ("sock",), "tls": Tls()}
    return {"providers": (kind,)}


def skip_if_absent(kind: str) -> None:
    """Skip the test where `kind` cannot be tried."""
    if kind == "ofi" and (reason := why_no_fabric()):
        pytest.skip(reason)
