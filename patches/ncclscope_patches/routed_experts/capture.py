"""The device buffer into which a forward pass writes its routing.

No function here synchronises with the device, and all of them can be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.shape import RoutingShape

NOTHING = -1
"""Value of a row until its layer has written it."""
# A plain copy truncates wider types, which could turn an invalid id into a valid one.
_WIDE = (torch.int64, torch.uint32, torch.uint64)


class CaptureBuffer:
    """The routing of one model's batch: ``(layers, tokens, top_k)``.

    A row counts as captured if its layer wrote it in this step, with valid expert ids. All other
    rows are missing, so that neither an earlier step's rows nor invalid ids pass for routing.

    Ids keep the width of the router's output, and are narrowed when a step leaves the device
    (:meth:`narrow`). So a layer costs one copy per replay of a CUDA graph.

    Args:
        shape: Shape of the model's routing.
        max_tokens: Rows of the largest batch, including padding.
        device: Device of the model.

    Attributes:
        ids: Expert ids, ``(layers, tokens, top_k)``, int32; :data:`NOTHING` if not written.
    """

    def __init__(
        self, shape: RoutingShape, max_tokens: int, device: torch.device | str = "cpu"
    ) -> None:
        if max_tokens < 1:
            raise UsageError(f"no batch has {max_tokens} tokens at most")
        self.shape = shape
        self.max_tokens = max_tokens
        size = (shape.layers, max_tokens, shape.top_k)
        # A tensor created in inference mode cannot be written outside of it.
        with torch.inference_mode(False):
            self.ids = torch.full(size, NOTHING, dtype=torch.int32, device=device)
            # Allocated here, so that a step allocates nothing.
            self._extremes = torch.empty((2, max_tokens), dtype=torch.int32, device=device)
            self._above = torch.empty(max_tokens, dtype=torch.bool, device=device)
        self.device = self.ids.device
        self._layers = tuple(self.ids)
        self._open = False
        if self.device.type == "cuda":
            self._warm_up()

    @property
    def nbytes(self) -> int:
        """Device memory in bytes."""
        return self.ids.nbytes + self._extremes.nbytes + self._above.nbytes

    def begin(self, rows: int | None = None) -> None:
        """Begin a step to be captured, with all rows missing.

        Args:
            rows: Number of rows at the start of the batch that will be read; None for all.
        """
        self.ids[:, :rows].fill_(NOTHING)
        self._open = True

    def end(self) -> None:
        """End the step. Until the next one, layers outside CUDA graphs write nothing."""
        self._open = False

    @property
    def writes(self) -> bool:
        """Whether a layer that runs now must write.

        It is equal on all ranks of a replica, which have the same requests. So are the collectives
        that gather their rows.
        """
        # A graph captured now may be replayed in steps to be captured.
        return self._open or (
            self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        )

    def layer(self, number: int) -> LayerCapture:
        """Return the part of the buffer that one layer writes to.

        Raises:
            UsageError: The model has no such layer.
        """
        if not 0 <= number < self.shape.layers:
            raise UsageError(f"no layer {number} among {self.shape.layers} that route tokens")
        return LayerCapture(self, number)

    def write(self, layer: int, topk_ids: torch.Tensor, first: int = 0) -> None:
        """Store a layer's routing.

        Args:
            layer: Number of the layer.
            topk_ids: Expert ids, ``[rows, top_k]``.
            first: Row of the batch at which they begin.
        """
        if not self.writes:
            return
        rows = topk_ids.shape[0]
        if topk_ids.dim() != 2 or topk_ids.shape[1] != self.shape.top_k:
            raise UsageError(f"{list(topk_ids.shape)} is not the top {self.shape.top_k} of tokens")
        if first < 0 or first + rows > self.max_tokens:
            raise UsageError(f"{rows} tokens from row {first} on, in {self.max_tokens} rows")
        if topk_ids.dtype in _WIDE:
            topk_ids = topk_ids.to(torch.int64)
            foreign = (topk_ids < 0).logical_or_(topk_ids > self.shape.experts - 1)
            topk_ids = topk_ids.masked_fill(foreign, NOTHING)
        self._layers[layer][first : first + rows].copy_(topk_ids)

    def narrow(self, rows: slice, ids: torch.Tensor, missing: torch.Tensor) -> None:
        """Write some rows of a step in the output's order and type.

        Args:
            rows: Rows of the batch.
            ids: Receives the expert ids, ``(rows, layers, top_k)``, in a type as wide as the
                shape's. Ids of a missing row are undefined.
            missing: Receives which rows have an invalid id, ``(rows,)``.
        """
        block = self.ids[:, rows]
        ids.copy_(block.permute(1, 0, 2))
        count = len(missing)
        least, most = self._extremes[0, :count], self._extremes[1, :count]
        torch.lt(torch.amin(block, dim=(0, 2), out=least), 0, out=missing)
        torch.gt(
            torch.amax(block, dim=(0, 2), out=most), self.shape.experts - 1, out=self._above[:count]
        )
        missing.logical_or_(self._above[:count])

    def _warm_up(self) -> None:
        """Run a layer's operations once, so that no kernel is loaded during a graph capture."""
        for dtype in (torch.int32, torch.int64):
            self.begin()
            self.write(0, torch.zeros((1, self.shape.top_k), dtype=dtype, device=self.device))
        self.begin()
        self.end()


@dataclass(slots=True, eq=False)
class LayerCapture:
    """One layer's part of a buffer.

    Args:
        buffer: The model's buffer.
        number: Number of the layer, from 0, among the model's layers that route tokens.
    """

    buffer: CaptureBuffer
    number: int

    def __call__(self, topk_ids: torch.Tensor, first: int = 0) -> None:
        """Store the router's choices, inside the forward pass.

        Args:
            topk_ids: The model's expert ids, ``[rows, top_k]``, of any integer type.
            first: Row of the batch at which they begin; not 0 in micro-batches.

        Raises:
            UsageError: They are too many rows, or have another top k than the model.
        """
        self.buffer.write(self.number, topk_ids, first)
