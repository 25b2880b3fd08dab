"""Public names of this floor: a case by kind of device, and where its ranks stand."""

# pyright: reportUnusedImport=false

from __future__ import annotations

from typing import TYPE_CHECKING

from ratrain.faces import face

if TYPE_CHECKING:
    from ratrain.plan.case.case import Standing
    from ratrain.plan.case.kinds import KindPart, kind_parts
    from ratrain.plan.case.of_layout import case_as_asked

PUBLIC, __getattr__ = face(__name__)
