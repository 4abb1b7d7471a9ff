"""The order of layers, as data: a module imports its own floor and lower ones, and no import goes round in a circle."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import nndiff

ROOT = Path(nndiff.__file__).parent

# Low floors first.
FLOORS = (
    "errors text names dtypes tolerance verdict metrics",
    "files tensors facts result result_json",
    "sources stats recording",
    "align relations models",
    "plan judge rejudge settings conversion",
    "diagnosis findings runs",
    "comparison checkpoints proofs cancelling batches experiments modes verification",
    "reports",
    "api integrations",
    "commands demo",
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms.split()}
WITHOUT_FLOOR = {"__main__"}


def _modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ["nndiff", *path.relative_to(ROOT).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imports(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Return what each module imports at run time, inside functions too; for annotations alone does not count."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, path in modules.items():
        stack: list[ast.AST] = [ast.parse(path.read_text())]
        while stack:
            node = stack.pop()
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                continue
            stack += ast.iter_child_nodes(node)
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{module} imports by dots: name the module"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                if name.startswith("nndiff.stats._native"):
                    continue  # the C extension, which imports nothing
                while name and name not in modules:
                    name = name.rpartition(".")[0]
                if name.startswith("nndiff.") and name != module:
                    found[module].add(name)
    return found


def _room(module: str) -> str:
    return module.split(".")[1]


def test_every_room_has_a_floor():
    rooms = {_room(module) for module in _modules() if "." in module}
    assert rooms - WITHOUT_FLOOR == set(FLOOR_OF)


def test_imports_point_downwards():
    upward = []
    for module, targets in _imports(_modules()).items():
        if module == "nndiff" or _room(module) in WITHOUT_FLOOR:
            continue
        for target in targets:
            if FLOOR_OF[_room(target)] > FLOOR_OF[_room(module)]:
                upward.append(f"{module} -> {target}")
    assert upward == []


def test_no_import_goes_round_in_a_circle():
    edges = _imports(_modules())
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail[trail.index(module) :], module))
        if module in done:
            return
        for target in sorted(edges.get(module, ())):
            visit(target, (*trail, module))
        done.add(module)

    for module in sorted(edges):
        visit(module, ())


def test_the_check_sees_an_upward_import():
    assert "nndiff.comparison" in _imports(_modules())["nndiff.api"]
    assert FLOOR_OF["api"] > FLOOR_OF["comparison"]
