"""A vLLM plugin for tests: one worker leaves the common sequence on request.

The file that NCCLSCOPE_TEST_FAULT names holds the fault. As soon as it is there, rank 1 takes
it away and does that to its next collective. ``skip`` and ``replace`` are done to an all_reduce
of tensor parallelism on the CPU, to a reduce_scatter of expert parallelism on GPUs; ``uneven``
takes the path of unequal sizes in a dispatch of expert parallelism, where all are equal;
``swap`` posts the reduce_scatter that comes after a dispatch before it; and
``skip_all_reduce`` leaves out one of tensor parallelism on GPUs. It sits above the probes, so
that what is recorded is what is posted.

Faults of a service outside of collectives: ``lose_reply`` drops the next answer of worker 0 to its
engine, ``hold_rpc`` lets worker 1 wait for the lock of a file in the next method that its engine
calls besides those of a step, and ``no_blocks`` lets the scheduler find no free block of the KV
cache, as long as the file is there.

The rank that NCCLSCOPE_TEST_LACKS names does not know of another dispatcher.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

DIVERGING_RANK = 1
_OF_A_STEP = ("execute_model", "sample_tokens", "execute_dummy_batch")


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``."""
    if lacking := os.environ.get("NCCLSCOPE_TEST_LACKS"):
        _take_dispatcher_from(int(lacking))
    order = os.environ.get("NCCLSCOPE_TEST_FAULT")
    if not order:
        return
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        if os.environ.get("NCCLSCOPE_TEST_ASYNC") == "1":
            _keep_async_scheduling(type(current_platform))
        from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

        _replace(CpuCommunicator, "all_reduce", _on_cpu, Path(order))
        _plant_in_service(Path(order))
        from ncclscope_patches.vllm import cpu_moe as vllm_cpu_moe

        if vllm_cpu_moe.wanted():
            vllm_cpu_moe.install()  # this plugin may be the first to be called
            _replace(CpuCommunicator, "all_gatherv", _unevenly, Path(order), ("uneven",), _is_even)
    else:
        from vllm.distributed.device_communicators.cuda_communicator import CudaCommunicator

        _replace(CudaCommunicator, "reduce_scatterv", _on_gpu, Path(order))
        _replace(
            CudaCommunicator, "all_gatherv", _dispatch, Path(order), ("uneven", "swap"), _is_even
        )
        _replace(
            CudaCommunicator, "all_reduce", _without, Path(order), ("skip_all_reduce",), _is_tp
        )


def _take_dispatcher_from(lacking: int) -> None:
    """Give one rank vLLM's own dispatcher, before its groups are created."""
    import torch
    from vllm.distributed.device_communicators import all2all
    from vllm.distributed.parallel_state import GroupCoordinator

    usual = GroupCoordinator.__init__

    def planted(self: Any, *args: Any, **kwargs: Any) -> None:
        manager = all2all.AgRsAll2AllManager
        if torch.distributed.get_rank() == lacking and manager.__module__ != all2all.__name__:
            all2all.AgRsAll2AllManager = manager.__base__
        usual(self, *args, **kwargs)

    if not getattr(usual, "planted", False):
        planted.planted = True  # type: ignore[attr-defined]
        GroupCoordinator.__init__ = planted


