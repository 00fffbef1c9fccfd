"""Guards torch operators where Python calls them.

``torch.ops.namespace.name`` and its overloads are objects that Dynamo knows by identity
and that generated code calls. What they hand a call to is an attribute of theirs: replaced
there, a guard sees the eager call and that of a compiled graph, and Dynamo sees no change.

An operator is also called to find out what it would do: by tracers, on tensors without
data. Only a call on plain tensors while no mode is watching reaches the real thing, and
each real call is one such call, however many went before it. A mode may be there throughout:
``torch.set_default_device`` is one, which is handed each call and makes it anew.
"""

from __future__ import annotations

from typing import Any

from ncclscope_patches.probes.probe import After, Before, Patch

__all__ = ["guard_operator", "is_real"]

_plain_types: dict[type, bool] = {}


def guard_operator(patch: Patch, packet: Any, before: Before, after: After | None) -> None:
    """Guard an operator and its overloads.

    Args:
        patch: Whose barrier to use.
        packet: ``torch.ops.namespace.name``.
        before: As in :meth:`Patch.replace`.
        after: Likewise.
    """
    for overload in packet.overloads():
        operator = getattr(packet, overload)
        ordered = _in_order(before, [argument.name for argument in operator._schema.arguments])
        patch.replace(operator, "_op", ordered, after)
        patch.replace(packet, "_op", ordered, after)


def _in_order(before: Before, names: list[str]) -> Before:
    """Let a hook have all arguments by position, but for an output that it has no use for."""

    def ordered(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs:
            missing = names[len(args) :]
            args = (*args, *(kwargs[name] for name in missing if name in kwargs and name != "out"))
        return before(args, kwargs)

    return ordered


def is_real(tensor: Any) -> bool:
    """Return whether an operator that is called with this tensor now does what it says."""
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
