"""The engine of one rank: a step loop over mixture-of-experts layers.

The right result of its arithmetic is known: every row of a replica holds one
small number, each reduction multiplies it by the size of the group, and a
division takes that back. Wrong rows show that a collective mixed up data although
it completed.

Every place at which a rank could diverge is a method of
:class:`~ncclscope.lab.faults.base.Fault`; the healthy ones call back into this class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from ncclscope.lab.communicator import LabCommunicator
from ncclscope.lab.sizes import Sizes

if TYPE_CHECKING:
    from ncclscope.lab.progress import ProgressEntry
    from ncclscope.lab.stream import Stream
    from ncclscope.tracing.tracer import Tracer

__all__ = ["Conduct", "Engine"]

_LOGITS = 8
"""Columns of the tensor that the ranks gather for sampling."""


class Conduct(Protocol):
    """Behaviour of a rank in a step: see :class:`~ncclscope.lab.faults.base.Fault`."""

    def coordinate(self, engine: Engine) -> list[int]: ...
    def share_schedule(self, engine: Engine) -> None: ...
    def reduce_attention(self, engine: Engine, hidden: torch.Tensor, layer: int) -> None: ...
    def dispatch(self, engine: Engine, hidden: torch.Tensor, layer: int) -> torch.Tensor: ...
    def combine(self, engine: Engine, gathered: torch.Tensor, layer: int) -> torch.Tensor: ...
    def reduce_experts(self, engine: Engine, hidden: torch.Tensor, layer: int) -> None: ...
    def finish(self, engine: Engine) -> None: ...


class Engine:
    """Step loop of one rank.

    Args:
        program: Sizes of the run.
        rank: Own global rank.
        world: Communicator of all ranks.
        tp: Communicator of the replica.
        dp: Communicator of the ranks with the same tensor-parallel rank.
        stream: Runs the posted calls.
        tracer: Records the steps.
        progress: Counts the steps.
        device: Device of the tensors.
        healthy: Behaviour of all ranks in a step.
        planted: Behaviour of the diverging rank in the step of the fault.

    Attributes:
        rows: Rows of the batch in this step.
        sizes: Rows of each replica in this step, ``[dp]``.
    """

    def __init__(
        self,
        program: Sizes,
        rank: int,
        *,
        world: LabCommunicator,
        tp: LabCommunicator,
        dp: LabCommunicator,
        stream: Stream,
        tracer: Tracer,
        progress: ProgressEntry,
        device: torch.device,
        healthy: Conduct,
        planted: Conduct,
    ) -> None:
        self.program = program
        self.rank = rank
        self.dp_rank, self.tp_rank = program.place(rank)
        self.world = world
        self.tp = tp
        self.dp = dp
        self.stream = stream
        self.device = device
        self.rows = 0
        self.sizes: list[int] = []
        self._tracer = tracer
        self._progress = progress
        self._healthy = healthy
        self._planted = planted

    def run(self) -> None:
        """Run all steps.

        Raises:
            RuntimeError: A collective failed.
        """
        for step in range(1, self.program.steps + 1):
            self._run_step(step)
        self.world.barrier()
        self.stream.synchronize()

    def _run_step(self, step: int) -> None:
        program = self.program
        planted = (self.rank, step) == (program.fault_rank, program.fault_step)
        conduct = self._planted if planted else self._healthy
        tokens = program.tokens(step, self.dp_rank)
        self.rows = program.rows(step, self.dp_rank)
        self._tracer.step(step, tokens=tokens, dummy=tokens == 0)
        self._progress.begin(step)

        self.sizes = conduct.coordinate(self)
        conduct.share_schedule(self)
        expected = self.dp_rank % 8 + 1
        hidden = self.tensor((self.rows, program.hidden), torch.bfloat16, expected)
        for layer in range(program.layers):
            conduct.reduce_attention(self, hidden, layer)
            gathered = conduct.dispatch(self, hidden, layer)
            self.stream.launch(gathered.relu_)
            hidden = conduct.combine(self, gathered, layer)
            conduct.reduce_experts(self, hidden, layer)
        conduct.finish(self)
        self.stream.synchronize()
        if not bool((hidden == expected).all()):
            self._progress.note_wrong(step)

    def tensor(
        self, shape: tuple[int, ...], dtype: torch.dtype = torch.int32, value: float = 0
    ) -> torch.Tensor:
        """Return a new tensor on the device.

        Args:
            shape: Its shape.
            dtype: Its type.
            value: Value of all its elements.
        """
        return torch.full(shape, value, dtype=dtype, device=self.device)

    # --- the healthy sequence ----------------------------------------------------------------

    def coordinate(self) -> list[int]:
        """Exchange the number of rows with the other replicas; return all of them."""
        if self.dp.size == 1:
            return [self.rows]
        counts = self.tensor((self.program.dp,))
        counts[self.dp_rank] = self.rows
        self.dp.all_reduce(counts)
        # The host needs this result before it can post the next call.
        self.stream.synchronize()
        return [int(count) for count in counts.tolist()]

    def share_schedule(self, root: int = 0) -> None:
        """Broadcast the schedule of the replica's first rank to the others."""
        self.tp.broadcast(self.tensor((self.rows,)), root)

    def reduce_attention(self, hidden: torch.Tensor) -> None:
        """Sum the contributions of the ranks' attention heads, in place."""
        self.tp.all_reduce(hidden)
        self.stream.launch(hidden.div_, self.tp.size)

    def dispatch(self, hidden: torch.Tensor) -> torch.Tensor:
        """Gather the rows ``[sum(sizes), hidden]`` of all replicas for this rank's experts."""
        return self.dp.all_gatherv(hidden, self.sizes)

    def combine(self, gathered: torch.Tensor) -> torch.Tensor:
        """Return the replica's own rows ``[rows, hidden]``, summed over all experts."""
        hidden = self.dp.reduce_scatterv(gathered, self.sizes)
        self.stream.launch(hidden.div_, self.dp.size)
        return hidden

    def reduce_experts(self, hidden: torch.Tensor) -> None:
        """Sum the contributions of the ranks' expert shards, in place."""
        self.tp.all_reduce(hidden)
        self.stream.launch(hidden.div_, self.tp.size)

    def gather_logits(self) -> None:
        """Gather the logits for sampling."""
        self.tp.all_gather(self.tensor((self.rows, _LOGITS), torch.float32))

    def count_load(self) -> None:
        """Sum the number of tokens of each expert over all ranks."""
        self.world.all_reduce(self.tensor((self.program.experts,)))
