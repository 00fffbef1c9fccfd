"""Record the calls of vLLM's CPU workers through shared memory.

Between the workers of one host, ``CpuCommunicator`` uses its own operators instead of
torch.distributed. They return when the call has completed, and otherwise spin without a timeout.
Dynamo traces into the class, so the probe guards the operators, not the methods; see
:mod:`ncclscope_patches.probes.operators`.
"""

from __future__ import annotations

import sys
from hashlib import blake2b
from typing import Any

from ncclscope import native
from ncclscope.tracing import session
from ncclscope_patches.probes.operators import Plan, guard_operator, is_real
from ncclscope_patches.probes.probe import Before, Patch
from ncclscope_patches.probes.recording import NOBODY, Handle, post_of, record
from ncclscope_patches.probes.works import Posted

_getframe = sys._getframe
_CALLER = 2

_handles: dict[int, Handle] = {}
"""Handles by the operators' number of the communicator."""
_posts: dict[int, Any] = native.by_address()
_numbers: list[int] = []
"""Keep the numbers alive whose ids are the keys of `_posts`."""
for _known in (_handles, _posts, _numbers):
    session.on_reset(_known.clear)


class CpuShmProbe(Patch):
    """Records the shared-memory collectives of vLLM's CPU communicator."""

    name = "cpu_shm"
    target = "vllm.distributed.device_communicators.cpu_communicator"
    supports = "vllm 0.26 to 0.32, CPU build"

    def install(self, module: Any) -> None:
        operators = module.torch.ops._C
        shm = getattr(module, "_CPUSHMDistributed", None)
        if shm is None:
            return

        def made(token: Any, _result: Any) -> None:
            _declare(token[0][0])
            # The library with the operators is certainly loaded only now.
            for name, before in _OPERATORS.items():
                if hasattr(operators, name):
                    packet, plan = getattr(operators, name), _PLANS.get(name)
                    guard_operator(self, packet, before, _returned, plan)

        self.replace(shm, "__init__", after=made)


def handle_of(number: int) -> Handle:
    """Return the handle of a communicator by the operators' number of it."""
    return _handles.get(number, NOBODY)


def _declare(shm: Any) -> None:
    tracer = session.current()
    communicator = shm.communicator
    if tracer is None or communicator.world_size < 2:
        return
    # vLLM gives all members the same name, which includes the instance's identity.
    digest = blake2b(shm.group_name.encode(), digest_size=16).hexdigest()
    comm = tracer.communicator(
        key=f"shm:{digest}",
        label=communicator.unique_name,
        ranks=communicator.ranks,
        backend="shm",
    )
    handle = _handles[shm.handle] = Handle(tracer, comm, waits=True)
    post = post_of(handle)
    if post is not None:
        _numbers.append(shm.handle)
        _posts[id(shm.handle)] = post


def _record(number: int, parameters: tuple[Any, ...]) -> Posted | None:
    handle = handle_of(number)
    if handle is NOBODY:
        return None
    return handle, record(handle, parameters, _getframe(_CALLER)), True


def _all_reduce(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Posted | None:
    number, tensor = args
    if not is_real(tensor):
        return None
    return _record(number, ("all_reduce", tensor.shape, tensor.dtype, "sum"))


def _all_gather(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Posted | None:
    number, tensor, _output = args
    if not is_real(tensor):
        return None
    return _record(number, ("all_gather", tensor.shape, tensor.dtype))


def _gather(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Posted | None:
    number, tensor, _outputs, root = args
    if not is_real(tensor):
        return None
    return _record(number, ("gather", tensor.shape, tensor.dtype, None, root))


def _send(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Posted | None:
    number, tensors, peer = args
    numel = sum(tensor.numel() for tensor in tensors)
    return _record(number, ("send", None, None, None, None, peer, numel))


def _recv(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Posted | None:
    number, peer = args
    return _record(number, ("recv", None, None, None, None, peer))


def _returned(token: Posted, _result: Any) -> None:
    handle, position, _ = token
    handle.complete(position)


_OPERATORS: dict[str, Before] = {
    "shm_all_gather": _all_gather,
    "shm_allreduce": _all_reduce,
    "shm_gather": _gather,
    "shm_recv_tensor_list": _recv,
    "shm_send_tensor_list": _send,
}

_PLANS = {
    "shm_all_gather": Plan(_posts, "all_gather", 1),
    "shm_allreduce": Plan(_posts, "all_reduce", 1, 2),
}
