"""Which rooms may import which, and that no file imports itself by way of others."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "ncclscope": ROOT / "ncclscope",
    "ncclscope_analyzers": ROOT / "analyzers" / "ncclscope_analyzers",
    "ncclscope_patches": ROOT / "patches" / "ncclscope_patches",
}
BASE = {
    *("clock", "dump_files", "errors", "explanation", "metrics", "private", "procfs", "progress"),
    *("redaction", "resources", "settings", "stamp", "untrusted"),
}
"""Modules that every room may use, and which use no room."""
ARROWS = {
    "model": "",
    "native": "",
    "ring": "native model",
    "tracing": "ring native model",
    "readers": "ring model",
    "wording": "model",
    "engine": "wording model",
    "analyzers": "engine wording model",
    "patches": "tracing ring native model",
    "store": "readers ring",
    "guard": "store tracing readers engine wording ring model",
    "launch": "tracing ring",
    "attach": "readers engine wording ring model",
    "watch": "attach readers engine wording ring model",
    "doctor": "attach wording ring native",
    "collect": "attach readers ring",
    "remote": "collect watch readers engine ring model",
    "lab": "launch tracing ring",
    "parity": "attach launch readers engine wording ring model",
    "export": "readers engine wording model",
    "agents": "",
    "render": "doctor watch parity readers engine wording model",
    "commands": "agents collect remote lab parity export store render attach watch doctor launch "
    "engine readers tracing ring native model",
}
"""The rooms, from the ground up, and those that each may import."""
ENTRANCES = {"__init__", "__main__", "crash", "logs", "pytest_plugin", "sources"}
"""What the outside imports or starts; no room imports it."""
MOST_FILES = 20
MOST_LINES = 1000


def _modules() -> dict[str, Path]:
    found = {}
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            if parts[-1] == "__init__":
                parts.pop()
            found[".".join(parts)] = path
    return found


MODULES = _modules()


def _imports(path: Path) -> Iterator[str]:
    """Yield what a file imports of ours, imports for type checkers and in functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                name = full if full in MODULES else node.module
                if name in MODULES:
                    yield name


IMPORTS: Mapping[str, frozenset[str]] = {
    name: frozenset(_imports(path)) - {name} for name, path in MODULES.items()
}


def _room(module: str) -> str:
    package, *rest = module.split(".")
    if package != "ncclscope":
        return package.removeprefix("ncclscope_")
    return rest[0] if rest else "__init__"


def test_rooms_import_only_those_below_them() -> None:
    forbidden = []
    used = defaultdict(set)
    for module, imported in IMPORTS.items():
        room = _room(module)
        if room in ENTRANCES:
            continue
        allowed = {room, *BASE, *(ARROWS[room].split() if room in ARROWS else ())}
        for other in map(_room, imported):
            used[room].add(other)
            if other not in allowed and other != "__init__":
                forbidden.append(f"{module} imports {other}")
    assert forbidden == []
    unused = {
        room: left for room, names in ARROWS.items() if (left := set(names.split()) - used[room])
    }
    assert unused == {}


def test_each_room_comes_after_those_it_imports() -> None:
    order = list(ARROWS)
    assert [
        (room, name)
        for room, names in ARROWS.items()
        for name in names.split()
        if order.index(name) >= order.index(room)
    ] == []


def test_no_file_imports_itself_by_way_of_others() -> None:
    done: set[str] = set()
    cycles: list[list[str]] = []

    def follow(module: str, path: list[str]) -> None:
        if module in path:
            cycles.append([*path[path.index(module) :], module])
        elif module not in done:
            for other in sorted(IMPORTS[module]):
                follow(other, [*path, module])
            done.add(module)

    for module in sorted(MODULES):
        follow(module, [])
    assert cycles == []


def test_blame_is_made_in_one_place() -> None:
    made = [
        f"{name}:{node.lineno}"
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id == "Blame")
            or any(one.arg in ("diverging_ranks", "candidate_ranks") for one in node.keywords)
        )
    ]
    assert made == []


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_have_room_and_files_one_subject(package: str) -> None:
    folders = [PACKAGES[package], *(p for p in PACKAGES[package].rglob("*") if p.is_dir())]
    crowded = {
        str(folder.relative_to(ROOT)): count
        for folder in folders
        if (count := len([p for p in folder.glob("*.py") if p.name != "__init__.py"])) > MOST_FILES
    }
    assert crowded == {}
    long = {
        str(path.relative_to(ROOT)): count
        for name, path in MODULES.items()
        if name.split(".")[0] == package
        and (count := len(path.read_text(encoding="utf-8").splitlines())) > MOST_LINES
    }
    assert long == {}


def test_the_page_names_every_room_and_no_other() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## Rooms")[2].partition("## Where")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name.strip(" `/") for cell in cells for name in cell.split(",")} == set(ARROWS)


def test_the_page_names_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    roots = (ROOT, ROOT / "ncclscope")
    named = re.findall(r"`([\w/]+(?:\.py|/))`", page)
    missing = [name for name in named if not any((root / name).exists() for root in roots)]
    rooms = {
        "sequences/",
        "waits/",
        "processes/",
        "transfers/",
        "repairs/",
        "device/",
        "bootstrap/",
    }
    assert set(missing) <= rooms
