"""What a Python frame says of the collectives: which call it is, or what is waited for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ncclscope.capture import Frame

__all__ = ["collective_of", "is_plumbing", "program_frame", "wait_of"]

_HOMES = re.compile(
    r"(?:^|/)(?:torch/distributed|vllm/distributed|sglang/srt/distributed|deepspeed/comm|"
    r"horovod|megatron/core/(?:tensor|pipeline)_parallel|cupyx/distributed)/"
)
_PREFIXES = re.compile(r"^_*(?:tensor_model_parallel_|custom_|quick_|symm_mem_)?_*")
_SPELLINGS = {
    "all_gather_into_tensor": "all_gather",
    "all_gather_base": "all_gather",
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
}
_OPS = {
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
    *_SPELLINGS.values(),
}
_WAITS = (
    ("device", re.compile(r"(?:^|/)torch/cuda/(?:streams|__init__|graphs)\.py$"), {"synchronize"}),
    (
        "queue",
        re.compile(r"(?:^|/)shm_broadcast\.py$"),
        {"acquire_read", "acquire_write", "dequeue", "enqueue", "wait"},
    ),
    (
        "queue",
        re.compile(r"(?:^|/)(?:multiprocessing/(?:connection|queues|popen_fork)|queue)\.py$"),
        {"_recv", "_poll", "recv_bytes", "recv", "poll", "wait", "get"},
    ),
    ("queue", re.compile(r"(?:^|/)(?:zmq/.*|selectors|asyncio/.*)\.py$"), {"poll", "select"}),
    ("queue", re.compile(r"(?:^|/)ray/_private/worker\.py$"), {"main_loop", "run_task_loop"}),
    ("lock", re.compile(r"(?:^|/)threading\.py$"), {"wait", "join", "_wait_for_tstate_lock"}),
)
_PLUMBING = re.compile(
    r"(?:^|/)(?:torch/(?:distributed|_ops\.py|_tensor\.py|_dynamo|_functorch|_inductor|_library|"
    r"autograd|cuda|utils/_contextlib\.py|nn/modules/module\.py)|vllm/(?:distributed|compilation)|"
    r"contextlib\.py|functools\.py|typing_extensions\.py|warnings\.py|threading\.py|queue\.py|"
    r"selectors\.py|multiprocessing|asyncio|zmq|ncclscope_patches/(?:probe|posting)\.py)(?:/|$)|"
    r"^<frozen"
)


def collective_of(frame: Frame) -> str | None:
    """Returns the operation that a frame is the call of; None where it is none."""
    if not _HOMES.search(frame.file):
        return None
    name = _PREFIXES.sub("", frame.name)
    name = _SPELLINGS.get(name, name)
    return name if name in _OPS else None


def wait_of(frame: Frame) -> str | None:
    """Returns what a frame waits for: ``device``, ``queue`` or ``lock``; None for nothing."""
    for what, file, names in _WAITS:
        if frame.name in names and file.search(frame.file):
            return what
    return None


def is_plumbing(frame: Frame) -> bool:
    """Whether a frame belongs to a library between the program and its collectives."""
    return bool(_PLUMBING.search(frame.file)) or frame.file.rpartition(".")[2] != "py"


def program_frame(frames: Sequence[Frame]) -> Frame | None:
    """Returns the innermost frame of the program itself; of nothing but plumbing, the last."""
    own = [frame for frame in frames if not is_plumbing(frame)]
    return own[-1] if own else (frames[-1] if frames else None)
