"""A vLLM plugin for tests: engines and workers are forks of the server, which has imported vLLM.

The CPU build spawns them, and each of the four processes of a small server then imports vLLM for
some 12 s of processor time, one after the other.
"""

from __future__ import annotations

import os
from typing import Any


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``."""
    from vllm.platforms import current_platform

    platform = type(current_platform)
    if not current_platform.is_cpu() or getattr(platform, "forks", False):
        return
    usual = platform.check_and_update_config

    def forking(cls: Any, config: Any) -> None:
        usual(config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        # What the children need, once for all of them.
        import vllm.v1.engine.core
        import vllm.v1.worker.cpu_worker  # noqa: F401

    platform.check_and_update_config = classmethod(forking)
    platform.forks = True
