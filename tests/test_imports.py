"""The direction in which rooms may import each other, read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ratrain"
PLANNER = SOURCE / "plan"
ORDER = (
    ("errors", "compiled", "data", "proof", "ranges", "plugins", "controls", "extras", "faces"),
    ("readers",),
    ("objects",),
    ("describe",),
    ("cost",),
    ("timeline",),
    ("program",),
    ("simulate",),
    ("kernels",),
    ("plan",),
    ("reproduce", "validate", "convert"),
    ("devices", "models"),
    ("check",),
    ("runtime",),
    ("report",),
    ("api",),
    ("cli",),
)
"""From the ground up; a room may import those below it, and itself."""

LOW = (
    "errors",
    "compiled",
    "proof",
    "ranges",
    "controls",
    "objects",
    "readers",
    "describe",
    "timeline",
)
ONLY = {
    "chip": LOW,
    "transport": LOW,
    "profile": (*LOW, "models", "transport", "storage"),
    "corpus": LOW,
    "lab": LOW,
    "checkpoint": LOW,
    "models": LOW,
    "devices": (*LOW, "plugins", "kernels"),
    "check": (*LOW, "devices", "models"),
    "engines": (*LOW, "plugins"),
    "storage": LOW,
    "graph": (*LOW, "program", "simulate", "storage", "checkpoint"),
}
"""Rooms beside the line: what each may import."""

ABOVE_ALL = ("runtime", "report", "api", "cli")
"""The rooms of the line that may import those beside it too."""

TORCH_ROOMS = ("runtime", "models", "devices", "check", "graph")
OPTIMIZERS = SOURCE / "describe" / "optimizers"
TORCH_ADAPTERS = ("transport", "profile", "checkpoint")
"""The rooms that may import torch too, lazily, inside a function."""

RUNTIME = ("step", "rank", "run")
"""The runtime's folders from the ground up; what all three need stands beside them."""

FLOORS = {
    "transport": (
        ("config",),
        ("wire",),
        ("memory", "loop"),
        ("engine",),
        ("providers",),
        ("surface",),
        ("uses",),
    ),
    "plan": (
        ("layout",),
        ("file",),
        ("price",),
        ("case",),
        ("draft",),
        ("search",),
        ("orders",),
        ("words",),
    ),
}
"""The floors of large rooms from the ground up; a room's `__init__` names what is public of all."""


