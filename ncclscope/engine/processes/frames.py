"""Derive from Python frames which collective a thread is in, or what it waits for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ncclscope.model.snapshot import Frame

_HOMES = re.compile(
    r"(?:^|/)(?:torch/distributed(?!/(?:rpc|checkpoint)/)|vllm/distributed|sglang/srt/distributed|"
    r"deepspeed/comm|horovod|megatron/core/(?:tensor|pipeline)_parallel|cupyx/distributed)/"
)
"""Folders with functions that are collectives. Those of torch's RPC gather by remote calls, and a
server waits in them until its clients need it no more. Those of checkpoints also save files."""
_PREFIXES = re.compile(r"^_*(?:tensor_model_parallel_|custom_|quick_|symm_mem_)?_*")
_SPELLINGS = {
    "all_gather_into_tensor": "all_gather",
    "all_gather_base": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_object": "all_gather",
    "all_gather_coalesced": "all_gather",
    "all_reduce_coalesced": "all_reduce",
    "all_to_all_single": "all_to_all",
    "broadcast_object_list": "broadcast",
    "broadcast_tensor_dict": "broadcast",
    "broadcast_object": "broadcast",
    "gather_object": "gather",
    "monitored_barrier": "barrier",
    "reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatterv_into_output": "reduce_scatterv",
    "scatter_object_list": "scatter",
    "isend": "send",
    "irecv": "recv",
    "send_object": "send",
    "recv_object": "recv",
    "send_object_list": "send",
    "recv_object_list": "recv",
    "send_tensor_dict": "send",
    "recv_tensor_dict": "recv",
    "init_device_mesh": "new_group",
    "new_subgroups": "new_group",
    "new_subgroups_by_enumeration": "new_group",
    "split_group": "new_group",
}
INIT_OPS = frozenset({"init_process_group", "new_group", "store"})
"""Operations that all members must join, too, and in which backends poll while they wait."""
TRANSFERS = frozenset({"send", "recv"})
POSTED_BY_CPP = frozenset({"backward", "forward"})
"""Functions below which the reducer of DistributedDataParallel posts collectives."""
COLLECTIVES = {
    "all_gather",
    "all_gatherv",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatterv",
    "scatter",
    "send",
    "init_process_group",
    *_SPELLINGS.values(),
}
_BACKWARD = re.compile(r"(?:^|/)torch/autograd/(?:graph|__init__|function)\.py$")
_DDP = re.compile(r"(?:^|/)torch/nn/parallel/distributed\.py$")
_COMPILED = re.compile(r"(?:^|/)torch/(?:fx/graph_module|_functorch/_aot_autograd/\w+)\.py$")
_BATCH = "batch_isend_irecv"
_MESSAGES = re.compile(r"p2p|/pipelining/|pipeline_parallel")
_DISPATCH = re.compile(r"(?:^|/)torch/(?:_ops|_tensor|_library/\w+|utils/_contextlib)\.py$")
_STORE_CALL = re.compile(
    r"store\.(?:get|wait|multi_get|compare_set|barrier|queue_pop)$", re.IGNORECASE
)
_FUNCTIONAL = re.compile(r"(?:^|\.)_c10d_functional\.(\w+)")
"""Collectives that a compiled graph calls."""
_LOCK_CALL = re.compile(r"\.(?:acquire|__enter__)$")
_SLEEPS = re.compile(r"(?:^|\.)sleep$")
_DEVICE_CALL = re.compile(r"\.(?:item|tolist|cpu|numpy|nonzero|synchronize)$")
_WAITS = (
    (
        "data",
        re.compile(r"(?:^|/)torch/utils/data/dataloader\.py$"),
        {"_get_data", "_try_get_data"},
    ),
    (
        "lock",
        re.compile(
            r"(?:^|/)(?:filelock/_\w+|torch/utils/file_baton|multiprocessing/synchronize)\.py$"
        ),
        {"acquire", "wait", "__enter__"},
    ),
    (
        "child",
        re.compile(r"(?:^|/)subprocess\.py$"),
        {"wait", "communicate", "_wait", "_communicate"},
    ),
    (
        "socket",
        re.compile(r"(?:^|/)(?:socket|ssl|http/client)\.py$"),
        {
            "readinto",
            "read",
            "recv",
            "recv_into",
            "accept",
            "create_connection",
            "connect",
            "begin",
        },
    ),
    ("device", re.compile(r"(?:^|/)torch/cuda/(?:streams|__init__|graphs)\.py$"), {"synchronize"}),
    ("answer", re.compile(r"(?:^|/)vllm/v1/executor/multiproc_executor\.py$"), {"get_response"}),
    (
        "queue",
        re.compile(r"(?:^|/)shm_broadcast\.py$"),
        {"acquire_read", "acquire_write", "dequeue", "enqueue", "wait"},
    ),
    (
        "started",
        re.compile(r"(?:^|/)(?:torch/multiprocessing/spawn|multiprocessing/process)\.py$"),
        {"join"},
    ),
    (
        "queue",
        re.compile(r"(?:^|/)(?:multiprocessing/(?:connection|queues|popen_fork)|queue)\.py$"),
        {"_recv", "_poll", "recv_bytes", "recv", "poll", "wait", "get"},
    ),
    ("queue", re.compile(r"(?:^|/)(?:zmq/.*|selectors|asyncio/.*)\.py$"), {"poll", "select"}),
    ("queue", re.compile(r"(?:^|/)ray/_private/worker\.py$"), {"main_loop", "run_task_loop"}),
    (
        "lock",
        re.compile(r"(?:^|/)threading\.py$"),
        {"wait", "join", "_wait_for_tstate_lock", "_shutdown"},
    ),
)
_BLOCKED = {
    "sleep": "sleep",
    "lock": "lock",
    "socket": "socket",
    "pipe": "file",
    "fifo": "file",
    "file": "file",
    "child": "child",
}
_PLUMBING = re.compile(
    r"(?:^|/)(?:torch/(?:distributed|_ops\.py|_tensor\.py|_dynamo|_functorch|_inductor|_library|"
    r"autograd|cuda|utils/_contextlib\.py|nn/modules/module\.py|nn/parallel/distributed\.py)|vllm/(?:distributed|compilation)|"
    r"contextlib\.py|functools\.py|typing_extensions\.py|warnings\.py|threading\.py|queue\.py|"
    r"selectors\.py|multiprocessing|asyncio|zmq|triton|ncclscope_patches|"
    r"ncclscope/(?:tracing|ring))(?:/|$)|"
    r"^<frozen"
)


def collective_of(frame: Frame) -> str | None:
    """Return the collective that a frame calls; None where it calls none."""
    if not _HOMES.search(frame.file):
        return None
    name = _PREFIXES.sub("", frame.name)
    name = _SPELLINGS.get(name, name)
    return name if name in COLLECTIVES else None


def runs_own_code(frames: Sequence[Frame], start: int) -> bool:
    """Return whether a collective's function has called the user's program, as pickling does.

    Args:
        frames: The stack, the outermost frame first.
        start: Index of the collective's frame.
    """
    below = frames[start + 1 :]
    own = [i for i, one in enumerate(below) if one.installed is False and not is_library(one)]
    return bool(own) and not any(_HOMES.search(one.file) for one in below[own[-1] :])


def wait_of(frame: Frame) -> str | None:
    """Return what a frame waits for, such as ``device``, ``queue`` or ``lock``; else None."""
    for what, file, names in _WAITS:
        if frame.name in names and file.search(frame.file):
            return what
    return None


def unrecorded_of(frames: Sequence[Frame]) -> str | None:
    """Return what a stack that does not move waits in, where C++ posts the collective.

    DistributedDataParallel posts from the reducer, below ``backward`` and below its own forward;
    other parts of torch.distributed may wait anywhere.

    Args:
        frames: The stack, the outermost frame first.

    Returns:
        ``backward``, ``forward``, ``compiled`` for a graph, ``p2p`` for messages between stages,
        or the function of torch.distributed; None otherwise.
    """
    own = [frame for frame in frames if not _DISPATCH.search(frame.file)]
    if not own:
        return None
    last = own[-1]
    if _BACKWARD.search(last.file):
        return "backward"
    if _DDP.search(last.file):
        return "forward"
    for name in last.calls:
        if (found := _FUNCTIONAL.search(name)) is not None:
            return found[1]
    if _COMPILED.search(last.file):
        return "compiled"
    while own and own[-1].name.startswith("<"):  # a comprehension has no name of its own
        own.pop()
    if not own or not _HOMES.search((last := own[-1]).file):
        return None
    return "p2p" if _MESSAGES.search(f"{last.file} {last.name}") else last.name


def waited_call(frame: Frame, blocked: str, has_gpu: bool) -> tuple[str | None, str | None]:
    """Return what a source line's call into C waits for.

    Args:
        frame: The innermost frame.
        blocked: What the thread's system call waits for.
        has_gpu: Whether the process uses a GPU.

    Returns:
        The collective, and what the call waits for; None for each that is not known.
    """
    for name in frame.calls:
        if _STORE_CALL.search(name) and blocked in ("poll", "socket", "sleep"):
            return "store", "collective"
        if name.endswith(".wait") and blocked == "futex":
            return _made_by(frame.makers), "collective"
        if _LOCK_CALL.search(name) and blocked in ("futex", "lock"):
            return None, "lock"
        if _DEVICE_CALL.search(name) and has_gpu:
            return None, "device"
    return None, _BLOCKED.get(blocked)


def collectives_of(names: Sequence[str]) -> set[str]:
    """Return the collectives among the names that a source line calls, such as ``dist.send``."""
    own = [name.rpartition(".")[2] for name in names]
    return {_SPELLINGS.get(name, name) for name in own} & {*COLLECTIVES, _BATCH}


def _made_by(makers: Sequence[str]) -> str:
    """Return the collective that all works come from which are waited for, else ``wait``."""
    ops = collectives_of(makers)
    return ops.pop() if len(ops) == 1 and not ops & {_BATCH} else "wait"


def is_stuck_alone(frame: Frame, blocked: str, is_busy: bool) -> bool:
    """Return whether a line of the program waits for no peer: it sleeps, spins, or is blocked.

    Args:
        frame: The innermost frame.
        blocked: What the thread's system call waits for.
        is_busy: Whether the thread uses a core.
    """
    if is_busy:
        return frame.installed is False and not frame.calls  # it calls nothing that could wait
    if blocked == "sleep":
        return any(map(_SLEEPS.search, frame.calls))
    return waited_call(frame, blocked, has_gpu=False)[1] in ("child", "file", "lock")


def is_plumbing(frame: Frame) -> bool:
    """Return whether a frame belongs to a library between the program and its collectives."""
    return bool(_PLUMBING.search(frame.file)) or frame.file.rpartition(".")[2] != "py"


def is_library(frame: Frame) -> bool:
    """Return whether a frame is known to belong to a library, not to the user's program."""
    return (
        frame.installed is True
        or is_plumbing(frame)
        or bool(_HOMES.search(frame.file))
        or wait_of(frame) is not None
    )


def program_frame(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the program itself; without one, the innermost frame."""
    own = [frame for frame in frames if not is_plumbing(frame)]
    return own[-1] if own else (frames[-1] if frames else None)


def user_frame(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's own program, outside of installed packages."""
    own = [frame for frame in frames if frame.installed is False and not is_plumbing(frame)]
    return own[-1] if own else None
