"""Models and clusters as JSON-ready tables, for `--json` and for printing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from ratrain.describe.cluster import ClusterSpec
from ratrain.describe.device import BY_OTHERS


def as_json(value: Any) -> Any:
    """Dataclasses, frozen maps and tuples as plain dicts and lists; field names carry the unit."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {k: as_json(v) for k, v in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, (tuple, list)):
        return [as_json(item) for item in cast("tuple[Any, ...]", value)]
    return value


def sources(cluster: ClusterSpec) -> dict[str, str]:
    """Where each constant of the cluster comes from, by a readable name."""
    sources_by_name = {"cluster": cluster.source}
    for kind in cluster.device:
        sources_by_name.update({f"{kind.name} {tier.name}": tier.source for tier in kind.tiers})
        sources_by_name.update({f"{kind.name} {rate.dtype}": rate.source for rate in kind.rates})
        sources_by_name.update(
            {f"{kind.name} {entry.case}": entry.source for entry in kind.layer_profile}
        )
        sources_by_name[f"{kind.name} launch"] = kind.launch_source
        sources_by_name[f"{kind.name} memory efficiency"] = kind.memory_efficiency_source
        if kind.driving != BY_OTHERS:
            sources_by_name[f"{kind.name} driving"] = kind.driving.source
        if kind.kernels is not None:
            sources_by_name[f"{kind.name} kernels"] = kind.kernels.source
    for level, link in cluster.links.items():
        sources_by_name[f"link {level}"] = link.source
        if link.overhead_s:
            sources_by_name[f"link {level} overhead"] = link.overhead_source
    for host in cluster.host:
        sources_by_name.update(
            {f"{host.name} link {name}": link.source for name, link in host.links.items()}
        )
    return sources_by_name
