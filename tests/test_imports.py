"""The direction in which rooms may import each other, read from the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ratrain"
ORDER = (
    ("errors", "compiled", "data"),
    ("describe",),
    ("cost",),
    ("timeline",),
    ("program",),
    ("simulate",),
    ("plan",),
    ("reproduce", "validate"),
    ("models", "kernels"),
    ("runtime",),
    ("cli",),
)
"""From the ground up; a room may import those below it, and itself."""

LOW = ("errors", "compiled", "describe", "timeline")
ONLY = {
    "chip": LOW,
    "transport": LOW,
    "profile": LOW,
    "corpus": LOW,
    "lab": LOW,
    "checkpoint": LOW,
    "models": LOW,
}
"""Rooms beside the line: what each may import."""

TORCH_ROOMS = ("runtime", "models", "kernels")
TORCH_ADAPTERS = ("transport", "profile")
"""The rooms that may import torch too, lazily, inside a function."""

RUNTIME = ("step", "rank", "run")
"""The runtime's folders from the ground up; what all three need stands beside them."""


def room_of(path: Path) -> str:
    """The first folder or module under ratrain/."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[tuple[str, int, bool]]:
    """(module, line, whether it stands inside a function) of every import, lazy ones too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lazy = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    found: list[tuple[str, int, bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno, id(node) in lazy) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names]
            found += [(name, node.lineno, id(node) in lazy) for name in names]
    return found


FILES = sorted(
    path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.stem[0] != "_"
)


def rooms_below(room: str) -> set[str]:
    """The rooms that a room may import."""
    if room in ONLY:
        return {room, *ONLY[room]}
    for level, rooms in enumerate(ORDER):
        if room in rooms:
            beside = set(ONLY) if level >= len(ORDER) - 2 else set[str]()
            return {name for below in ORDER[: level + 1] for name in below} | beside
    raise AssertionError(f"room {room} has no place in the order: give it one in {__file__}")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_rooms_below_its_own(path: Path) -> None:
    allowed = rooms_below(room_of(path))
    for module, line, _ in imports(path):
        parts = module.split(".")
        if parts[0] == "ratrain" and parts[1:] not in ([], ["__version__"]):
            assert parts[1] in allowed, f"{path}:{line} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_torch_is_imported_only_where_tensors_live(path: Path) -> None:
    room = room_of(path)
    for module, line, lazy in imports(path):
        if module.split(".")[0] in ("torch", "triton", "transformers"):
            adapter = room in TORCH_ADAPTERS and lazy
            assert room in TORCH_ROOMS or adapter, f"{path}:{line} imports {module}"


def test_every_room_has_a_place() -> None:
    for path in FILES:
        assert room_of(path) in rooms_below(room_of(path))


@pytest.mark.parametrize("folder", RUNTIME)
def test_a_step_knows_nothing_of_ranks_nor_a_rank_of_runs(folder: str) -> None:
    above = RUNTIME[RUNTIME.index(folder) + 1 :]
    for path in sorted((SOURCE / "runtime" / folder).glob("*.py")):
        for module, line, _ in imports(path):
            parts = module.split(".")
            if parts[:2] == ["ratrain", "runtime"]:
                assert parts[2] not in above, f"{path}:{line} imports {module}"
