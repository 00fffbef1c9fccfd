"""Let vLLM's second model runner start on a machine without a GPU: it needs Triton.

With this folder on ``PYTHONPATH`` and ``TRITON_INTERPRET=1``, vLLM finds a Triton backend for CPUs,
and Triton's own interpreter runs the kernels, slowly. The runner and its kernels are vLLM's own;
only their compilation is played. torch compiles nothing, as it would ask that backend for code.
"""

import os
import types
from typing import Any


def _offer_backend() -> None:
    from triton.backends import backends

    driver = types.SimpleNamespace(is_active=lambda: True)
    backends["cpu"] = types.SimpleNamespace(driver=driver, compiler=None)


def _accept_masks() -> None:
    """Accept masks of numbers, as the compiler does."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, tl

    def with_bools(name: str, place: int) -> None:
        usual = getattr(InterpreterBuilder, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            given = list(args)
            if given[place].data.dtype != bool:
                given[place] = TensorHandle(given[place].data.astype(bool), tl.int1)
            return usual(*given, **kwargs)

        setattr(InterpreterBuilder, name, call)

    with_bools("create_masked_load", 2)
    with_bools("create_masked_store", 3)


if os.environ.get("TRITON_INTERPRET") == "1":
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    _offer_backend()
    _accept_masks()
