"""The worker's side: the interface that a model runner calls around each step.

    layers = RoutedLayers.of(model, routes)                     # once
    buffer = layers.buffer(top_k=8, experts=128, max_tokens=8192, device="cuda")
    worker = RoutedExpertsWorker(buffer, depth=3)
    sinks = [buffer.layer(number) for number in range(len(layers))]

    worker.begin_step(rows_of_requests_that_opted_in)           # before the forward pass
    ...                                                         # layers call sinks[n](topk_ids)
    flight = worker.end_step()                                  # after it, on the same stream
    ...
    delta = flight.take()                                       # where the output is put together

A step without requests that opted in costs one comparison: no copy, no allocation, and no device
work besides the writes in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.capture import CaptureBuffer
from ncclscope_patches.routed_experts.deltas import RequestRows, check_rows
from ncclscope_patches.routed_experts.transfer import CopyQueue, Flight


class RoutedExpertsWorker:
    """Capture and transfer of one model on one rank; a draft model has its own.

    Args:
        capture: The buffer that its layers write to.
        depth: Maximum number of steps in flight.
        slots: Whether KV slots are copied, too.
        sends: Whether this rank sends rows to the scheduler. The other ranks of a replica only
            take part in gathering sequence shards.
        model: Name of the model.
    """

    def __init__(
        self,
        capture: CaptureBuffer,
        *,
        depth: int = 2,
        slots: bool = False,
        sends: bool = True,
        model: str = "target",
    ) -> None:
        self.capture = capture
        self.transfer = CopyQueue(capture, depth=depth, slots=slots, model=model) if sends else None
        self._rows: tuple[RequestRows, ...] = ()

    @property
    def wanted(self) -> bool:
        """Whether the current step is captured."""
        return bool(self._rows)

    def begin_step(self, rows: Sequence[RequestRows]) -> None:
        """Begin a step.

        Args:
            rows: Rows of the requests that opted in, often none. They are copied, so that the
                scheduler may modify its own.

        Raises:
            UsageError: They are not rows of a batch, or the previous step has not ended.
        """
        if self._rows:
            raise UsageError("a step begins where another has not ended")
        if rows:
            self._rows = check_rows(rows, self.capture.max_tokens)
            last = self._rows[-1]
            self.capture.begin(last.first + last.count)

    def end_step(self, slot_mapping: torch.Tensor | None = None) -> Flight | None:
        """End the step and start copying its rows.

        Args:
            slot_mapping: KV slot of each row of the batch, ``[rows]``, if requested.

        Returns:
            The step in flight, to be taken when the output is created; None if there is none.
        """
        if not self._rows:
            return None
        rows, self._rows = self._rows, ()
        self.capture.end()
        return None if self.transfer is None else self.transfer.start(rows, slot_mapping)

    def drop_step(self) -> None:
        """End a step that failed."""
        self._rows = ()
        self.capture.end()
