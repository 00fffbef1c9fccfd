"""Read a call's parameters from the arguments of a ``PyNcclCommunicator`` method.

Names and positions of the parameters differ between versions of vLLM, and in SGLang.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from ncclscope_patches.probes.posting import Read, plan
from ncclscope_patches.probes.recording import redop_name


class Signature:
    """Positions of a method's parameters by name.

    Another plugin may have wrapped the method. Wrappers made with ``functools.wraps`` are resolved;
    a wrapper with arbitrary arguments is assumed to pass them on.

    Attributes:
        names: Names of the parameters, ``self`` first.
        is_assumed: Whether they are assumed to be those of vLLM's own method.
    """

    def __init__(self, function: Callable[..., Any], method: str) -> None:
        parameters = inspect.signature(function).parameters
        self.names = list(parameters)
        takes_any = any(one.kind is one.VAR_POSITIONAL for one in parameters.values())
        self.is_assumed = takes_any and method in _USUAL
        if self.is_assumed:
            self.names = ["self", *_USUAL[method]]

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> int:
        if name not in self.names:
            raise LookupError(f"it has no parameter {name!r} in this version")
        return self.names.index(name)


_OUT_IN = ("output_tensor", "input_tensor")
_USUAL = {
    "all_gather": (*_OUT_IN, "stream"),
    "all_gatherv": (*_OUT_IN, "sizes", "stream"),
    "all_reduce": ("in_tensor", "out_tensor", "op", "stream"),
    "broadcast": ("tensor", "src", "stream"),
    "recv": ("tensor", "src", "stream"),
    "reduce": (*_OUT_IN, "root", "op", "stream"),
    "reduce_scatter": (*_OUT_IN, "op", "stream"),
    "reduce_scatterv": (*_OUT_IN, "sizes", "op", "stream"),
    "scatter": (*_OUT_IN, "sizes", "root", "stream"),
    "send": ("tensor", "dst", "stream"),
}
"""Parameters of vLLM's methods in all supported versions."""


def _either(
    signature: Signature,
    equal: Callable[[Signature], Read],
    uneven: Callable[[Signature], Read],
) -> Read:
    """Return the reader of a method that is a v-collective where it gets sizes, as in SGLang."""
    sizes_at, read_equal, read_uneven = signature["sizes"], equal(signature), uneven(signature)

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        sizes = args[sizes_at] if len(args) > sizes_at else kwargs.get("sizes")
        return (read_equal if sizes is None else read_uneven)(args, kwargs)

    return read


# Arguments are read inline below: one function call per parameter would cost as much as the record.


