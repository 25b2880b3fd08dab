"""A room's public names, each loaded when it is first used.

A room's `__init__` imports them for type checkers alone, and says so once:

    if TYPE_CHECKING:
        from ratrain.room.file import Name

    PUBLIC, __getattr__ = face(__name__)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.abc import InspectLoader
from typing import Any


def face(room: str) -> tuple[Mapping[str, str], Callable[[str], Any]]:
    """The module of each public name, and what loads a name from there."""
    spec = sys.modules[room].__spec__
    assert spec is not None and isinstance(spec.loader, InspectLoader)
    statements = ast.parse(spec.loader.get_source(room) or "").body
    (block,) = (node for node in statements if isinstance(node, ast.If))
    public = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }

    def loaded(name: str) -> Any:
        if name not in public:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        value = getattr(import_module(public[name]), name)
        setattr(import_module(room), name, value)
        return value

    return public, loaded
