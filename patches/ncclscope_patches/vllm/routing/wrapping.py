"""Wrap methods of another package's classes, once each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ncclscope.tracing import session

_MARK = "__ncclscope_routing__"
_Result = TypeVar("_Result")


def attempt(what: str, action: Callable[[], _Result]) -> _Result | None:
    """Call a function whose exceptions must not reach vLLM.

    Args:
        what: Consequence of a failure, logged once.
        action: The function.

    Returns:
        Its result; None if it failed.
    """
    try:
        return action()
    except Exception as error:
        session.warn_once(what, f"{what}: {error!r}")
        return None


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Wrap a method by a function.

    Args:
        owner: The class.
        name: Name of the method, which the class must have; a subclass's own is not wrapped.
        around: Called with the original method, followed by the method's arguments.

    Raises:
        NotImplementedError: The class has no such method.
    """
    usual = vars(owner).get(name)
    if usual is None:
        raise NotImplementedError(f"{owner.__name__} has no {name}")
    if hasattr(usual, _MARK):
        return

    @functools.wraps(usual)
    def method(*args: Any, **kwargs: Any) -> Any:
        return around(usual, *args, **kwargs)

    setattr(method, _MARK, True)
    setattr(owner, name, method)
