"""The buffer that a forward pass writes its routing into, on the device.

Nothing here waits for a device or reads from it, and all of it can be captured in a CUDA graph.
"""

from __future__ import annotations

import torch

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.shape import RoutingShape

__all__ = ["NOTHING", "CaptureBuffer", "LayerCapture"]

NOTHING = -1
"""What a row holds until its layer has written it."""
# Others are cut to size by a plain copy, so that a number which is no expert's could become one.
_WIDE = (torch.int64, torch.uint32, torch.uint64)


class CaptureBuffer:
    """The routing of one model's batch: ``(layers, tokens, top_k)``.

    A row counts as captured when its layer was written in this step, with numbers of experts
    that exist. Everything else is missing, so that neither the rows of an earlier step nor
    numbers that do not fit can pass for routing.

    Numbers are kept as wide as routers give them, and narrowed when a step leaves the device
    (:meth:`narrow`): so a layer costs one copy, in every replay of a CUDA graph, whoever asks.

    Args:
        shape: The model's routing.
        max_tokens: Rows of the largest batch, padding included.
        device: Where the model is.

    Attributes:
        ids: Experts, ``(layers, tokens, top_k)``, int32; :data:`NOTHING` where none was written.
    """

    def __init__(
        self, shape: RoutingShape, max_tokens: int, device: torch.device | str = "cpu"
    ) -> None:
        if max_tokens < 1:
            raise UsageError(f"no batch has {max_tokens} tokens at most")
        self.shape = shape
        self.max_tokens = max_tokens
        size = (shape.layers, max_tokens, shape.top_k)
        # Made in inference mode, it could not be written outside of it.
        with torch.inference_mode(False):
            self.ids = torch.full(size, NOTHING, dtype=torch.int32, device=device)
            # So that a step allocates nothing.
            self._extremes = torch.empty((2, max_tokens), dtype=torch.int32, device=device)
            self._above = torch.empty(max_tokens, dtype=torch.bool, device=device)
        self.device = self.ids.device
        self._layers = tuple(self.ids)
        self._open = False
        if self.device.type == "cuda":
            self._warm_up()

    @property
    def nbytes(self) -> int:
        """Memory of the device."""
        return self.ids.nbytes + self._extremes.nbytes + self._above.nbytes

    def begin(self, rows: int | None = None) -> None:
        """Begin a step that somebody wants to have captured: nothing is known yet.

        Args:
            rows: How many at the start of the batch will be asked for; None for all.
        """
        self.ids[:, :rows].fill_(NOTHING)
        self._open = True

    def end(self) -> None:
        """End it. Layers that run outside CUDA graphs write nothing until the next one."""
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
        """Return what one layer writes to.

        Raises:
            UsageError: The model has no such layer.
        """
        if not 0 <= number < self.shape.layers:
            raise UsageError(f"no layer {number} among {self.shape.layers} that route tokens")
        return LayerCapture(self, number)

    def write(self, layer: int, topk_ids: torch.Tensor, first: int = 0) -> None:
        """Store what a layer's router chose; see :class:`LayerCapture`."""
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
        """Write some rows of a step in the order and the type that they are handed out in.

        Args:
            rows: Of the batch.
            ids: Where experts go, ``(rows, layers, top_k)``, of a type that has the size of the
                shape's. Those of a missing row mean nothing.
            missing: Where it goes which rows have a number that is no expert's, ``(rows,)``.
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
        """Do once what a layer does: kernels are better not loaded while a graph is captured."""
        for dtype in (torch.int32, torch.int64):
            self.begin()
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
        """Store what the router chose, inside the forward pass.

        Args:
            topk_ids: Experts as the model numbers them, ``[rows, top_k]``, of any integer type.
            first: Row of the batch that they begin at; not 0 in micro-batches.

        Raises:
            UsageError: They are too many, or not as many for each token as the model has.
        """
        self.buffer.write(self.number, topk_ids, first)
