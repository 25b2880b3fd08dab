"""The printed names of the kinds that a step's time is divided into (`itemise.KINDS`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratrain.program.kind import Waiting
from ratrain.runtime.run.reports.itemise import OF_LANES

KIND_NAMES: dict[str, str] = {
    "compute": "compute",
    "recovery": "recovery (recomputation)",
    "stages": f"waiting for {Waiting.BUBBLE.words}",
    **{kind: f"waiting for {kind.words}" for kind in OF_LANES},
    "other": "other",
}


def kind_names(facts: Mapping[str, Any]) -> dict[str, str]:
    """The names for a run whose case has these facts. A rank that runs nothing of its own waits for
    other stages; without a pipeline it waits for other replicas, because a reduction or a gather
    begins only when the last replica is ready for it."""
    has_stages = facts["pipeline"] > 1 or facts["data"] == 1
    return KIND_NAMES if has_stages else {**KIND_NAMES, "stages": "waiting for other replicas"}
