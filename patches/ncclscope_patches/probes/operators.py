"""Guard torch operators where Python calls them.

``torch.ops.namespace.name`` and its overloads are objects that Dynamo knows by identity and that
generated code calls. They delegate a call to one of their attributes. With that attribute
replaced, a guard sees eager and compiled calls, and Dynamo sees no change.

Tracers also call operators, on tensors without data. Only a call on plain tensors without an active
mode runs the kernel, and each such run is exactly one call. A mode may be active throughout:
``torch.set_default_device`` is one, which receives each call and repeats it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from ncclscope import native
from ncclscope.tracing import scope
from ncclscope_patches.probes import recording, works
from ncclscope_patches.probes.probe import After, Before, Patch

plain_types: dict[type, bool] = {}

_RETURNED = -1
"""For the core: a call that has returned has completed."""


class Plan(NamedTuple):
    """How the core in C records an operator's calls, which have completed when they return.

    Attributes:
        posts: :func:`recording.post_of` the handles, by ``id()`` of the first argument. Whoever
            fills it keeps these arguments alive.
        op: Canonical name of the operation.
        tensor: Position of the tensor.
        redop: Position of the reduction: 0 if there is none, above all others if it is a sum.
    """

    posts: dict[int, Any]
    op: str
    tensor: int
    redop: int = 0


def guard_operator(
    patch: Patch, packet: Any, before: Before, after: After | None, plan: Plan | None = None
) -> None:
    """Guard an operator and its overloads.

    Args:
        patch: The patch; an error in recording ends it, but not the call.
        packet: ``torch.ops.namespace.name``.
        before: As in :meth:`Patch.replace`. A token means that the call has been recorded; the
            first item of a tuple is its handle.
        after: As in :meth:`Patch.replace`.
        plan: Lets the core record calls that it has met; both hooks get the others.
    """
    for overload in packet.overloads():
        operator = getattr(packet, overload)
        ordered = _in_order(before, [argument.name for argument in operator._schema.arguments])
        for owner in (operator, packet):
            if not patch.has_replaced(owner._op):
                guarded = _announcing(patch, owner._op, ordered, after)
                patch.put(owner, "_op", _planned(patch, owner._op, guarded, plan))


def _planned(
    patch: Patch, function: Callable[..., Any], guarded: Callable[..., Any], plan: Plan | None
) -> Callable[..., Any]:
    core = native.core()
    if plan is None or core is None:
        return guarded
    import torch

    arguments = recording.planned(plan.op, plan.tensor, plan.redop)
    modes = (torch._C._len_torch_dispatch_stack, torch._C._is_torch_function_mode_enabled)
    method = recording.recorder(core, plan.posts, None, arguments, plain_types, modes)
    listeners = scope.listeners
    replaced: Callable[..., Any] = core.replaced(
        function, patch, works.pending, guarded, method, None, listeners, _RETURNED, False
    )
    return functools.update_wrapper(replaced, function)


def _announcing(
    patch: Patch, function: Callable[..., Any], before: Before, after: After | None
) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        token = None
        if patch.active:
            try:
                token = before(args, kwargs)
            except Exception as error:
                patch.fail(error)
        if token is None:
            result = function(*args, **kwargs)
        else:
            handle = token[0] if type(token) is tuple else None
            is_announced = bool(scope.listeners)
            if is_announced:
                scope.announce(getattr(handle, "channel", None))
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                if isinstance(handle, recording.Handle):
                    patch.raised(handle, token[1], error)
                raise
            finally:
                if is_announced:
                    scope.conclude()
        if token is not None and after is not None:
            try:
                after(token, result)
            except Exception as error:
                patch.fail(error)
        return result

    return functools.update_wrapper(guarded, function)


def _in_order(before: Before, names: list[str]) -> Before:
    """Return a hook that gets all arguments by position, without an ``out`` argument."""

    def ordered(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs:
            missing = names[len(args) :]
            args = (*args, *(kwargs[name] for name in missing if name in kwargs and name != "out"))
        return before(args, kwargs)

    return ordered


def is_real(tensor: Any) -> bool:
    """Return whether an operator called with this tensor now runs its kernel."""
    import torch

    return (
        is_plain(tensor)
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._is_torch_function_mode_enabled()
    )


def is_plain(tensor: Any) -> bool:
    """Return whether a tensor has data and a type that torch calls operators on directly."""
    kind = type(tensor)
    plain = plain_types.get(kind)
    if plain is None:
        import torch

        disabled = torch._C._disabled_torch_dispatch_impl
        plain = plain_types[kind] = kind.__torch_dispatch__ is disabled
    return plain and not tensor.is_meta
