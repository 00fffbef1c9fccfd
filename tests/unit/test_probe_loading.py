"""How patches are found, and applied when what they patch has been imported."""

from __future__ import annotations

import importlib
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclscope.tracing import session
from ncclscope_patches import registry
from ncclscope_patches.importing import ImportHook

NAME = "module_of_a_test"


@pytest.fixture
def hook() -> Iterator[ImportHook]:
    hook = ImportHook()
    yield hook
    if hook in sys.meta_path:
        sys.meta_path.remove(hook)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path; what is imported from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(NAME)]:
        del sys.modules[name]


def test_action_follows_the_import_at_once(hook: ImportHook, folder: Path) -> None:
    (folder / f"{NAME}.py").write_text("VALUE = 1\n")
    seen: list[int] = []
    hook.after(NAME, lambda: seen.append(sys.modules[NAME].VALUE))

    assert seen == []
    module = importlib.import_module(NAME)

    assert seen == [1]
    assert module.__spec__ is not None
    assert "exec_module" not in vars(module.__spec__.loader)


def test_action_on_what_has_been_imported_follows_now(hook: ImportHook) -> None:
    seen: list[str] = []
    hook.after("sys", lambda: seen.append("sys"))

    assert seen == ["sys"]


def test_action_comes_once(hook: ImportHook, folder: Path) -> None:
    (folder / f"{NAME}.py").write_text("")
    seen: list[int] = []
    hook.after(NAME, lambda: seen.append(1))
    module = importlib.import_module(NAME)
    importlib.reload(module)

    assert seen == [1]


def test_action_waits_for_an_import_that_succeeds(hook: ImportHook, folder: Path) -> None:
    (folder / f"{NAME}.py").write_text("raise RuntimeError('not yet')\n")
    seen: list[int] = []
    hook.after(NAME, lambda: seen.append(1))
    with pytest.raises(RuntimeError, match="not yet"):
        importlib.import_module(NAME)
    assert seen == []
    (folder / f"{NAME}.py").write_text("VALUE = 'now'\n")
    importlib.invalidate_caches()
    importlib.import_module(NAME)

    assert seen == [1]


def test_hooks_that_wait_for_the_same_module_are_all_called(folder: Path) -> None:
    (folder / f"{NAME}.py").write_text("")
    seen: list[str] = []
    hooks = [ImportHook(), ImportHook(), ImportHook()]
    for name, hook in zip("abc", hooks, strict=True):
        hook.after(NAME, lambda name=name: seen.append(name))  # type: ignore[misc]
    try:
        module = importlib.import_module(NAME)
    finally:
        for hook in hooks:
            sys.meta_path.remove(hook)

    assert sorted(seen) == ["a", "b", "c"]
    assert module.__spec__ is not None
    assert "exec_module" not in vars(module.__spec__.loader)


def test_module_that_does_not_exist_is_missed_as_ever(hook: ImportHook, folder: Path) -> None:
    hook.after(NAME, lambda: None)

    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(NAME)


def test_modules_that_share_a_loader_are_distinguished(
    hook: ImportHook, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = folder / "modules.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(f"{NAME}.py", f"import {NAME}_2\nVALUE = 1\n")
        file.writestr(f"{NAME}_2.py", "")
    monkeypatch.syspath_prepend(str(archive))
    seen: list[int] = []
    hook.after(NAME, lambda: seen.append(sys.modules[NAME].VALUE))
    importlib.import_module(NAME)

    assert seen == [1]


def test_beginning_of_an_import_is_noticed(hook: ImportHook, folder: Path) -> None:
    (folder / f"{NAME}.py").write_text("")
    seen: list[bool] = []
    hook.before(NAME, lambda: seen.append(NAME in sys.modules))
    importlib.import_module(NAME)

    assert seen == [False]


def test_patches_of_others_are_found_by_entry_point(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "other-1.0.dist-info").mkdir()
    (folder / "other-1.0.dist-info" / "METADATA").write_text("Name: other\nVersion: 1.0\n")
    (folder / "other-1.0.dist-info" / "entry_points.txt").write_text(
        f"[{registry.GROUP}]\nharmless = {NAME}_patch:Harmless\nbroken = {NAME}_patch:Missing\n"
    )
    (folder / f"{NAME}_patch.py").write_text(
        "from ncclscope_patches.probes.probe import Patch\n"
        "class Harmless(Patch):\n    name = 'harmless'\n"
    )
    warnings: list[str] = []
    monkeypatch.setattr(session, "warn_once", lambda topic, message: warnings.append(message))
    names = {kind.name for _, kind in registry.find()}

    assert {"c10d", "pynccl", "harmless"} <= names
    assert len(warnings) == 1
    assert "Missing" in warnings[0]


def test_each_patch_says_what_it_is_for() -> None:
    for _, kind in registry.find():
        assert kind.name
        assert kind.target
        assert kind.supports


def test_waiting_for_torch_imports_nothing_of_consequence() -> None:
    program = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "from ncclscope_patches import registry\n"
        "registry.install_all()\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path), "NCCLSCOPE_DIR": "/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = completed.stdout.split()

    assert "ncclscope_patches.importing" in loaded
    heavy = ("torch", "vllm", "numpy", "ncclscope.ring", "importlib.metadata", "logging")
    assert [name for name in loaded if name.startswith(heavy)] == []
