"""Faults in which the rank is elsewhere, or gone."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

from ncclscope.lab.faults.base import Fault, describe, hidden_reduction

if TYPE_CHECKING:
    import torch

    from ncclscope.lab.engine import Engine
    from ncclscope.lab.sizes import Sizes


class _Absence(Fault):
    """Base class of faults in which a rank stops before the attention of one layer."""

    verb: ClassVar[str]

    def planted(self, program: Sizes) -> dict[str, Any]:
        # If it is alone in its replica, its counterparts in other replicas wait first.
        comm = "tp" if program.tp > 1 else "dp"
        peers = hidden_reduction(program) if program.tp > 1 else {"op": "all_gatherv"}
        summary = f"{self.verb} before it joins the {peers['op']} of layer {program.fault_layer}"
        return describe(self, program, comm, summary, odd=None, peers=peers)

    def reduce_attention(self, engine: Engine, hidden: torch.Tensor, layer: int) -> None:
        if layer == engine.program.fault_layer:
            # Complete all earlier calls, so that the rank always stops at the same one.
            engine.stream.synchronize()
            self.leave()
        engine.reduce_attention(hidden)

    def leave(self) -> None:
        """Leave the program; never return."""
        raise NotImplementedError


class SleepingRank(_Absence):
    """The rank sleeps outside of any collective."""

    name: ClassVar[str] = "sleeping_rank"
    kind: ClassVar[str | None] = "not_joined"
    verb: ClassVar[str] = "falls asleep"

    def leave(self) -> None:
        while True:
            time.sleep(3600)


class KilledRank(_Absence):
    """The rank is killed by SIGKILL in the middle of a step."""

    name: ClassVar[str] = "killed_rank"
    kind: ClassVar[str | None] = "dead_rank"
    verb: ClassVar[str] = "is killed"

    def leave(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class FrozenRank(Fault):
    """The rank is stopped by SIGSTOP inside an all_reduce that all have posted.

    A debugger, a frozen container or a stuck kernel has the same effect: the process exists, its
    connections are open, and nothing in it runs, not even its heartbeat.
    """

    name: ClassVar[str] = "frozen_rank"
    kind: ClassVar[str | None] = "dead_rank"
    least_tp: ClassVar[int] = 2

    def planted(self, program: Sizes) -> dict[str, Any]:
        return describe(
            self,
            program,
            "tp",
            f"is stopped inside the all_reduce of layer {program.fault_layer}, which all have "
            "posted",
            odd={**hidden_reduction(program), "state": "scheduled"},
            peers=hidden_reduction(program),
        )

    def reduce_attention(self, engine: Engine, hidden: torch.Tensor, layer: int) -> None:
        if layer != engine.program.fault_layer:
            engine.reduce_attention(hidden)
            return
        engine.stream.synchronize()
        # The stream stops the process after the host has posted the call and before it runs.
        posted = threading.Event()
        engine.stream.launch(posted.wait)
        engine.stream.launch(_stop)
        engine.reduce_attention(hidden)
        posted.set()
        engine.stream.synchronize()


def _stop() -> None:
    """Stop the process before this thread takes another step.

    A signal sent to the process could be taken by another thread, a moment later.
    """
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
