"""Recognise in a stack what keeps a rank busy: compilation, autotuning, loading, a download."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ncclscope.model.snapshot import Frame
from ncclscope.wording.stacks import WORK

_ANY = re.compile("")
_KINDS = (
    # The innermost kind counts: autotuning runs below torch.compile, a download below a loader.
    (
        "autotuning",
        re.compile(
            r"(?:^|/)(?:torch/_inductor/(?:select_algorithm|autotune_process|"
            r"runtime/(?:triton_heuristics|benchmarking|coordinate_descent_tuner))|"
            r"triton/runtime/autotuner|triton/testing|flashinfer/autotuner)\.py$"
        ),
        re.compile(r"auto_?tune|bench|_bench$|tune", re.IGNORECASE),
    ),
    (
        "triton",
        re.compile(r"(?:^|/)triton/(?:compiler/|backends/|runtime/(?:jit|build)\.py$)"),
        re.compile(r"compile|make_|build|_do_compile|stages|ttir|llir|ptx|cubin"),
    ),
    (
        "extension",
        re.compile(
            r"(?:^|/)(?:torch/utils/cpp_extension|flashinfer/jit/\w+|deep_gemm/jit/\w+)\.py$"
        ),
        re.compile(r"compile|build|ninja|_jit|load"),
    ),
    (
        "compile",
        re.compile(
            r"(?:^|/)torch/(?:_dynamo/(?:convert_frame|output_graph|symbolic_convert)|"
            r"_inductor/(?:compile_fx|graph|codecache|scheduler|async_compile)|"
            r"_functorch/aot_autograd|_functorch/_aot_autograd/graph_compile)\.py$"
        ),
        _ANY,
    ),
    (
        "download",
        re.compile(
            r"(?:^|/)(?:huggingface_hub/(?:file_download|_snapshot_download|utils/_http)|torch/hub|"
            r"modelscope/hub/\w+|urllib/request)\.py$"
        ),
        re.compile(r"download|http_get|xet_get|urlopen|retrieve"),
    ),
    (
        "load",
        re.compile(
            r"(?:^|/)(?:safetensors/\w+|torch/serialization|torch/distributed/checkpoint/\w+|"
            r"vllm/model_executor/model_loader/\w+|transformers/modeling_utils)\.py$"
        ),
        re.compile(r"load|safe_open|from_pretrained|get_all_weights|iterator|read"),
    ),
)


def work_of(frames: Sequence[Frame]) -> tuple[str, int] | None:
    """Return the work that a stack is in, and the index of its outermost frame.

    Args:
        frames: The stack, the outermost frame first.

    Returns:
        For example ``("torch.compile", 3)``; None for other stacks.
    """
    for frame in reversed(frames):
        for name, file, function in _KINDS:
            if file.search(frame.file) and function.search(frame.name):
                return WORK[name], _outermost(frames)
    return None


def _outermost(frames: Sequence[Frame]) -> int:
    """Return the index of the first frame of any work, above which is the program."""
    return next(
        index
        for index, frame in enumerate(frames)
        if any(file.search(frame.file) and name.search(frame.name) for _, file, name in _KINDS)
    )