def room_of(path: Path) -> str:
    """The first folder or module under ratrain/."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def imports(path: Path) -> list[tuple[str, int, bool]]:
    """(module, line, whether it is inside a function or for types alone) of every import: those
    count as well."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lazy = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_for_types(node)
        for inner in ast.walk(node)
    }
    modules: list[tuple[str, int, bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [(alias.name, node.lineno, id(node) in lazy) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names]
            modules += [(name, node.lineno, id(node) in lazy) for name in names]
    return modules


def _is_for_types(node: ast.AST) -> bool:
    """Whether a node is `if TYPE_CHECKING:`, which never runs."""
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def module_of(path: Path) -> str:
    """The dotted name by which a file is imported."""
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


FILES = sorted(
    path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.stem[0] != "_"
)
MODULES = {module_of(path): path for path in FILES}


def files_imported(path: Path) -> set[Path]:
    """The files of ratrain whose names a file imports."""
    names = [name for name, _, _ in imports(path)]
    modules = [name if name in MODULES else name.rpartition(".")[0] for name in names]
    return {MODULES[module] for module in modules if module in MODULES} - {path}


def rooms_below(room: str) -> set[str]:
    """The rooms that a room may import."""
    if room in ONLY:
        return {room, *ONLY[room]}
    for level, rooms in enumerate(ORDER):
        if room in rooms:
            beside = set(ONLY) if room in ABOVE_ALL else set[str]()
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
            adapter = room in TORCH_ADAPTERS or OPTIMIZERS in path.parents
            assert room in TORCH_ROOMS or (adapter and lazy), f"{path}:{line} imports {module}"


def test_every_room_has_a_place() -> None:
    for path in FILES:
        assert room_of(path) in rooms_below(room_of(path))


@pytest.mark.parametrize("folder", RUNTIME)
def test_a_step_knows_nothing_of_ranks_nor_a_rank_of_runs(folder: str) -> None:
    above = RUNTIME[RUNTIME.index(folder) + 1 :]
    for path in sorted((SOURCE / "runtime" / folder).rglob("*.py")):
        for module, line, _ in imports(path):
            parts = module.split(".")
            if parts[:2] == ["ratrain", "runtime"]:
                assert parts[2] not in above, f"{path}:{line} imports {module}"


@pytest.mark.parametrize(
    ("room", "floor"), [(room, floor) for room in FLOORS for floor in sum(FLOORS[room], ())]
)
def test_each_floor_imports_only_itself_and_the_floors_below(room: str, floor: str) -> None:
    level = next(number for number, floors in enumerate(FLOORS[room]) if floor in floors)
    below = {name for floors in FLOORS[room][:level] for name in floors} | {floor}
    folder = SOURCE / room
    for path in [*sorted((folder / floor).rglob("*.py")), *folder.glob(f"{floor}.py")]:
        for module, line, _ in imports(path):
            parts = module.split(".")
            if parts[:2] == ["ratrain", room]:
                assert parts[2] in below, f"{path}:{line} imports {module}"


@pytest.mark.parametrize("room", FLOORS)
def test_every_file_of_a_room_with_floors_is_on_one(room: str) -> None:
    on_floors = {"__init__", *sum(FLOORS[room], ())}
    for path in (SOURCE / room).rglob("*.py"):
        assert path.relative_to(SOURCE / room).parts[0].removesuffix(".py") in on_floors


@pytest.mark.parametrize(
    "folder", sorted({path.parent for path in (SOURCE / "plan").rglob("*.py")})
)
def test_no_folder_of_the_planner_has_more_than_thirty_files(folder: Path) -> None:
    assert len(list(folder.glob("*.py"))) <= 30


FACES = {
    name: import_module(name).PUBLIC
    for name in ("ratrain.plan", *(f"ratrain.plan.{floor}" for (floor,) in FLOORS["plan"]))
    if hasattr(import_module(name), "PUBLIC")
}
"""The public names of the planner: its own, and those of floors that few rooms need."""


def test_other_rooms_import_only_the_public_names_of_the_planner() -> None:
    used: set[str] = set()
    for path in FILES:
        if room_of(path) == "plan":
            continue
        for module, line, _ in imports(path):
            if module.startswith("ratrain.plan."):
                face, _, name = module.rpartition(".")
                assert name in FACES.get(face, ()), f"{path}:{line} imports {module}"
                used.add(module)
    extensions = ["Draft", "Drafts", "Move", "PlanMove", "Side", "Space", "sides_of"]
    extensions += ["declare_move", "declare_plan_move"]
    for_extensions = {f"ratrain.plan.search.{name}" for name in extensions}
    public = {f"{face}.{name}" for face, names in FACES.items() for name in names}
    assert public - used == {*for_extensions, "ratrain.plan.price.declare_cost"}, "used by nobody"


def test_the_planners_own_face_has_about_ten_names() -> None:
    assert len(FACES["ratrain.plan"]) <= 12


@pytest.mark.parametrize("face", FACES)
def test_every_public_name_is_loaded_when_it_is_used(face: str) -> None:
    for name in FACES[face]:
        value = getattr(import_module(face), name)
        assert not isinstance(value, ModuleType), f"{name} is also a file of {face}"


def test_no_files_import_each_other_in_a_circle() -> None:
    try:
        TopologicalSorter({path: files_imported(path) for path in FILES}).prepare()
    except CycleError as error:
        circle = " -> ".join(module_of(path) for path in reversed(error.args[1]))
        pytest.fail(f"an import circle: {circle}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "verb", ["plan", "explain", "verify", "simulate", "schedules", "report --output page.html"]
)
def test_a_job_is_planned_proved_simulated_and_reported_without_torch(
    verb: str, tmp_path: Path
) -> None:
    job = SOURCE.parents[1] / "examples/small.toml"
    code = (
        "import sys; from ratrain.cli.main import ratrain; "
        f"ratrain.main({[*verb.split(), str(job)]!r}, standalone_mode=False); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


def test_a_graph_is_planned_without_torch() -> None:
    code = "import sys, ratrain.graph, ratrain.graph.figures; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode() or "torch was imported"


def test_a_run_is_launched_and_reported_without_torch() -> None:
    """Its ranks import it, which takes each a second or two; the launcher has no tensors."""
    with_tensors = ("evaluate", "export", "following", "trained")
    modules = [
        f"ratrain.runtime.run.{path.stem}"
        for path in sorted((SOURCE / "runtime" / "run").glob("*.py"))
        if path.stem not in (*with_tensors, "__init__")
    ]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode() or "torch was imported"
