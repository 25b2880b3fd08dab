"""A room's public names, each loaded when it is first used.

A room's `__init__` imports them for type checkers alone, and says so once:

    if TYPE_CHECKING:
        from ratrain.room.file import Name

    PUBLIC, __getattr__ = face(__name__, __file__)
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


def face(room: str, file: str) -> tuple[Mapping[str, str], Callable[[str], Any]]:
    """The module of each public name, and what loads a name from there."""
    (block,) = (
        node for node in ast.parse(Path(file).read_bytes()).body if isinstance(node, ast.If)
    )
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
