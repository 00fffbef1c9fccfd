"""A vLLM plugin for tests on few processors: idle workers poll without sched_yield.

Linux 6.18 sets back a thread that yields, by a time slice for each call. A worker that polls its
queue yields thousands of times a second, and then waits seconds to minutes for a processor where
a thread of UCX polls as well.
"""

from __future__ import annotations


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``."""
    from vllm.distributed import utils

    utils.USE_SCHED_YIELD = False  # time.sleep(0) instead, as vLLM does on older Pythons
