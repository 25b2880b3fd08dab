"""Public names of this floor: a case by kind of device, and where its ranks stand."""

# pyright: reportUnusedImport=false

from __future__ import annotations

from typing import TYPE_CHECKING

from ratrain.faces import face

if TYPE_CHECKING:
    from ratrain.plan.case.case import Standing, case_as_asked
    from ratrain.plan.case.kinds import KindPart, kind_parts

PUBLIC, __getattr__ = face(__name__)
