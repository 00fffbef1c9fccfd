"""Read a call's parameters from the arguments of a ``ProcessGroup`` method.

Each method has overloads: with an options object, as the functions of torch.distributed
use them, and with plain parameters, for direct callers. A reader takes the fields in the
order that :func:`ncclscope_patches.probes.recording.record` wants them:

    op, shape, dtype, redop, root, peer, numel, sizes, out_shape

If a call has several tensors that do not form one, it has no shape, and ``numel`` counts the
elements of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ncclscope import native
from ncclscope_patches.probes.posting import Read, plan
from ncclscope_patches.probes.recording import redop_name

Arguments = tuple[Any, ...]
Keywords = dict[str, Any]

_noted: tuple[int, Any] = (0, None)
_core = native.core()


def note_redop(options: Any, redop: Any) -> None:
    """Remember the reduction that was just assigned to an options object.

    Reading it back creates two objects in C++, which costs more than the record itself.
    """
    global _noted
    if _core is None:
        _noted = id(options), redop
    else:
        _core.note_redop(options, redop)


def _noting(assign: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return a function in C that assigns a reduction and remembers it."""
    assert _core is not None
    found: Callable[[Any, Any], None] = _core.setter(assign).assign
    return found


NOTING = None if _core is None else _noting


def on_cpu(args: Arguments) -> bool:
    """Return whether the first tensor among the arguments is in host memory."""
    tensor = first_tensor(args[1:])
    return tensor is not None and bool(tensor.is_cpu)


def first_tensor(args: Arguments) -> Any:
    """Return the first tensor among arguments and their lists; None if there is none."""
    for argument in args:
        while isinstance(argument, (list, tuple)) and argument:
            argument = argument[0]
        if hasattr(argument, "is_cpu"):
            return argument
    return None


def _all_reduce(args: Arguments, kwargs: Keywords) -> tuple[Any, ...]:
    tensors = args[1] if len(args) > 1 else _named(kwargs, "tensors", "tensor")
    tensor = tensors[0] if type(tensors) is list and len(tensors) == 1 else None
    redop = _redop(args, kwargs)
    if tensor is None:
        return _several("all_reduce", tensors, redop)
    return "all_reduce", tensor.shape, tensor.dtype, redop


def _reduce(args: Arguments, kwargs: Keywords) -> tuple[Any, ...]:
    tensor = _one(args[1] if len(args) > 1 else _named(kwargs, "tensors", "tensor"))
    has_options = "opts" in kwargs or (len(args) > 2 and not isinstance(args[2], int))
    redop = _redop(args, kwargs, 2 if has_options else 3)
    return "reduce", tensor.shape, tensor.dtype, redop, _root(args, kwargs, 2)


def _broadcast(args: Arguments, kwargs: Keywords) -> tuple[Any, ...]:
    tensor = _one(args[1] if len(args) > 1 else _named(kwargs, "tensors", "tensor"))
    return "broadcast", tensor.shape, tensor.dtype, None, _root(args, kwargs, 2)


def _all_gather_list(args: Arguments, kwargs: Keywords) -> tuple[Any, ...]:
    outputs = args[1] if len(args) > 1 else kwargs["output_tensors"]
    given = args[2] if len(args) > 2 else _named(kwargs, "input_tensors", "input_tensor")
    tensor = _one(given)
    if given is not tensor:
        outputs = outputs[0]
    sizes = _uneven(outputs)
    if sizes is None:
        return "all_gather", tensor.shape, tensor.dtype
    return "all_gatherv", tensor.shape, tensor.dtype, None, None, None, None, sizes


def _all_gather_single(args: Arguments, kwargs: Keywords) -> tuple[Any, ...]:
    tensor = args[2] if len(args) > 2 else _named(kwargs, "input", "input_tensor")
    return "all_gather", tensor.shape, tensor.dtype


def _all_gather_coalesced(args: Arguments, kwargs: Keywords) -> tuple[Any, ...]:
    given = args[2] if len(args) > 2 else _named(kwargs, "inputs", "input_list", "input_tensors")
    return _several("all_gather", given)


def _gather(args: Arguments, kwargs: Keywords) -> tuple[Any, ...]:
    given = args[2] if len(args) > 2 else _named(kwargs, "input_tensors", "input_tensor", "input")
    tensor = _one(given)
    return "gather", tensor.shape, tensor.dtype, None, _root(args, kwargs, 3)


