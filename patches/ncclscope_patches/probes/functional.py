"""Record functional collectives, which reach the process group in C++.

These are ``torch.distributed._functional_collectives``, DTensor, and the code that torch.compile
generates from them and from functions of torch.distributed. All of them call the operators of
``torch.ops._c10d_functional`` from Python; see :mod:`ncclscope_patches.probes.operators`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ncclscope.tracing import scope
from ncclscope_patches.probes import process_groups, works
from ncclscope_patches.probes.from_cpp.dispatcher import record_from_now
from ncclscope_patches.probes.operators import guard_operator, is_real
from ncclscope_patches.probes.probe import Before, Patch
from ncclscope_patches.probes.recording import NOBODY, record
from ncclscope_patches.probes.works import Posted

_getframe = sys._getframe
_CALLER = 2

_WITH_BACKWARD = "_c10d_functional_autograd"
"""Operators whose backward posts the opposite collective from C++."""
_NAMESPACES = ("_c10d_functional", _WITH_BACKWARD)

# Canonical operation and the positions of reduction, root and input splits among the arguments, by
# operator name. Output splits precede input splits. The group is the last positional argument.
_OPERATORS: dict[str, tuple[str, int, int, int]] = {
    "all_gather_into_tensor": ("all_gather", 0, 0, 0),
    "all_gather_into_tensor_coalesced": ("all_gather", 0, 0, 0),
    "all_gather_into_tensor_out": ("all_gather", 0, 0, 0),
    "all_reduce": ("all_reduce", 1, 0, 0),
    "all_reduce_": ("all_reduce", 1, 0, 0),
    "all_reduce_coalesced": ("all_reduce", 1, 0, 0),
    "all_reduce_coalesced_": ("all_reduce", 1, 0, 0),
    "all_to_all_single": ("all_to_all", 0, 0, 2),
    "broadcast": ("broadcast", 0, 1, 0),
    "broadcast_": ("broadcast", 0, 1, 0),
    "reduce_scatter_tensor": ("reduce_scatter", 1, 0, 0),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 1, 0, 0),
    "reduce_scatter_tensor_out": ("reduce_scatter", 1, 0, 0),
}


class FunctionalProbe(Patch):
    """Records the functional collectives, eager and compiled."""

    name = "functional"
    target = "torch.distributed._functional_collectives"

    def install(self, module: Any) -> None:
        operators = module.torch.ops
        for name, (op, redop_at, root_at, sizes_at) in _OPERATORS.items():
            for namespace in _NAMESPACES:
                packet = getattr(getattr(operators, namespace), name, None)
                if packet is not None:
                    before = _recording(op, redop_at, root_at, sizes_at)
                    if namespace == _WITH_BACKWARD:
                        before = _noting_backward(before)
                    guard_operator(self, packet, before, _posted)
        functional = operators._c10d_functional
        for name, op in (("isend", "send"), ("irecv", "recv")):
            if hasattr(functional, name):
                guard_operator(self, getattr(functional, name), _recording_p2p(op), _posted)
        if hasattr(functional, "batch_p2p_ops"):
            guard_operator(self, functional.batch_p2p_ops, _record_batch, None)
        guard_operator(self, functional.wait_tensor, _find_result, _waited)
        if hasattr(operators._dtensor, "shard_dim_alltoall"):
            guard_operator(self, operators._dtensor.shard_dim_alltoall, _before_exchange, None)


def _recording(op: str, redop_at: int, root_at: int, sizes_at: int) -> Before:
    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Posted | None:
        given = args[0]
        several = isinstance(given, (list, tuple))
        tensor = given[0] if several else given
        if not is_real(tensor):
            return None
        redop = args[redop_at].lower() if redop_at else None
        root = args[root_at] if root_at else None
        sizes = tuple(args[sizes_at]) if sizes_at else None
        out_sizes = tuple(args[sizes_at - 1]) if sizes_at else None
        if several and len(given) > 1:
            numel = sum(tensor.numel() for tensor in given)
            parameters: tuple[Any, ...] = (op, None, tensor.dtype, redop, None, None, numel)
        else:
            parameters = (
                op,
                tensor.shape,
                tensor.dtype,
                redop,
                root,
                None,
                None,
                sizes,
                None,
                out_sizes,
            )
        return _record(args[-1], parameters, tensor)

    return before


def _noting_backward(record: Before) -> Before:
    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        token = record(args, kwargs)
        if token is not None:
            text = "the backward of a functional collective posts the opposite one"
            record_from_now("functional_backward", text, process_groups.resolved(args[-1]))
        return token

    return before


def _before_exchange(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    record_from_now(
        "dtensor", "DTensor exchanges shards from C++", process_groups.resolved(args[-1])
    )


def _recording_p2p(op: str) -> Before:
    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Posted | None:
        tensor, peer, _tag, name = args
        if not is_real(tensor):
            return None
        group = process_groups.resolved(name)
        rank = _group_rank(group, peer)
        return _record(group, (op, tensor.shape, tensor.dtype, None, None, rank), tensor)

    return before


def _record_batch(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> bool | None:
    ops, peers, _tags, tensors, name = args
    if not tensors or not is_real(tensors[0]):
        return None
    group = process_groups.resolved(name)
    scope.enter_group()
    try:
        for op, peer, tensor in zip(ops, peers, tensors, strict=False):
            rank = _group_rank(group, peer)
            called = "send" if op == "isend" else "recv"
            _record(group, (called, tensor.shape, tensor.dtype, None, None, rank), tensor)
    finally:
        scope.leave_group()
    return True


def _record(group: Any, parameters: tuple[Any, ...], tensor: Any) -> Posted | None:
    handle = process_groups.handles.of(process_groups.resolved(group))
    if handle is NOBODY or scope.is_suppressed():
        return None
    position = record(handle, parameters, _getframe(_CALLER))
    waits = handle.waits
    return handle, position, tensor.is_cpu if waits is None else waits


def _posted(token: Posted, result: Any) -> None:
    results: Sequence[Any] = result if isinstance(result, (list, tuple)) else (result,)
    for tensor in results:
        works.expect(token, tensor)


def _find_result(args: tuple[Any, ...], _kwargs: Any) -> tuple[Posted, Any] | None:
    posted = works.find(args[0])
    return None if posted is None else (posted, args[0])


def _waited(token: tuple[Posted, Any], _result: Any) -> None:
    posted, tensor = token
    if posted[2]:
        works.settle(posted, tensor)


def _group_rank(group: Any, global_rank: int) -> int:
    ranks = process_groups.global_ranks(group)
    return ranks.index(global_rank) if global_rank in ranks else global_rank
