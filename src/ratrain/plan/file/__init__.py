"""Public names of this floor: what a plan file says."""

# pyright: reportUnusedImport=false

from __future__ import annotations

from typing import TYPE_CHECKING

from ratrain.faces import face

if TYPE_CHECKING:
    from ratrain.plan.file.form import (
        FORMAT,
        Mode,
        PlanCluster,
        PlanFile,
        PlanMember,
        PlanModel,
        PlanReplica,
        PlanStage,
    )

PUBLIC, __getattr__ = face(__name__)