def _scatter(args: Arguments, kwargs: Keywords) -> tuple[Any, ...]:
    given = args[1] if len(args) > 1 else _named(kwargs, "output_tensors", "output_tensor")
    tensor = _one(given)
    root = _root(args, kwargs, 3)
    # Only the root has the input; all ranks have the output, and must agree in it.
    return "scatter", tensor.shape, tensor.dtype, None, root, None, None, None, tensor.shape


def _reduce_scatter_list(args: Arguments, kwargs: Keywords) -> tuple[Any, ...]:
    given = args[2] if len(args) > 2 else _named(kwargs, "input_tensors", "input")
    inputs = given[0] if given and isinstance(given[0], (list, tuple)) else given
    redop = _redop(args, kwargs, 3)
    shape, sizes = _joined(inputs), _uneven(inputs)
    dtype = inputs[0].dtype
    if sizes is None:
        return "reduce_scatter", shape, dtype, redop
    return "reduce_scatterv", shape, dtype, redop, None, None, None, sizes


def _reduce_scatter_single(args: Arguments, kwargs: Keywords) -> tuple[Any, ...]:
    tensor = args[2] if len(args) > 2 else _named(kwargs, "input", "inputTensor", "input_tensor")
    return "reduce_scatter", tensor.shape, tensor.dtype, _redop(args, kwargs, 3)


def _reduce_scatter_coalesced(args: Arguments, kwargs: Keywords) -> tuple[Any, ...]:
    given = args[2] if len(args) > 2 else _named(kwargs, "inputs", "input_tensors")
    return _several("reduce_scatter", given, _redop(args, kwargs, 3))


def _all_to_all_single(args: Arguments, kwargs: Keywords) -> tuple[Any, ...]:
    tensor = args[2] if len(args) > 2 else _named(kwargs, "input", "input_tensor")
    into = args[1] if len(args) > 1 else _named(kwargs, "output", "output_tensor")
    from_splits = args[3] if len(args) > 3 else kwargs.get("output_split_sizes")
    splits = args[4] if len(args) > 4 else kwargs.get("input_split_sizes")
    if not splits and not from_splits:
        return "all_to_all", tensor.shape, tensor.dtype
    sizes, out_sizes = _splits(splits, tensor, from_splits), _splits(from_splits, into, splits)
    return "all_to_all", tensor.shape, tensor.dtype, None, None, None, None, sizes, None, out_sizes


def _all_to_all_list(args: Arguments, kwargs: Keywords) -> tuple[Any, ...]:
    inputs = args[2] if len(args) > 2 else kwargs["input_tensors"]
    # Lists may be uneven on one rank and even on another, so always record their sizes.
    sizes = tuple(_rows(tensor) for tensor in inputs)
    outputs = args[1] if len(args) > 1 else kwargs["output_tensors"]
    out_sizes = tuple(_rows(tensor) for tensor in outputs)
    shape, dtype = _joined(inputs), inputs[0].dtype
    return "all_to_all", shape, dtype, None, None, None, None, sizes, None, out_sizes


def _send(args: Arguments, kwargs: Keywords) -> tuple[Any, ...]:
    tensor = _one(args[1] if len(args) > 1 else kwargs["tensors"])
    peer = args[2] if len(args) > 2 else kwargs["dstRank"]
    return "send", tensor.shape, tensor.dtype, None, None, peer


def _recv(args: Arguments, kwargs: Keywords) -> tuple[Any, ...]:
    tensor = _one(args[1] if len(args) > 1 else kwargs["tensors"])
    peer = args[2] if len(args) > 2 else kwargs["srcRank"]
    return "recv", tensor.shape, tensor.dtype, None, None, peer


def _recv_from_any(args: Arguments, kwargs: Keywords) -> tuple[Any, ...]:
    tensor = _one(args[1] if len(args) > 1 else kwargs["tensors"])
    return "recv", tensor.shape, tensor.dtype


def _barrier(_args: Arguments, _kwargs: Keywords) -> tuple[Any, ...]:
    return ("barrier",)


def _monitored_barrier(_args: Arguments, _kwargs: Keywords) -> tuple[Any, ...]:
    return ("monitored_barrier",)