def _of_tensor(op: str, signature: Signature) -> Read:
    """Return the reader of a call with an input and no other parameter."""
    at = signature["input_tensor"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor = args[at] if len(args) > at else kwargs["input_tensor"]
        return op, tensor.shape, tensor.dtype

    return plan(read, op, at, names=signature.names)


def _reduction(op: str, name: str, signature: Signature) -> Read:
    """Return the reader of a call with an input, the parameter `name`, and a reduction."""
    at, op_at = signature[name], signature["op"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor = args[at] if len(args) > at else kwargs[name]
        redop = args[op_at] if len(args) > op_at else kwargs.get("op", "sum")
        return op, tensor.shape, tensor.dtype, redop_name(redop)

    return plan(read, op, at, op_at, names=signature.names)


def _all_reduce(signature: Signature) -> Read:
    return _reduction("all_reduce", "tensor" if "tensor" in signature else "in_tensor", signature)


_all_gather_of_equal = partial(_of_tensor, "all_gather")
_reduce_scatter_of_equal = partial(_reduction, "reduce_scatter", "input_tensor")


def _all_gather(signature: Signature) -> Read:
    if "sizes" in signature:
        return _either(signature, _all_gather_of_equal, _all_gatherv)
    return _all_gather_of_equal(signature)


def _reduce_scatter(signature: Signature) -> Read:
    if "sizes" in signature:
        return _either(signature, _reduce_scatter_of_equal, _reduce_scatterv)
    return _reduce_scatter_of_equal(signature)


def _all_gatherv(signature: Signature) -> Read:
    at, sizes_at = signature["input_tensor"], signature["sizes"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor = args[at] if len(args) > at else kwargs["input_tensor"]
        sizes = args[sizes_at] if len(args) > sizes_at else kwargs["sizes"]
        return "all_gatherv", tensor.shape, tensor.dtype, None, None, None, None, tuple(sizes)

    return plan(read, "all_gatherv", at, 0, sizes_at, signature.names)


def _reduce_scatterv(signature: Signature) -> Read:
    at, sizes_at, op_at = signature["input_tensor"], signature["sizes"], signature["op"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor = args[at] if len(args) > at else kwargs["input_tensor"]
        sizes = args[sizes_at] if len(args) > sizes_at else kwargs["sizes"]
        redop = redop_name(args[op_at] if len(args) > op_at else kwargs.get("op", "sum"))
        return "reduce_scatterv", tensor.shape, tensor.dtype, redop, None, None, None, tuple(sizes)

    return plan(read, "reduce_scatterv", at, op_at, sizes_at, signature.names)


def _reduce(signature: Signature) -> Read:
    at, root_at, op_at = signature["input_tensor"], signature["root"], signature["op"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor = args[at] if len(args) > at else kwargs["input_tensor"]
        root = args[root_at] if len(args) > root_at else kwargs["root"]
        redop = redop_name(args[op_at] if len(args) > op_at else kwargs.get("op", "sum"))
        return "reduce", tensor.shape, tensor.dtype, redop, root

    return read


def _broadcast(signature: Signature) -> Read:
    at, root_at = signature["tensor"], signature["src"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor = args[at] if len(args) > at else kwargs["tensor"]
        root = args[root_at] if len(args) > root_at else kwargs["src"]
        return "broadcast", tensor.shape, tensor.dtype, None, root

    return read


def _message(op: str, name: str, signature: Signature) -> Read:
    """Return the reader of a send or receive, whose peer is the parameter `name`."""
    at, peer_at = signature["tensor"], signature[name]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor = args[at] if len(args) > at else kwargs["tensor"]
        peer = args[peer_at] if len(args) > peer_at else kwargs[name]
        return op, tensor.shape, tensor.dtype, None, None, peer

    return read


def read_scatter(signature: Signature) -> Read:
    """Return a function that reads the parameters of ``scatter`` from its arguments."""
    out_at, at = signature["output_tensor"], signature["input_tensor"]
    sizes_at, root_at = signature["sizes"], signature["root"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        output = args[out_at] if len(args) > out_at else kwargs["output_tensor"]
        given = args[at] if len(args) > at else kwargs["input_tensor"]
        sizes = args[sizes_at] if len(args) > sizes_at else kwargs["sizes"]
        root = args[root_at] if len(args) > root_at else kwargs.get("root", 0)
        # Only the root has the input; its rows are as wide as the others' output.
        shape = given.shape if args[0].rank == root else output.shape
        return "scatterv", shape, output.dtype, None, root, None, None, tuple(sizes), output.shape

    return read


def _register_window(signature: Signature) -> Read:
    at = signature["tensor"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor = args[at] if len(args) > at else kwargs["tensor"]
        size = tensor.numel() * tensor.element_size()
        return "register_window", None, None, None, None, None, size

    return read


def _register_window_raw(signature: Signature) -> Read:
    at = signature["size"]

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        size = args[at] if len(args) > at else kwargs["size"]
        return "register_window", None, None, None, None, None, size

    return read


# Deregistering a window is local in NCCL, hence not part of the sequence.
READERS: dict[str, Callable[[Signature], Read]] = {
    "all_gather": _all_gather,
    "all_gatherv": _all_gatherv,
    "all_reduce": _all_reduce,
    "all_to_all_single": partial(_of_tensor, "all_to_all"),
    "broadcast": _broadcast,
    "outplace_all_reduce": _all_reduce,
    "recv": partial(_message, "recv", "src"),
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatterv": _reduce_scatterv,
    "register_comm_window": _register_window,
    "register_comm_window_raw": _register_window_raw,
    "send": partial(_message, "send", "dst"),
}
