"""Puts something around a method of somebody else's class, once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ncclscope.tracing import session

__all__ = ["attempt", "wrap"]

_MARK = "__ncclscope_routing__"
_Result = TypeVar("_Result")


def attempt(what: str, action: Callable[[], _Result]) -> _Result | None:
    """Do something that must not fail into vLLM.

    Args:
        what: What is not done if it fails; said once in the log.
        action: It.

    Returns:
        What it returns; None where it failed.
    """
    try:
        return action()
    except Exception as error:
        session.warn_once(what, f"{what}: {error!r}")
        return None


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Has calls of a method go through a function.

    Args:
        owner: The class.
        name: Its method, which it has to have; a subclass's own does not count.
        around: Called with the method as it was, and then as the method is.

    Raises:
        NotImplementedError: There is no such method.
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
