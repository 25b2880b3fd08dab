"""Whether the provider `ofi` can be tried on this machine."""

from __future__ import annotations

from ratrain.errors import ProviderUnavailable
from ratrain.transport.providers.fabric import Device


def why_no_fabric(name: str = "tcp;ofi_rxm") -> str:
    """Why the provider `ofi` cannot be tried here over libfabric's `name`, or nothing."""
    try:
        Device(name, "127.0.0.1").close()
    except ProviderUnavailable as error:
        return str(error)
    return ""
