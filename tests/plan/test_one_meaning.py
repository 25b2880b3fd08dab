"""Words of the planner have one meaning: no two of its classes have one name."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "ratrain"


def classes_of(room: str) -> Counter[str]:
    """The public classes of a room's files."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (SOURCE / room).rglob("*.py")]
    nodes = (node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    return Counter(node.name for node in nodes if not node.name.startswith("_"))


def test_a_class_of_the_planner_has_a_name_that_no_class_of_programs_or_simulations_has() -> None:
    ours = classes_of("plan")
    others = classes_of("program") + classes_of("simulate")
    assert len(ours) > 50
    assert not sorted(name for name in ours if ours[name] + others[name] > 1)
