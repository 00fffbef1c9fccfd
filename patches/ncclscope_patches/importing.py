"""Calls something right after a module has been imported, without importing it.

The finder stands first on ``sys.meta_path`` and answers only for modules that somebody
waits for: it lets the other finders find the module and has its loader call back when the
module's code has run. Everything else passes by at the cost of one dictionary look-up.
"""

from __future__ import annotations

import importlib.abc
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["ImportHook"]

Action = Callable[[], None]


class ImportHook(importlib.abc.MetaPathFinder):
    """Waits for modules.

    Actions must not raise; what they do to a program's imports would be ours to answer for.
    Several hooks may wait for the same module: each asks the others to find it.
    """

    def __init__(self) -> None:
        self._asking: set[tuple[str, int]] = set()
        self._on_start: dict[str, list[Action]] = {}
        self._on_end: dict[str, list[Action]] = {}

    def before(self, name: str, action: Action) -> None:
        """Has something called when the import of a module begins."""
        self._on_start.setdefault(name, []).append(action)
        self._enter()

    def after(self, name: str, action: Action) -> None:
        """Has something called when a module has been imported; at once when it has been."""
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
        """Find a module that is waited for, by means of the other finders."""
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
        """Make this one loader call back. It is the module's own, or shared with others."""
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None or isinstance(loader, type):
            return
        before = getattr(loader, "__dict__", {}).get("exec_module")

        def exec_module(module: ModuleType) -> None:
            if module.__name__ != spec.name:
                execute(module)
                return
            # Before the code runs, since another hook may have taken the same place below this one.
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
