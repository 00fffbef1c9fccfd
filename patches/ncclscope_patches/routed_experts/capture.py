"""The buffer that a forward pass writes its routing into, on the device.

Nothing here waits for a device or reads from it, and all of it can be captured in a CUDA graph.
"""

from __future__ import annotations

import numpy as np
import torch

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.shape import RoutingShape

__all__ = ["CaptureBuffer", "LayerCapture"]

# Of uint16, torch has little more than copies. The same bits in int16 can be indexed everywhere.
_STORAGE = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
# A narrower type cannot be compared with numbers that it cannot hold: torch cuts them to size.
_COMPARABLE = (torch.int32, torch.int64)


class CaptureBuffer:
    """The routing of one model's batch: ``(layers, tokens, top_k)``.

    A row counts as captured when its layer was written in this step, with numbers of experts
    that exist. Everything else is missing, so that neither the rows of an earlier step nor
    numbers that do not fit can pass for routing.

    Args:
        shape: The model's routing.
        max_tokens: Rows of the largest batch, padding included.
        device: Where the model is.

    Attributes:
        ids: Experts, ``(layers, tokens, top_k)``; uint8, int16 with the bits of uint16, or int32.
        missing: What was not captured, ``(layers, tokens)``.
    """

    def __init__(
        self, shape: RoutingShape, max_tokens: int, device: torch.device | str = "cpu"
    ) -> None:
        if max_tokens < 1:
            raise UsageError(f"no batch has {max_tokens} tokens at most")
        self.shape = shape
        self.max_tokens = max_tokens
        self.dtype = _STORAGE[np.dtype(shape.dtype).itemsize]
        size = (shape.layers, max_tokens, shape.top_k)
        # Made in inference mode, they could not be written outside of it.
        with torch.inference_mode(False):
            self.ids = torch.zeros(size, dtype=self.dtype, device=device)
            self.missing = torch.ones(size[:2], dtype=torch.bool, device=device)
        self.device = self.ids.device
        self._views = tuple(
            (self.ids[number], self.missing[number]) for number in range(shape.layers)
        )
        self._open = False
        if self.device.type == "cuda":
            self._warm_up()

    @property
    def nbytes(self) -> int:
        """Memory of the device."""
        return self.ids.nbytes + self.missing.nbytes

    def begin(self) -> None:
        """Begins a step that somebody wants to have captured: nothing is known yet."""
        self.missing.fill_(True)
        self._open = True

    def end(self) -> None:
        """Ends it. Layers that run outside CUDA graphs write nothing until the next one."""
        self._open = False

    @property
    def writes(self) -> bool:
        """Whether a layer that runs now has to write.

        The same on all ranks of a replica, which have the same requests; so are the collectives
        that putting their rows together may take.
        """
        # A graph that is captured now is replayed in steps which somebody wants.
        return self._open or (
            self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        )

    def layer(self, number: int) -> LayerCapture:
        """Returns what one layer writes to.

        Raises:
            UsageError: The model has no such layer.
        """
        if not 0 <= number < self.shape.layers:
            raise UsageError(f"no layer {number} among {self.shape.layers} that route tokens")
        return LayerCapture(self, number)

    def write(self, layer: int, topk_ids: torch.Tensor, first: int = 0) -> None:
        """Stores what a layer's router chose; see :class:`LayerCapture`."""
        if not self.writes:
            return
        rows = topk_ids.shape[0]
        if topk_ids.dim() != 2 or topk_ids.shape[1] != self.shape.top_k:
            raise UsageError(f"{list(topk_ids.shape)} is not the top {self.shape.top_k} of tokens")
        if first < 0 or first + rows > self.max_tokens:
            raise UsageError(f"{rows} tokens from row {first} on, in {self.max_tokens} rows")
        if topk_ids.dtype not in _COMPARABLE:
            topk_ids = topk_ids.to(torch.int64)
        ids, missing = self._views[layer]
        ids[first : first + rows].copy_(topk_ids)
        foreign = (topk_ids < 0).logical_or_(topk_ids > self.shape.experts - 1)
        missing[first : first + rows].copy_(foreign.any(dim=1))

    def _warm_up(self) -> None:
        """Does once what a layer does: kernels are better not loaded while a graph is captured."""
        self.begin()
        for dtype in _COMPARABLE:
            self.write(0, torch.zeros((1, self.shape.top_k), dtype=dtype, device=self.device))
        self.begin()
        self.end()


class LayerCapture:
    """One layer's part of a buffer.

    Args:
        buffer: The model's.
        number: The layer, counted from 0 among those of its model that route tokens.
    """

    __slots__ = ("buffer", "number")

    def __init__(self, buffer: CaptureBuffer, number: int) -> None:
        self.buffer = buffer
        self.number = number

    def __call__(self, topk_ids: torch.Tensor, first: int = 0) -> None:
        """Stores what the router chose, inside the forward pass.

        Args:
            topk_ids: Experts as the model numbers them, ``[rows, top_k]``, of any integer type.
            first: Row of the batch that they begin at; not 0 in micro-batches.

        Raises:
            UsageError: They are too many, or not as many for each token as the model has.
        """
        self.buffer.write(self.number, topk_ids, first)
