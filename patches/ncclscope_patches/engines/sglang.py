"""Label SGLang's communicators, record the calls of its own NCCL binding, and its steps."""

from __future__ import annotations

from typing import Any

from ncclscope.model.activities import COMM_INIT
from ncclscope.tracing import session
from ncclscope_patches.engines.steps import StepPatch
from ncclscope_patches.probes.noting import put_noting
from ncclscope_patches.probes.probe import Before, Note
from ncclscope_patches.probes.recording import NOBODY
from ncclscope_patches.startup.groups import comm_size
from ncclscope_patches.vllm import pynccl
from ncclscope_patches.vllm.groups import name_groups

_PLACES = ("tp", "attn_tp", "attn_cp", "dcp", "moe_dp", "moe_ep", "moe_tp", "pp")
"""Groups in which a rank has a place, by the variable of SGLang that holds them."""


class SglangPyNcclProbe(pynccl.PyNcclProbe):
    """Records every method of SGLang's ``PyNcclCommunicator`` that enqueues work.

    The class comes from vLLM's. It is disabled except inside of ``change_state``, and calls on a
    disabled communicator enqueue nothing.
    """

    name = "sglang_pynccl"
    target = "sglang.srt.distributed.device_communicators.pynccl"

    def watch_connecting(self, library: Any, connect: Before) -> None:
        """Declare a communicator before it connects, and note while it does."""

        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str | None, int]:
            connect(args, kwargs)
            return comm_size(args, kwargs)

        for name in ("ncclCommInitRank", "ncclCommInitRankConfig"):
            put_noting(self, library, name, COMM_INIT, begin)


class SglangGroups(Note):
    """Labels the communicators of each group, and describes the rank once all groups exist.

    torch's group carries a group's calls unless a part of the program, such as the capture of a
    graph, enables the NCCL binding: so the plain name is torch's here, other than with vLLM.
    """

    name = "sglang_groups"
    target = "sglang.srt.distributed.parallel_state"

    def install(self, module: Any) -> None:
        coordinator = module.GroupCoordinator
        self.replace(coordinator, "__init__", after=lambda token, _: _label(token[0][0]))
        self.replace(module, "initialize_model_parallel", after=lambda *_: _describe(module))


class SglangSteps(StepPatch):
    """Numbers the forward passes of this process from 1, those of a draft model included.

    A rank without a request of its own runs an idle batch where its peers need it.
    """

    name = "sglang_steps"
    target = "sglang.srt.model_executor.model_runner"

    def install(self, module: Any) -> None:
        self.replace(module.ModelRunner, "forward", self._forward)

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        batch = args[1] if len(args) > 1 else kwargs["forward_batch"]
        idle = batch.forward_mode.is_idle()
        ids = batch.input_ids
        self._next(0 if idle else None if ids is None else int(ids.shape[0]), idle)


def _label(coordinator: Any) -> None:
    name, ranks = coordinator.unique_name, list(coordinator.ranks)
    name_groups(coordinator, name, ranks)
    direct = coordinator.pynccl_comm
    handle = NOBODY if direct is None else pynccl.handles.of(direct)
    if handle is not NOBODY:
        handle.rename(f"{name}/pynccl", ranks)


def _describe(module: Any) -> None:
    tracer = session.current()
    if tracer is None:
        return
    labels = {}
    for name in _PLACES:
        group = getattr(module, f"_{name.upper()}", None)
        if group is not None and group.world_size > 1:
            labels[name] = str(group.rank_in_group)
    tracer.describe(labels=labels, role="worker")