def _named(kwargs: Keywords, *names: str) -> Any:
    for name in names:
        if name in kwargs:
            return kwargs[name]
    raise LookupError(f"no argument {' or '.join(names)}")


def _one(tensors: Any) -> Any:
    """Return the tensor of a list of one; longer lists, one per GPU, are an obsolete interface."""
    if type(tensors) is list:
        return tensors[0]
    return tensors[0] if isinstance(tensors, tuple) else tensors


def _several(op: str, tensors: Any, redop: str | None = None) -> tuple[Any, ...]:
    if not isinstance(tensors, (list, tuple)):
        return op, tensors.shape, tensors.dtype, redop
    if len(tensors) == 1:
        return op, tensors[0].shape, tensors[0].dtype, redop
    dtype = tensors[0].dtype if tensors else None
    return op, None, dtype, redop, None, None, sum(tensor.numel() for tensor in tensors)


def _redop(args: Arguments, kwargs: Keywords, at: int = 2) -> str:
    given = args[at] if len(args) > at else kwargs.get("opts", kwargs.get("op"))
    if given is None:
        return "sum"
    # Use it once only: a later object with the same id may keep its default reduction.
    global _noted
    if _core is not None:
        redop = _core.take_noted(given)
    else:
        (noted, redop), _noted = _noted, (0, None)
        redop = redop if noted == id(given) else None
    if redop is None:
        redop = getattr(given, "reduceOp", given)
    return redop_name(redop)


def _root(args: Arguments, kwargs: Keywords, at: int) -> int:
    given: Any = args[at] if len(args) > at else kwargs.get("opts", kwargs.get("root"))
    try:
        return int(given.rootRank)
    except AttributeError:  # the overload without options
        return int(given or 0)


def _splits(given: Any, tensor: Any, others: Any) -> tuple[int, ...]:
    """Return the splits of one side; even splits if only the other side names any.

    Args:
        given: Splits of this side; None or empty for even ones.
        tensor: Tensor of this side.
        others: Splits of the other side.
    """
    return tuple(given) if given else (_rows(tensor) // len(others),) * len(others)


def _rows(tensor: Any) -> int:
    return int(tensor.shape[0]) if tensor.dim() else 1


def _uneven(tensors: Sequence[Any]) -> tuple[int, ...] | None:
    """Return the tensors' first dimensions if their shapes differ, else None."""
    if not tensors:
        return None
    shape = tensors[0].shape
    if all(tensor.shape == shape for tensor in tensors):
        return None
    return tuple(_rows(tensor) for tensor in tensors)


def _joined(tensors: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape of the concatenated tensors."""
    return (sum(_rows(tensor) for tensor in tensors), *tensors[0].shape[1:])


REDOP_OPTIONS = (
    "AllreduceCoalescedOptions",
    "AllreduceOptions",
    "ReduceOptions",
    "ReduceScatterOptions",
)

READERS: dict[str, Read] = {
    "_allgather_base": plan(_all_gather_single, "all_gather", 2),
    "_reduce_scatter_base": plan(_reduce_scatter_single, "reduce_scatter", 2, 3),
    "all_gather_single": _all_gather_single,
    "all_gather_single_coalesced": _all_gather_coalesced,
    "all_to_all_single": _all_to_all_single,
    "allgather": _all_gather_list,
    "allgather_coalesced": _all_gather_coalesced,
    "allgather_into_tensor_coalesced": _all_gather_coalesced,
    "allreduce": plan(_all_reduce, "all_reduce", 1, 2),
    "allreduce_coalesced": _all_reduce,
    "alltoall": _all_to_all_list,
    "alltoall_base": _all_to_all_single,
    "barrier": _barrier,
    "broadcast": _broadcast,
    "gather": _gather,
    "gather_into_tensor": _gather,
    "gather_single": _gather,
    "monitored_barrier": _monitored_barrier,
    "recv": _recv,
    "recv_any_source": _recv_from_any,
    "recv_anysource": _recv_from_any,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter_list,
    "reduce_scatter_single": _reduce_scatter_single,
    "reduce_scatter_single_coalesced": _reduce_scatter_coalesced,
    "reduce_scatter_tensor_coalesced": _reduce_scatter_coalesced,
    "scatter": _scatter,
    "send": _send,
}
