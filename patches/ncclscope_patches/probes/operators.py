"""Guard torch operators where Python calls them.

``torch.ops.namespace.name`` and its overloads are objects that Dynamo knows by identity and that
generated code calls. They delegate a call to one of their attributes. With that attribute
replaced, a guard sees eager and compiled calls, and Dynamo sees no change.

Tracers also call operators, on tensors without data. Only a call on plain tensors without an active
mode runs the kernel, and each such run is exactly one call. A mode may be active throughout:
``torch.set_default_device`` is one, which receives each call and repeats it.
"""

from __future__ import annotations

from typing import Any

from ncclscope_patches.probes.probe import After, Before, Patch

__all__ = ["guard_operator", "is_real"]

_plain_types: dict[type, bool] = {}


def guard_operator(patch: Patch, packet: Any, before: Before, after: After | None) -> None:
    """Guard an operator and its overloads.

    Args:
        patch: The patch; an error in recording ends it, but not the call.
        packet: ``torch.ops.namespace.name``.
        before: As in :meth:`Patch.replace`.
        after: As in :meth:`Patch.replace`.
    """
    for overload in packet.overloads():
        operator = getattr(packet, overload)
        ordered = _in_order(before, [argument.name for argument in operator._schema.arguments])
        patch.replace(operator, "_op", ordered, after)
        patch.replace(packet, "_op", ordered, after)


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

    kind = type(tensor)
    plain = _plain_types.get(kind)
    if plain is None:
        disabled = torch._C._disabled_torch_dispatch_impl
        plain = _plain_types[kind] = kind.__torch_dispatch__ is disabled
    return (
        plain
        and not tensor.is_meta
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._is_torch_function_mode_enabled()
    )
