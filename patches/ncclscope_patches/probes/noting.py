"""Record an activity while a method runs, with all code of the hot path in one function.

A step of an engine runs several of these with cold caches, where each function and object costs
microseconds (``python -m benchmarks.runners --only cold``). So the core in C does it; without the
core, :meth:`Patch.guard_scope`, :meth:`Slot.begin` and :meth:`Slot.end` are inlined here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ncclscope import native
from ncclscope.clock import now_ns
from ncclscope.tracing import session
from ncclscope_patches.probes.probe import Patch

if TYPE_CHECKING:
    from ncclscope.ring.activity import Slot

Details = tuple[str | None, int]
Noted = Callable[[tuple[Any, ...], dict[str, Any]], Details | None]
"""Return a detail and a number from a call's arguments; None if it is not to be recorded."""

Around = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Return a function that calls another one."""


def put_noting(
    patch: Patch,
    owner: Any,
    name: str,
    activity: str,
    read: Noted | Details,
    around: Around | None = None,
) -> bool:
    """Record an activity while a method runs, by the core in C where there is one.

    Args:
        patch: The patch; an error in recording ends it, but not the call.
        owner: The class.
        name: Name of the method; nothing happens if it does not exist or is already patched.
        activity: Name of the activity; see :meth:`Tracer.activity`.
        read: Return the activity's detail and number from the arguments; or the two themselves,
            if they are always the same.
        around: Wrap the method inside the activity.

    Returns:
        Whether the method is now patched.
    """
    function = getattr(owner, name, None)
    if not callable(function) or patch.has_replaced(function):
        return False
    inner = function if around is None else around(function)
    core = native.core()
    noted: Any
    if core is None:
        noted = _noting(patch, inner, activity, read if callable(read) else lambda *_: read)
    else:

        def opened() -> Slot | None:
            tracer = session.current()
            return None if tracer is None else tracer.activity(activity)

        noted = core.noted(inner, patch, read, opened)
        session.on_reset(noted.forget)
    return patch.put(owner, name, functools.update_wrapper(noted, function))


def _noting(
    patch: Patch, function: Callable[..., Any], activity: str, read: Noted
) -> Callable[..., Any]:
    slot: Slot | None = None

    def forget() -> None:
        nonlocal slot
        slot = None

    session.on_reset(forget)

    def noted(*args: Any, **kwargs: Any) -> Any:
        nonlocal slot
        here: Any = None
        turn = 0
        if patch.active:
            try:
                found = read(args, kwargs)
                if found is not None:
                    here = slot
                    if here is None:
                        tracer = session.current()
                        if tracer is not None:
                            here = slot = tracer.activity(activity)
                    if here is not None:
                        detail, number = found
                        word = here.words.get(detail)
                        if word is None:
                            word = here.word(detail)
                        began = now_ns()
                        here.newest = turn = next(here.turns)
                        here.store(turn, began, 0, number, word)
            except Exception as error:
                patch.fail(error)
        if not turn:
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            if here.newest == turn:
                try:
                    here.store(turn, began, now_ns(), number, word)
                except Exception as error:
                    patch.fail(error)

    return noted
