"""The base of all patches: replacing functions, and containing errors of the replacement.

A probe runs inside other programs, so its errors must stay in it. Every replacement function comes
from :meth:`Patch.guard`. It calls the original exactly once and passes on its result or exception,
even if the probe fails.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

from ncclscope.errors import DivergenceError
from ncclscope.tracing import callsite, coverage, session

Before = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Called with a call's arguments before it runs; return a token or None."""

After = Callable[[Any, Any], None]
"""Called with the token and the result after a call returned."""

_MARK = "__ncclscope_patch__"

callsite.add_plumbing(os.path.dirname(os.path.dirname(__file__)))


_SUPPORTED = {
    "deepspeed": "deepspeed 0.16 to 0.19",
    "megatron": "megatron-core 0.16",
    "ray": "ray 2",
    "sglang": "sglang 0.5.23",
    "torch": "torch 2.6 to 2.15",
    "vllm": "vllm 0.26 to 0.32",
}
"""Versions of a package that patches of it support, unless one names its own."""


class Patch:
    """Changes one module of another package, and can revert the change.

    Attributes:
        name: Name of the patch in messages.
        target: The module that it changes.
        supports: Supported versions as text, such as ``torch 2.6 to 2.15``.
        records: Whether calls are missing in the ring if it is not active.
        active: If false, every installed function only calls the original.
    """

    name: ClassVar[str] = ""
    target: ClassVar[str] = ""
    supports: ClassVar[str] = ""
    records: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        package = cls.target.partition(".")[0]
        if "supports" not in vars(cls) and package in _SUPPORTED:
            cls.supports = _SUPPORTED[package]

    def __init__(self) -> None:
        self.active = False
        self._applied = False
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def install(self, module: Any) -> None:
        """Replace functions of the imported target, with :meth:`replace`."""
        raise NotImplementedError

    def apply(self) -> None:
        """Install the patch if its target has been imported; later calls do nothing."""
        module: ModuleType | None = sys.modules.get(self.target)
        if module is None or self._applied:
            return
        self._applied = self.active = True
        self.note_state(coverage.ON)
        try:
            self.install(module)
        except Exception as error:
            self.revert()
            self.fail(error)
            self.note_state(coverage.REFUSED, f"{type(error).__name__}: {error}")

    def note_state(self, state: str, why: str = "", function: str = "") -> None:
        """Record in the ring whether this probe records calls.

        Args:
            state: A state of :mod:`ncclscope.tracing.coverage`.
            why: The reason.
            function: The function concerned; empty for the whole probe.
        """
        if self.records:
            with contextlib.suppress(Exception):
                coverage.probe(f"{self.name}.{function}" if function else self.name, state, why)

    def revert(self) -> None:
        """Restore all replaced functions, except those that others have replaced since."""
        if self.active:
            self.note_state(coverage.ENDED, "taken back")
        self.active = False
        while self._replaced:
            owner, name, original, own = self._replaced.pop()
            # By identity: a wrapper copies the attributes of a function, including our mark.
            if vars(owner).get(name) is not own:
                continue
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

    def fail(self, error: BaseException) -> None:
        """Deactivate the probe for the rest of the process, and warn once.

        The ring notes it, since a rank whose probe has ended appears to have stopped.

        Raises:
            DivergenceError: The error is one, raised by the guard for the program.
        """
        if isinstance(error, DivergenceError):
            raise error
        self.active = False
        try:
            reason = f"{type(error).__name__}: {error}"
            session.warn_once(
                f"patch {self.name}", f"the {self.name} probe is off in this process: {reason}"
            )
            self.note_state(coverage.ENDED, reason)
            tracer = session.current()
            if tracer is not None:
                tracer.describe(probe_failed=f"{self.name}: {reason}"[:500])
        except Exception:
            return

    def replace(
        self, owner: Any, name: str, before: Before | None = None, after: After | None = None
    ) -> bool:
        """Replace an attribute of a class or module by a guarded function.

        Args:
            owner: Class, module or object that has the function.
            name: Name of the attribute.
            before: Called before the function.
            after: Called after the function returned, if ``before`` returned a token. Without
                ``before``, it is always called, with the arguments as the token.

        Returns:
            False if the attribute does not exist, as in another version, or is already replaced.
        """
        function = getattr(owner, name, None)
        if not callable(function) or hasattr(function, _MARK):
            return False
        return self.put(owner, name, self.guard(function, before, after))

    def has_replaced(self, function: Any) -> bool:
        """Return whether a function was installed by a patch."""
        return hasattr(function, _MARK)

    def put(self, owner: Any, name: str, function: Any) -> bool:
        """Replace an attribute by a function, keeping the original for :meth:`revert`.

        Args:
            owner: Class, module or object that has the attribute.
            name: Name of the attribute.
            function: The replacement.
        """
        setattr(function, _MARK, self)
        original = vars(owner).get(name)
        setattr(owner, name, function)
        self._replaced.append((owner, name, original, function))
        return True

    def watch_property(
        self,
        owner: Any,
        name: str,
        note: Callable[[Any, Any], None],
        noting: Callable[[Any], Any] | None = None,
    ) -> bool:
        """Call `note` after each assignment to a property.

        Args:
            owner: The class with the property.
            name: Name of the property.
            note: Called with the object and the assigned value.
            noting: Does the same faster: takes what assigns, and returns what also notes.
        """
        found = vars(owner).get(name)
        if not isinstance(found, property) or found.fset is None:
            return False
        set_value = found.fset
        if hasattr(set_value, _MARK) or hasattr(getattr(set_value, "__self__", None), "assign"):
            return False

        # Kept minimal: a program assigns once for each call that it enqueues.
        def assign(owned: Any, value: Any) -> None:
            set_value(owned, value)
            if self.active:
                try:
                    note(owned, value)
                except Exception as error:
                    self.fail(error)

        setattr(assign, _MARK, self)
        chosen = assign if noting is None else noting(set_value)
        watched = property(found.fget, chosen, found.fdel, found.__doc__)
        setattr(owner, name, watched)
        self._replaced.append((owner, name, found, watched))
        return True

    def raised(self, handle: Any, position: int, error: BaseException) -> None:
        """Withdraw the record of a call that raised an exception before it was sent.

        Args:
            handle: The handle of its communicator, which decides.
            position: Position of the record.
            error: The exception.
        """
        try:
            handle.withdraw(position, error)
        except Exception as own:
            self.fail(own)

    def guard(
        self,
        function: Callable[..., Any],
        before: Before | None = None,
        after: After | None = None,
    ) -> Callable[..., Any]:
        """Return a function that calls hooks before and after the original.

        No error of a probe may get past this function.

        Args:
            function: The original.
            before: Called before it.
            after: Called after it; see :meth:`replace`.
        """
        patch = self
        prepare = before or _arguments

        # Without loops and helpers, as this is on the path of every traced call.
        if after is None:

            def guarded(*args: Any, **kwargs: Any) -> Any:
                if patch.active:
                    try:
                        prepare(args, kwargs)
                    except Exception as error:
                        patch.fail(error)
                return function(*args, **kwargs)

        else:
            conclude = after

            def guarded(*args: Any, **kwargs: Any) -> Any:
                token = None
                if patch.active:
                    try:
                        token = prepare(args, kwargs)
                    except Exception as error:
                        patch.fail(error)
                result = function(*args, **kwargs)
                if token is not None:
                    try:
                        conclude(token, result)
                    except Exception as error:
                        patch.fail(error)
                return result

        return _dressed(guarded, function)

    def guard_scope(
        self, function: Callable[..., Any], enter: Before, leave: Callable[[Any], None]
    ) -> Callable[..., Any]:
        """Return a function that calls `enter` before the original and `leave` after it.

        ``leave`` gets the result of ``enter``. It is called even if the original raises, but not
        if ``enter`` returned None.

        Args:
            function: The original.
            enter: Called with the call's arguments; return a token or None.
            leave: Called with the token.
        """
        patch = self

        def guarded(*args: Any, **kwargs: Any) -> Any:
            token = None
            if patch.active:
                try:
                    token = enter(args, kwargs)
                except Exception as error:
                    patch.fail(error)
            if token is None:
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            finally:
                try:
                    leave(token)
                except Exception as error:
                    patch.fail(error)

        return _dressed(guarded, function)


class Note(Patch):
    """A patch that records no calls of its own, so that its state is no part of the coverage."""

    records = False


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args, kwargs


def _dressed(guarded: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.update_wrapper(guarded, function)
