"""Which line of the program posted a call.

The frames nearest to a collective belong to plumbing: torch's wrappers, vLLM's
communicator classes, our own probes. The call site is the first frame above them.
Walking up costs about 0.1 us a frame, so frames are classified once and known by the
identity of their code object afterwards.
"""

from __future__ import annotations

import os
from types import CodeType, FrameType

__all__ = ["describe", "locate", "plumbing"]

_PLUMBING = tuple(
    part.replace("/", os.sep)
    for part in (
        "/torch/distributed/",
        "/torch/_dynamo/",
        "/torch/_functorch/",
        "/torch/_higher_order_ops/",
        "/torch/_inductor/",
        "/torch/_library/",
        "/torch/_ops.py",
        "/torch/_tensor.py",
        "/torch/autograd/",
        "/torch/fx/",
        "/torch/nn/modules/module.py",
        "/torch/utils/_contextlib.py",
        "/torch/utils/_python_dispatch.py",
        "/vllm/compilation/",
        "/vllm/distributed/",
        "/ncclscope/tracing/",
        "/ncclscope_patches/",
        "/contextlib.py",
        "/functools.py",
        "/typing_extensions.py",  # its @deprecated, on names that torch gives up
        "/warnings.py",
    )
)

# By id(code). The code objects are kept in _codes, or another could take over an id.
plumbing: dict[int, bool] = {}
_codes: list[CodeType] = []
_texts: dict[tuple[int, int], str] = {}

_LIMIT = 20_000
"""Programs that make code at run time must not make these tables grow without end."""


def locate(frame: FrameType | None) -> tuple[int, int, CodeType] | None:
    """Finds the first frame that is not plumbing, from ``frame`` outwards.

    Returns:
        Identity of its code, offset of the instruction, and the code; None when there is
        none. The first two identify the call site and are cheap to hash.
    """
    known = plumbing
    while frame is not None:
        code = frame.f_code
        skipped = known.get(id(code))
        if skipped is None:
            skipped = _classify(code)
        if not skipped:
            return id(code), frame.f_lasti, code
        frame = frame.f_back
    return None


def describe(code: CodeType, instruction: int) -> str:
    """Returns ``file.py:120 function`` for an instruction of a code object."""
    key = (id(code), instruction)
    text = _texts.get(key)
    if text is None:
        _classify(code)  # keeps the code alive, so that the key stays true
        line = code.co_firstlineno
        for start, end, number in code.co_lines():
            if start <= instruction < end and number is not None:
                line = number
                break
        text = f"{os.path.basename(code.co_filename)}:{line} {code.co_name}"
        if len(_texts) < _LIMIT and id(code) in plumbing:
            _texts[key] = text
    return text


def _classify(code: CodeType) -> bool:
    known = plumbing.get(id(code))
    if known is not None:
        return known
    found = any(part in code.co_filename for part in _PLUMBING)
    if len(_codes) < _LIMIT:
        _codes.append(code)
        plumbing[id(code)] = found
    return found
