"""The worker's side: what a model runner calls around each step.

    layers = RoutedLayers.of(model, routes)                     # once
    buffer = layers.buffer(top_k=8, experts=128, max_tokens=8192, device="cuda")
    worker = RoutedExpertsWorker(buffer, depth=3)
    sinks = [buffer.layer(number) for number in range(len(layers))]

    worker.begin_step(rows_of_requests_that_opted_in)           # before the forward pass
    ...                                                         # layers call sinks[n](topk_ids)
    flight = worker.end_step()                                  # after it, on the same stream
    ...
    delta = flight.take()                                       # where the output is put together

A step that nobody opted in for costs a comparison: no copy, no allocation, nothing on the device
but what a CUDA graph writes anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.capture import CaptureBuffer
from ncclscope_patches.routed_experts.deltas import RequestRows, check_rows
from ncclscope_patches.routed_experts.transfer import CopyQueue, Flight

__all__ = ["RoutedExpertsWorker"]


class RoutedExpertsWorker:
    """Capture and transfer of one model on one rank. A draft model has one of its own.

    Args:
        capture: What its layers write to.
        depth: Steps that may be in flight at a time.
        slots: Whether numbers of KV slots come along.
        sends: Whether this rank hands rows to the scheduler. The other ranks of a replica only
            help to put sequence shards together.
        model: Which model it is.
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
        """Whether the step under way is captured for somebody."""
        return bool(self._rows)

    def begin_step(self, rows: Sequence[RequestRows]) -> None:
        """Begin a step.

        Args:
            rows: Of the requests that opted in; none, mostly. They are copied: the scheduler may
                go on with its own.

        Raises:
            UsageError: They are not rows of a batch, or the step before has not ended.
        """
        if self._rows:
            raise UsageError("a step begins where another has not ended")
        if rows:
            self._rows = check_rows(rows, self.capture.max_tokens)
            last = self._rows[-1]
            self.capture.begin(last.first + last.count)

    def end_step(self, slot_mapping: torch.Tensor | None = None) -> Flight | None:
        """End it and send its rows on their way.

        Args:
            slot_mapping: KV slot of each row of the batch, where they were asked for.

        Returns:
            To be taken when the output is put together; None where there is nothing to take.
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
