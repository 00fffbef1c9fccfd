"""The hot path of a traced call: from the method that enqueues it to its record, in one function.

Every collective of the program runs this code. In CPython a function call costs a tenth of a
record, so this module inlines :meth:`Patch.guard`, :func:`recording.record` and
:func:`callsite.locate` into one function.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ncclscope import native
from ncclscope.ring import layout
from ncclscope.tracing import callsite, scope
from ncclscope_patches.probes import device_streams, recording, works
from ncclscope_patches.probes.device_streams import Where
from ncclscope_patches.probes.probe import Patch
from ncclscope_patches.probes.recording import NOBODY, NOWHERE, Handle, Handles

Read = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, ...]]
"""Return a call's parameters, in the order of :func:`recording.record`, from its arguments."""


ALWAYS_SUM = 64
"""Position of a reduction for :func:`plan` that is a sum whatever the arguments are."""


def plan(
    read: Read, op: str, tensor: int, redop: int = 0, sizes: int = 0, names: Sequence[str] = ()
) -> Read:
    """Let the core read the parameters of calls with one tensor.

    Args:
        read: Reads all calls, and those to the same parameters.
        op: Canonical name of the operation.
        tensor: Position of the tensor, or of the list with it.
        redop: Position of the reduction, or of the object with it; 0 if there is none, and
            :data:`ALWAYS_SUM` if it is no argument.
        sizes: Position of the sizes of a v-collective; 0 if there are none.
        names: Names of the method's parameters by position. Without them, a call with keyword
            arguments is left to `read` if the reduction may be among them.
    """
    read.plan = recording.planned(op, tensor, redop, sizes, names)  # type: ignore[attr-defined]
    return read


After = Callable[[Handle, int, tuple[Any, ...], Any], None]
"""Called after a call returned, with handle, position of the record, arguments and result."""


def put_posting(
    patch: Patch,
    owner: Any,
    name: str,
    read: Read,
    handles: Handles,
    *,
    can_be_off: bool = False,
    applies: Callable[[Any], bool] | None = None,
    after: After | None = None,
    where: Where | None = None,
    returns_none: bool = False,
    keeps_work: bool = False,
) -> bool:
    """Record each call of a method before it runs.

    The core in C records calls whose parameters and call sites are known, all others Python.

    Args:
        patch: The patch; an error in recording ends it, but not the call.
        owner: The class whose instances have handles.
        name: Name of the method; nothing happens if it does not exist or is already patched.
        read: Return the call's parameters from its arguments.
        handles: Handles of the instances.
        can_be_off: The instance has an attribute ``disabled``, which makes it enqueue nothing.
        applies: Return whether a call on an instance would enqueue anything.
        after: Called when the method has returned.
        where: Return the stream of a call, to count it on the GPU.
        returns_none: `where` is right only if the method returns None.
        keeps_work: `after` keeps the call in :data:`works.pending`, as the core can, too.

    Returns:
        Whether the method is now patched.
    """
    function = getattr(owner, name, None)
    if not callable(function) or patch.has_replaced(function):
        return False
    posted: Any = _posting(
        patch, function, read, handles, can_be_off, applies, after, where, returns_none
    )
    core = native.core()
    if core is not None and applies is None:
        method = recording.recorder(core, handles.posts, read, getattr(read, "plan", None))
        most = works.LIMIT if keeps_work else 0
        posted = core.replaced(
            function, patch, works.pending, posted, method, after, scope.listeners, most, can_be_off
        )
    return patch.put(owner, name, functools.update_wrapper(posted, function))


def _posting(
    patch: Patch,
    function: Callable[..., Any],
    read: Read,
    handles: Handles,
    can_be_off: bool,
    applies: Callable[[Any], bool] | None,
    after: After | None,
    where: Where | None,
    returns_none: bool,
) -> Callable[..., Any]:
    known, open_handle = handles.known, handles.of
    suppressing, groups, plumbing = scope.suppressing, scope.groups, callsite.plumbing
    listeners, announce, conclude = scope.listeners, scope.announce, scope.conclude
    start, finish = device_streams.start, device_streams.finish
    getframe, learn, locate = sys._getframe, recording.learn, callsite.locate

    def posted(*args: Any, **kwargs: Any) -> Any:
        position, mark, announced = None, None, False
        if patch.active:
            try:
                thing = args[0]
                handle = known.get(id(thing)) or open_handle(thing)
                if (
                    handle is not NOBODY
                    and not (can_be_off and thing.disabled)
                    and not (suppressing and scope.is_suppressed())
                    and (applies is None or applies(thing))
                ):
                    frame = getframe(1)
                    code: Any = frame.f_code
                    place, instruction = id(code), frame.f_lasti
                    if plumbing.get(place, True):
                        place, instruction, code = locate(frame) or NOWHERE
                    key = (read(args, kwargs), place, instruction)
                    template = handle.templates.get(key) or learn(handle, key, code)
                    if template[2] and not handle.ring.holds_sizes(template[0]):
                        template = learn(handle, key, code)
                    capturing = recording.is_capturing
                    flags = 0
                    if capturing is not None and not handle.waits and capturing():
                        flags = (
                            layout.FLAG_CAPTURED
                        )  # calls on host tensors run even during a capture
                    if template[1]:
                        if flags or groups:
                            position = handle.post(
                                handle.channel, template[0], template[1], 0, flags,
                                scope.group_number(),
                            )  # fmt: skip
                        else:
                            position = handle.post(handle.channel, template[0], template[1])
                        if handle.marks is not None:
                            mark = start(
                                handle.marks, where, args, kwargs, flags, position,
                                returns_none=returns_none,
                            )  # fmt: skip
                    else:
                        position = handle.ring.post_p2p(
                            handle.channel, template[0], 0, flags, scope.group_number()
                        )
                    announced = bool(listeners)
            except Exception as error:
                patch.fail(error)
        try:
            if announced:
                announce(handle.channel)
                try:
                    result = function(*args, **kwargs)
                finally:
                    conclude()
            else:
                result = function(*args, **kwargs)
        except Exception as error:
            if position is not None:
                patch.raised(handle, position, error)
            raise
        if mark is not None:
            finish(mark, result)
        if after is not None and position is not None and position >= 0:
            try:
                after(handle, position, args, result)
            except Exception as error:
                patch.fail(error)
        return result

    return posted
