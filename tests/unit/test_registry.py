"""Which analyzers are asked: all built-in ones, whatever an installation's metadata says."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from ncclscope.engine import registry
from ncclscope.model import Run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


class Other:
    """Finds nothing."""

    name = "other"

    def analyze(self, case: object) -> list[object]:
        return []


def test_the_list_is_that_of_the_files_and_of_the_metadata() -> None:
    folder = ROOT / "analyzers" / "ncclscope_analyzers"
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert {registry.MODULES.get(name, name) for name in registry.BUILT_IN} == files
    assert set(project["entry-points"][registry.GROUP]) == set(registry.BUILT_IN)
    assert list(registry.BUILT_IN) == sorted(registry.BUILT_IN)


def test_an_installation_with_older_metadata_lacks_none(monkeypatch: pytest.MonkeyPatch) -> None:
    old = metadata.EntryPoint("stalled", "ncclscope_analyzers.stalled:Stalled", registry.GROUP)
    mine = metadata.EntryPoint("other", f"{__name__}:Other", registry.GROUP)
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Other.__module__])
    monkeypatch.setattr(metadata, "entry_points", lambda group: [mine, old])

    found = registry.load_analyzers()

    assert len(found) == len(registry.BUILT_IN) + 1
    assert found[-1].name == "other"
    assert not list(found[-1].analyze(Run((), {}, 0)))  # type: ignore[arg-type]
