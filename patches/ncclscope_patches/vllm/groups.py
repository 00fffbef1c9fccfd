"""Label communicators and processes with vLLM's names.

vLLM counts names in each process, so every replica has a group ``tp:0``; the members tell them
apart. If a group has several communicators, the one with the model's traffic gets the plain name,
and the others ``tp:0/device`` and ``tp:0/cpu``.
"""

from __future__ import annotations

import sys
from typing import Any

from ncclscope.tracing import session
from ncclscope_patches.probes import process_groups
from ncclscope_patches.probes.probe import Note
from ncclscope_patches.probes.recording import NOBODY, Handle

_LABELS = ("tp", "pp", "dp", "ep", "pcp", "dcp")
_GROUPS = (*_LABELS, "etp", "eplb", "engram_dp")


class VllmCommunicatorNames(Note):
    """Labels a group's communicators before its device communicator connects.

    A rank may hang while connecting, and the labels should be in the ring by then.
    """

    name = "vllm_communicators"
    target = "vllm.distributed.device_communicators.base_device_communicator"

    def install(self, module: Any) -> None:
        def made(token: Any, _result: Any) -> None:
            communicator = token[0][0]
            name_groups(communicator, communicator.unique_name, communicator.ranks)

        self.replace(module.DeviceCommunicatorBase, "__init__", after=made)


class VllmGroupNames(Note):
    """Labels a group's communicators once all exist, and describes the worker."""

    name = "vllm_groups"
    target = "vllm.distributed.parallel_state"

    def install(self, module: Any) -> None:
        coordinator = module.GroupCoordinator
        # A stateless coordinator does not call its parent's __init__, so it is labelled last.
        self.replace(coordinator, "__init__", after=lambda token, _: _name_coordinator(token[0][0]))
        self.replace(module, "initialize_model_parallel", after=lambda *_: _describe_worker(module))


class VllmEngineNames(Note):
    """Marks a process as an engine core, and labels the group of engines.

    Only the engines of a data-parallel deployment have such a group. They are not ranks, unless an
    engine is its own only worker. An engine has its name from the beginning: it may hang, or raise,
    while it starts its workers.
    """

    name = "vllm_engines"
    target = "vllm.v1.engine.core"

    def install(self, module: Any) -> None:
        def starts(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            config = kwargs.get("vllm_config", args[1] if len(args) > 1 else None)
            if config is not None:
                _describe_engine(_index_of(config.parallel_config))

        def begins(args: tuple[Any, ...], _kwargs: Any) -> None:
            engine = args[0]
            group = getattr(engine, "dp_group", None)
            _describe_engine(_engine_number(engine))
            if group is not None and group.size() > 1:
                process_groups.name(group, "engines")

        for name in ("EngineCoreProc", "DPEngineCoreProc"):
            engines = getattr(module, name, None)
            if engines is not None:
                self.replace(engines, "__init__", starts)
                self.replace(engines, "run_busy_loop", begins)


def _describe_engine(number: int) -> None:
    tracer = session.current()
    if tracer is not None and tracer.rank < 0:  # else it is its own worker and already described
        tracer.describe(role="engine", labels={"engine": str(number)})


def _engine_number(engine: Any) -> int:
    number: int | None = getattr(engine, "dp_rank", None)
    return _index_of(engine.vllm_config.parallel_config) if number is None else number


def _index_of(parallel: Any) -> int:
    """Return the replica's index; the ranks of each replica of a dense model count from 0."""
    index: int = getattr(parallel, "data_parallel_index", parallel.data_parallel_rank)
    return index


def name_groups(owner: Any, name: str, ranks: list[int], device_suffix: str = "") -> None:
    """Label the process groups of a coordinator or of its device communicator.

    Args:
        owner: The coordinator or its device communicator.
        name: The group's name.
        ranks: Global ranks of its members.
        device_suffix: Added to the label of the device group.
    """
    if not name or len(ranks) < 2:
        return
    if owner.device_group is not None:
        process_groups.name(owner.device_group, name + device_suffix, ranks)
    if owner.cpu_group is not None:
        process_groups.name(owner.cpu_group, name + process_groups.CPU_SUFFIX, ranks)


def _name_coordinator(coordinator: Any) -> None:
    name, ranks = coordinator.unique_name, list(coordinator.ranks)
    fast = _fast_communicator(coordinator.device_communicator)
    if fast is not NOBODY:
        fast.rename(name, ranks)
    name_groups(coordinator, name, ranks, "" if fast is NOBODY else process_groups.DEVICE_SUFFIX)


def _fast_communicator(device_communicator: Any) -> Handle:
    """Return the communicator that vLLM uses instead of torch.distributed, if there is one."""
    from ncclscope_patches.vllm import cpu_shm, pynccl

    direct = getattr(device_communicator, "pynccl_comm", None)
    if direct is not None and not direct.disabled:
        return pynccl.handles.of(direct)
    shared: Any = getattr(device_communicator, "dist_module", None)
    if hasattr(shared, "handle"):
        return cpu_shm.handle_of(shared.handle)
    return NOBODY


def _describe_worker(module: Any) -> None:
    tracer = session.current()
    if tracer is None:
        return
    labels = {}
    for name in _GROUPS:
        group = getattr(module, f"_{name.upper()}", None)
        if group is not None:
            _name_coordinator(group)
            if group.world_size > 1 and name in _LABELS:
                labels[name] = str(group.rank_in_group)
    engine = _engine_index()
    if engine is not None:
        labels["engine"] = str(engine)
    tracer.describe(labels=labels, role="worker")


def _engine_index() -> int | None:
    config = sys.modules.get("vllm.config")
    current = getattr(config, "get_current_vllm_config_or_none", lambda: None)()
    return None if current is None else _index_of(current.parallel_config)
