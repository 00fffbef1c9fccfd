"""A vLLM plugin for tests: one worker leaves the common sequence when it is told to.

The file that NCCLSCOPE_TEST_FAULT names holds the fault, ``skip`` or ``replace``. As soon
as it is there, the worker of tensor-parallel rank 1 takes it away and does that to the next
all_reduce of the model: above the probe, so that what is recorded is what is posted.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

DIVERGING_RANK = 1


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``."""
    order = os.environ.get("NCCLSCOPE_TEST_FAULT")
    if not order:
        return
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    usual = CpuCommunicator.all_reduce
    if getattr(usual, "planted", False):
        return

    def all_reduce(self: Any, input_: Any) -> Any:
        fault = _take(Path(order)) if self.rank_in_group == DIVERGING_RANK else ""
        if fault == "skip":
            return input_
        if fault == "replace":
            self.all_gather(input_)
            return input_
        return usual(self, input_)

    all_reduce.planted = True  # type: ignore[attr-defined]
    CpuCommunicator.all_reduce = all_reduce


def _take(order: Path) -> str:
    if not order.exists():
        return ""
    fault = order.read_text()
    order.unlink()
    return fault
