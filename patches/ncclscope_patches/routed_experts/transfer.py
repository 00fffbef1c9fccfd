"""Copy captured rows from the device to the host, on a second stream.

Each captured step gets its own place: a staging buffer on the device, which the main stream fills,
and a pinned buffer on the host, which a second stream fills from it. A place is reused only after
its rows were read on the host, or were dropped and the copy is complete. So nothing in flight is
overwritten, and the main stream never waits. On the CPU the same code runs without streams.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence

import torch

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.capture import CaptureBuffer
from ncclscope_patches.routed_experts.deltas import RequestRows, StepDelta, check_rows
from ncclscope_patches.routed_experts.shape import Ids, Mask, RoutingShape

_PIECES = 8
"""Up to this many pieces of a batch are copied one by one; otherwise gaps are copied, too."""

# torch supports little besides copies for uint16; the same bits as int16 can be indexed.
_STORAGE = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


class BufferPlace:
    """Buffers of one step in flight.

    Args:
        capture: The buffer to copy from.
        slots: Whether KV slots are copied, too.
    """

    def __init__(self, capture: CaptureBuffer, *, slots: bool) -> None:
        device, tokens = capture.device, capture.max_tokens
        routing = (tokens, capture.shape.layers, capture.shape.top_k)
        cuda = device.type == "cuda"
        # Tensors created in inference mode cannot be written outside of it.
        with torch.inference_mode(False):
            self.ids = torch.empty(routing, dtype=_storage(capture), device=device)
            self.missing = torch.empty(tokens, dtype=torch.bool, device=device)
            self.slots = torch.empty(tokens if slots else 0, dtype=torch.int64, device=device)
            self.staged = (self.ids, self.missing, self.slots)
            self.pinned = tuple(
                torch.empty(part.shape, dtype=part.dtype, device="cpu", pin_memory=cuda)
                for part in self.staged
            )
        self.arrays = tuple(part.numpy() for part in self.pinned)
        self.filled = _event() if cuda else None
        self.copied = _event() if cuda else None

    @property
    def idle(self) -> bool:
        """Whether no copy into it is in progress."""
        return self.copied is None or bool(self.copied.query())  # type: ignore[no-untyped-call]


class Flight:
    """One step on its way to the host.

    Args:
        shape: Shape of the model's routing.
        place: The step's buffers, returned at the end.
        rows: Each request's rows in the place.
        model: Name of the model.
        free: List to which the place is returned.
    """

    def __init__(
        self,
        shape: RoutingShape,
        place: BufferPlace,
        rows: tuple[RequestRows, ...],
        model: str,
        free: deque[BufferPlace],
    ) -> None:
        self.rows = rows
        self.model = model
        self._shape = shape
        self._place = place
        # This also covers a step that is dropped and never taken.
        self._release = weakref.finalize(self, free.append, place)
        self._release.atexit = False

    @property
    def ready(self) -> bool:
        """Whether :meth:`take` would return at once."""
        return self._place.idle

    def take(self) -> StepDelta:
        """Return the rows, once, waiting only for this step's copy.

        Call it where the output is needed, not where steps are launched.

        Raises:
            UsageError: The rows have already been taken.
        """
        if not self._release.alive:
            raise UsageError("the rows of a step can be taken once")
        place = self._place
        if place.copied is not None:
            place.copied.synchronize()
        end = max(own.first + own.count for own in self.rows)
        # Copy them, since a later step will reuse the place.
        ids, missing, slots = (array[:end].copy() for array in place.arrays)
        self._release()
        ids = ids.view(self._shape.dtype)
        by_request: dict[str, Ids] = {}
        holes: dict[str, Mask] = {}
        kv_slots: dict[str, Ids] = {}
        for own in self.rows:
            here = slice(own.first, own.first + own.count)
            by_request[own.request] = ids[here]
            if missing[here].any():
                holes[own.request] = missing[here]
            if len(slots):
                kv_slots[own.request] = slots[here]
        return StepDelta(by_request, holes, kv_slots, self.model)


class CopyQueue:
    """Copies steps of one model.

    Args:
        capture: The buffer that the forward pass writes.
        depth: Maximum number of steps in flight: one more than the engine's batch queue.
        slots: Whether the runner's KV slots are copied, too.
        model: Name of the model.

    Attributes:
        started: Number of steps whose copy was started.
        copied_rows: Number of rows copied for them.
        dropped: Number of steps for which no place was free; their tokens are missing.
    """

    def __init__(
        self, capture: CaptureBuffer, *, depth: int = 2, slots: bool = False, model: str = "target"
    ) -> None:
        if depth < 1:
            raise UsageError(f"{depth} steps in flight are none")
        self.capture = capture
        self.slots = slots
        self.model = model
        self.started = self.copied_rows = self.dropped = 0
        self._free = deque(BufferPlace(capture, slots=slots) for _ in range(depth))
        cuda = capture.device.type == "cuda"
        self._stream = _stream(capture.device) if cuda else None

    @property
    def free(self) -> int:
        """Number of free places."""
        return len(self._free)

    def start(
        self, rows: Sequence[RequestRows], slot_mapping: torch.Tensor | None = None
    ) -> Flight | None:
        """Start copying a step, right after its forward pass, on the same stream.

        Args:
            rows: Rows of the requests that opted in; at least one.
            slot_mapping: KV slot of each row of the batch, ``[rows]``. The caller may overwrite it
                at once.

        Returns:
            The step in flight; None if no place was free.

        Raises:
            UsageError: The rows are not rows of a batch, or the slot mapping is missing.
        """
        ordered = check_rows(rows, self.capture.max_tokens)
        if not ordered or (slot_mapping is None) == self.slots:
            raise UsageError("a step is copied for somebody, with slots as it was agreed on")
        place = self._vacant()
        if place is None:
            self.dropped += 1
            return None
        moved: list[RequestRows] = []
        end = 0
        for piece in _pieces(ordered):
            self._stage(place, end, piece, slot_mapping)
            for own in ordered:
                if piece.start <= own.first < piece.stop:
                    first = end + own.first - piece.start
                    moved.append(RequestRows(own.request, first, own.count))
            end += len(piece)
        self._copy(place, end)
        self.started += 1
        self.copied_rows += end
        return Flight(self.capture.shape, place, tuple(moved), self.model, self._free)

    def _vacant(self) -> BufferPlace | None:
        """Return a free place, or None, without waiting."""
        for _ in range(len(self._free)):
            place = self._free.popleft()
            if place.idle:
                return place
            self._free.append(place)
        return None

    def _stage(
        self, place: BufferPlace, at: int, piece: range, slot_mapping: torch.Tensor | None
    ) -> None:
        """Copy rows on the device, in the order of the main stream."""
        here = slice(at, at + len(piece))
        rows = slice(piece.start, piece.stop)
        capture = self.capture
        capture.narrow(rows, place.ids[here], place.missing[here])
        if slot_mapping is not None:
            place.slots[here].copy_(slot_mapping[rows])

    def _copy(self, place: BufferPlace, rows: int) -> None:
        """Copy the staged rows to the host."""
        if self._stream is None or place.filled is None or place.copied is None:
            for to, of in zip(place.pinned, place.staged, strict=True):
                to[:rows].copy_(of[:rows])
            return
        place.filled.record(torch.cuda.current_stream(self.capture.device))
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(place.filled)
            for to, of in zip(place.pinned, place.staged, strict=True):
                to[:rows].copy_(of[:rows], non_blocking=True)
            place.copied.record(self._stream)


def _storage(capture: CaptureBuffer) -> torch.dtype:
    return _STORAGE[capture.shape.dtype.itemsize]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _pieces(rows: Sequence[RequestRows]) -> list[range]:
    """Return the rows as a few contiguous pieces of the batch, in order."""
    pieces: list[range] = []
    for own in rows:
        if pieces and pieces[-1].stop == own.first:
            pieces[-1] = range(pieces[-1].start, own.first + own.count)
        else:
            pieces.append(range(own.first, own.first + own.count))
    if len(pieces) > _PIECES:
        return [range(pieces[0].start, pieces[-1].stop)]
    return pieces
