"""Call a function right after a module has been imported, without importing it.

The finder is first on ``sys.meta_path`` and handles only modules with registered actions. It lets
the other finders find the module, and makes its loader call back when the module's code has run.
All other imports cost one dictionary look-up.
"""

from __future__ import annotations

import importlib.abc
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[], None]


class ImportHook(importlib.abc.MetaPathFinder):
    """Runs actions at the import of modules.

    Actions must not raise, since an exception would break the program's import. Several hooks may
    watch the same module: each asks the other finders for it.
    """

    def __init__(self) -> None:
        self._asking: set[tuple[str, int]] = set()
        self._on_start: dict[str, list[Action]] = {}
        self._on_end: dict[str, list[Action]] = {}

    def before(self, name: str, action: Action) -> None:
        """Call `action` when the import of a module begins."""
        self._on_start.setdefault(name, []).append(action)
        self._enter()

    def after(self, name: str, action: Action) -> None:
        """Call `action` when a module has been imported; at once if it already is."""
        if name in sys.modules:
            action()
            return
        self._on_end.setdefault(name, []).append(action)
        self._enter()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Find a watched module through the other finders.

        Args:
            fullname: Its name.
            path: Where its package searches; None outside of packages.
            target: The module to be reloaded, if it is.
        """
        for action in self._on_start.pop(fullname, ()):
            action()
        asking = (fullname, threading.get_ident())
        if fullname not in self._on_end or asking in self._asking:
            return None
        self._asking.add(asking)
        try:
            spec = self._ask_others(fullname, path, target)
        finally:
            self._asking.remove(asking)
        if spec is not None:
            self._follow(spec)
        return spec

    def _ask_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                return spec
        return None

    def _follow(self, spec: ModuleSpec) -> None:
        """Make this module's loader call back; other modules may share the loader."""
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None or isinstance(loader, type):
            return
        before = getattr(loader, "__dict__", {}).get("exec_module")

        def exec_module(module: ModuleType) -> None:
            if module.__name__ != spec.name:
                execute(module)
                return
            # Restore it before the code runs, since another hook may have replaced it below this.
            if before is not None:
                loader.exec_module = before
            elif vars(loader).get("exec_module") is exec_module:
                del loader.exec_module
            execute(module)
            for action in self._on_end.pop(spec.name, ()):
                action()

        try:
            loader.exec_module = exec_module
        except AttributeError:
            return

    def _enter(self) -> None:
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
