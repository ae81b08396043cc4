"""Imports go one way: no top-level module of the package (a *room*) imports from a later one."""

from __future__ import annotations

import ast
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"

# From first to last. Rooms on one line may import from each other.
ORDER = [
    "errors",
    "messages signals files names ranges stats hub notebook",
    "graph",
    "models",
    "behaviours",
    "engine",
    "gate inspection attribution eap_ig",
    "candidates",
    "circuit circuit_json circuit_views",
    "search",
    "agents",
    "report",
    "validity",
    "experiments",
    "viewer",
    "bench demo",
    "cli",
    "mechrl",
]
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms.split()}


def room(module: str) -> str:
    """`mechrl.search.session` is in `search`; `mechrl/__init__.py` is in `mechrl`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def imports(source: str) -> set[str]:
    """The rooms that a file imports from, anywhere in the file."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {room(name.name) for name in node.names if name.name.startswith("mechrl")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mechrl":
            names = (
                [f"mechrl.{n.name}" for n in node.names] if node.module == "mechrl" else [str(node.module)]
            )
            found |= {room(name) if room(name) in LEVEL else "mechrl" for name in names}
    return found


def backwards(files: dict[str, str]) -> set[tuple[str, str]]:
    """(room, later room that it imports from), for files given as module → source."""
    pairs = {(room(module), to) for module, source in files.items() for to in imports(source)}
    # every room may import the version
    return {(one, to) for one, to in pairs if LEVEL[to] > LEVEL[one] and to != "mechrl"}


def package() -> dict[str, str]:
    files = {}
    for path in sorted((SRC / "mechrl").rglob("*.py")):
        module = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        files[module] = path.read_text(encoding="utf-8")
    return files


def test_every_room_has_a_place() -> None:
    assert {room(module) for module in package()} <= set(LEVEL)


def test_no_room_imports_from_its_right() -> None:
    assert not backwards(package())


def test_a_planted_import_is_noticed() -> None:
    assert backwards({"mechrl.engine.plan": "def f():\n    from mechrl.search.session import search\n"}) == {
        ("engine", "search")
    }
    assert backwards({"mechrl.graph": "from mechrl import viewer\n"}) == {("graph", "viewer")}
    assert not backwards({"mechrl.viewer.data": "import mechrl.circuit\nfrom mechrl import __version__\n"})
