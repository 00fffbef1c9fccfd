"""What all patches share: what they replace, and the barrier around what they do.

A probe runs inside other people's jobs. Whatever goes wrong in it stays in it: every
function that a patch puts in the place of another comes out of :meth:`Patch.guard`, which
makes the call exactly once and hands on its result or its exception, whatever happens to
the probe.
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

__all__ = ["After", "Before", "Patch"]

Before = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Gets the arguments of a call that is about to be made; returns a token or None."""

After = Callable[[Any, Any], None]
"""Gets the token and the result of a call that has returned."""

_MARK = "__ncclscope_patch__"

callsite.add_plumbing(os.path.dirname(os.path.dirname(__file__)))


class Patch:
    """Changes one module of another package, and can take the change back.

    Attributes:
        name: How the patch is called in messages.
        target: The module that it reaches into.
        supports: Versions that it was written for, in words.
        records: Whether calls are missing in the ring where it is not at work.
        active: False makes everything it installed a plain passage.
    """

    name: ClassVar[str] = ""
    target: ClassVar[str] = ""
    supports: ClassVar[str] = ""
    records: ClassVar[bool] = True

    def __init__(self) -> None:
        self.active = False
        self._applied = False
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def install(self, module: Any) -> None:
        """Replace functions of the target, which has been imported, by :meth:`replace`."""
        raise NotImplementedError

    def apply(self) -> None:
        """Install the patch where its target has been imported; a second time does nothing."""
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
        """Has the ring say whether this probe records.

        Args:
            state: One of :mod:`ncclscope.tracing.coverage`.
            why: What made it so.
            function: The one function that it is about; nothing for the probe as a whole.
        """
        if self.records:
            with contextlib.suppress(Exception):
                coverage.probe(f"{self.name}.{function}" if function else self.name, state, why)

    def revert(self) -> None:
        """Put everything back that was replaced, unless someone else has replaced it since."""
        if self.active:
            self.note_state(coverage.ENDED, "taken back")
        self.active = False
        while self._replaced:
            owner, name, original, own = self._replaced.pop()
            # By identity: who wraps a function copies its attributes, our mark with them.
            if vars(owner).get(name) is not own:
                continue
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

    def fail(self, error: BaseException) -> None:
        """End the probe for the rest of the process, and say so once.

        A rank whose probe has ended looks as if it had stopped; a reader must know.

        Raises:
            DivergenceError: The error is one, which the guard means for the program.
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
        """Put a guarded function in the place of an attribute of a class or module.

        Args:
            owner: Class, module or object that has the function.
            name: The attribute's name.
            before: Called before the function is.
            after: Called after it has returned, when ``before`` gave a token; without
                ``before``, always, with the arguments as the token.

        Returns:
            False where the attribute does not exist, as in another version, or is
            replaced already.
        """
        function = getattr(owner, name, None)
        if not callable(function) or hasattr(function, _MARK):
            return False
        return self.put(owner, name, self.guard(function, before, after))

    def has_replaced(self, function: Any) -> bool:
        """Return whether a function is one that a patch has put there."""
        return hasattr(function, _MARK)

    def put(self, owner: Any, name: str, function: Any) -> bool:
        """Put a function in the place of an attribute, noting what was there."""
        setattr(function, _MARK, self)
        original = vars(owner).get(name)
        setattr(owner, name, function)
        self._replaced.append((owner, name, original, function))
        return True

    def watch_property(self, owner: Any, name: str, note: Callable[[Any, Any], None]) -> bool:
        """Has something told of each value that is given to a property, once it has it."""
        found = vars(owner).get(name)
        if not isinstance(found, property) or found.fset is None or hasattr(found.fset, _MARK):
            return False

        set_value = found.fset

        # As lean as can be: a program assigns once for each call that it posts.
        def assign(owned: Any, value: Any) -> None:
            set_value(owned, value)
            if self.active:
                try:
                    note(owned, value)
                except Exception as error:
                    self.fail(error)

        setattr(assign, _MARK, self)
        watched = property(found.fget, assign, found.fdel, found.__doc__)
        setattr(owner, name, watched)
        self._replaced.append((owner, name, found, watched))
        return True

    def guard(
        self,
        function: Callable[..., Any],
        before: Before | None = None,
        after: After | None = None,
    ) -> Callable[..., Any]:
        """Return the function with something done before it and after it.

        This is the one place through which a probe's faults would reach the program.
        """
        patch = self
        prepare = before or _arguments

        # Not in a loop, not through helpers: this is on the path of every traced call.
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
        """Return the function with something entered before and left after it.

        ``leave`` gets what ``enter`` returned, and is called even when the function raises,
        but not when ``enter`` returned None.
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


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args, kwargs


def _dressed(guarded: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.update_wrapper(guarded, function)
