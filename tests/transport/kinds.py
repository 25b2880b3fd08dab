"""What the tests run over: the providers, and `sock` under TLS."""

from __future__ import annotations

from typing import Any

import pytest
from fabric_here import why_no_fabric

from ratrain.transport import Tls

SEALED = pytest.param("tls", marks=pytest.mark.slow)
"""Slow: what is TLS's own is in `test_transport_tls.py`, and quick."""
FABRIC_SHM = pytest.param("ofi over shm", marks=pytest.mark.slow)
"""libfabric's provider of one host: a queue without a descriptor to sleep on, as EFA's. Not for
the faults: a peer killed inside it leaves its lock in shared memory, and libfabric 1.17 spins."""
ALL = ("sock", SEALED, "shm", "ofi")


def options(kind: str) -> dict[str, Any]:
    """The options of an engine over `kind`."""
    if kind == "tls":
        return {"providers": ("sock",), "tls": Tls()}
    if kind == "ofi over shm":
        return {"providers": ("ofi",), "fabric": "shm"}
    return {"providers": (kind,)}


def skip_if_absent(kind: str) -> None:
    """Skip the test where `kind` cannot be tried."""
    fabrics = {"ofi": "tcp;ofi_rxm", "ofi over shm": "shm"}
    if kind in fabrics and (reason := why_no_fabric(fabrics[kind])):
        pytest.skip(reason)