def _plant_in_service(order: Path) -> None:
    """Plant the faults of engines and workers outside of any collective."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.executor.multiproc_executor import WorkerProc

    answer, call = WorkerProc.enqueue_output, WorkerProc._execute_worker_rpc
    allocate = KVCacheManager.allocate_slots

    def enqueue_output(self: Any, output: Any) -> None:
        if self.rank != 0 or not _take(order, ("lose_reply",)):
            answer(self, output)

    def execute(self: Any, request: Any) -> None:
        if request[0] not in _OF_A_STEP and self.rank == 1 and _take(order, ("hold_rpc",)):
            _wait_for_lock(order.with_suffix(".lock"))
        call(self, request)

    def allocate_slots(self: Any, *args: Any, **kwargs: Any) -> Any:
        full = _ordered(order) == "no_blocks"
        return None if full else allocate(self, *args, **kwargs)

    if not getattr(answer, "planted", False):
        enqueue_output.planted = True  # type: ignore[attr-defined]
        WorkerProc.enqueue_output, WorkerProc._execute_worker_rpc = enqueue_output, execute
        KVCacheManager.allocate_slots = allocate_slots


def _wait_for_lock(path: Path) -> None:
    with path.open("w") as held, path.open("w") as file:
        fcntl.flock(held, fcntl.LOCK_EX)
        fcntl.flock(file, fcntl.LOCK_EX)


def _keep_async_scheduling(platform: Any) -> None:
    """Leave asynchronous scheduling on, as it is by default: the CPU build turns it off."""
    usual = platform.check_and_update_config
    if getattr(usual, "planted", False):
        return

    def planted(cls: Any, config: Any) -> None:
        asked = config.scheduler_config.async_scheduling
        usual(config)
        config.scheduler_config.async_scheduling = asked

    planted.planted = True  # type: ignore[attr-defined]
    platform.check_and_update_config = classmethod(planted)


def _on_cpu(fault: str, communicator: Any, input_: Any) -> Any:
    if fault == "replace":
        communicator.all_gather(input_)
    return input_


def _is_even(communicator: Any, input_: Any, dim: int = 0, sizes: Any = None) -> bool:
    return bool(sizes) and len(set(sizes)) == 1


def _may_dispatch(order: Path) -> Callable[..., bool]:
    def may(*args: Any, **kwargs: Any) -> bool:
        return _is_even(*args, **kwargs) or _ordered(order) == "swap"

    return may


def _unevenly(fault: str, communicator: Any, input_: Any, dim: int, sizes: Any) -> Any:
    from ncclscope_patches.probes import uneven

    return [
        uneven.all_gatherv(communicator.device_group, communicator.ranks, tensor, sizes)
        for tensor in input_
    ]


def _is_tp(communicator: Any, *_: Any) -> bool:
    return str(communicator.unique_name).startswith("tp")


def _without(fault: str, communicator: Any, input_: Any) -> Any:
    return input_.clone()


def _dispatch(fault: str, communicator: Any, input_: Any, dim: int, sizes: Any) -> Any:
    usual = _gpu_unevenly if fault == "uneven" else _swapped
    return usual(fault, communicator, input_, dim, sizes)


def _swapped(fault: str, communicator: Any, input_: Any, dim: int, sizes: Any) -> Any:
    """The reduce_scatter comes first, and is left out where it belongs: counts stay equal."""
    hidden = input_[0] if isinstance(input_, list) else input_
    early = communicator.reduce_scatterv(
        hidden.new_zeros((sum(sizes), *hidden.shape[1:])), 0, sizes=sizes
    )

    def once(*_: Any, **__: Any) -> Any:
        del communicator.reduce_scatterv
        return early

    gathered = communicator.all_gatherv(input_, dim, sizes)
    communicator.reduce_scatterv = once
    return gathered


def _gpu_unevenly(fault: str, communicator: Any, input_: Any, dim: int, sizes: Any) -> Any:
    """What vLLM does with sizes that differ: a group of broadcasts in place of an all_gather."""
    direct = communicator.pynccl_comm
    gathered = []
    direct.group_start()
    for tensor in input_:
        output = tensor.new_empty((sum(sizes), *tensor.shape[1:]))
        direct.all_gatherv(output, tensor, sizes=sizes)
        gathered.append(output)
    direct.group_end()
    return gathered


def _on_gpu(fault: str, communicator: Any, input_: Any, *_: Any, **options: Any) -> Any:
    sizes = options.get("sizes")
    rows = sizes[DIVERGING_RANK] if sizes else input_.shape[0] // communicator.world_size
    if fault == "replace":
        communicator.all_gather(input_[:rows].contiguous(), 0)
    return input_[:rows].clone()


def _replace(
    owner: Any,
    name: str,
    instead: Callable[..., Any],
    order: Path,
    faults: tuple[str, ...] = ("skip", "replace"),
    applies: Callable[..., bool] = lambda *args, **kwargs: True,
) -> None:
    usual = getattr(owner, name)
    if getattr(usual, "planted", False):
        return

    def planted(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            self.global_rank == DIVERGING_RANK
            and applies(self, *args, **kwargs)
            and (fault := _take(order, faults))
        ):
            return instead(fault, self, *args, **kwargs)
        return usual(self, *args, **kwargs)

    planted.planted = True  # type: ignore[attr-defined]
    setattr(owner, name, planted)


def _ordered(order: Path) -> str:
    """Return the fault that is ordered; another process may take it away at any moment."""
    try:
        return order.read_text()
    except FileNotFoundError:
        return ""


def _take(order: Path, faults: tuple[str, ...]) -> str:
    if (fault := _ordered(order)) not in faults:
        return ""
    order.unlink()
    return fault
