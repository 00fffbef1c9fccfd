"""Routing by physical KV block, so that a prefix-cache hit finds what an earlier request left.

A :class:`Page` stands for one content of a block, not for the block. When the block is given new
content, the store forgets the page; whoever still holds it, such as a step in flight or a request
that has ended, reads and writes the old content's routing and nobody else's.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.shape import Ids, Mask, RoutingShape

__all__ = ["Page", "SlotStore"]


class Page:
    """The routing of one block's tokens, as far as it was captured.

    Args:
        shape: The model's routing.
        size: Tokens of a block.
    """

    __slots__ = ("_captured", "_ids", "shape", "size")

    def __init__(self, shape: RoutingShape, size: int) -> None:
        self.shape = shape
        self.size = size
        self._captured = 0  # One bit for each token: a step has many requests, of a token each.
        self._ids: Ids | None = None

    @property
    def nbytes(self) -> int:
        """Memory of its array; none before the first write."""
        return 0 if self._ids is None else self._ids.nbytes

    @property
    def whole(self) -> Ids | None:
        """Its tokens, if all of them were captured."""
        return self._ids if self._captured == (1 << self.size) - 1 else None

    def write(self, offset: int, ids: Ids, missing: Mask | None = None) -> None:
        """Store tokens from an offset on.

        Args:
            offset: Place of the first one in the block.
            ids: Their experts.
            missing: Which of them were not captured; None where all were.
        """
        bits = (1 << len(ids)) - 1
        if missing is not None:
            bits = sum(1 << place for place in np.flatnonzero(~missing).tolist())
        if self._ids is None:
            if not bits:
                return
            self._ids = self.shape.empty(self.size)
        self._ids[offset : offset + len(ids)] = ids
        self._captured &= ~(((1 << len(ids)) - 1) << offset)
        self._captured |= bits << offset

    def overlay(self, start: int, ids: Ids, missing: Mask) -> None:
        """Put its captured tokens, from one on, over others'.

        Args:
            start: First token of the page that is wanted.
            ids: Where they go; as many as are wanted.
            missing: Of those, cleared for each that is captured here.
        """
        if self._ids is None:
            return
        here = [place for place in range(len(ids)) if self._captured >> (start + place) & 1]
        ids[here] = self._ids[start : start + len(ids)][here]
        missing[here] = False


class SlotStore:
    """Pages by block.

    Args:
        shape: The model's routing.
        block_size: Tokens of a block.
        max_pages: How many are kept at most; the oldest go first. None for one per block. A
            forgotten page makes tokens of later prefix-cache hits missing.
    """

    def __init__(
        self, shape: RoutingShape, block_size: int, *, max_pages: int | None = None
    ) -> None:
        if block_size < 1 or (max_pages is not None and max_pages < 1):
            raise UsageError(f"{max_pages} pages of {block_size} tokens hold nothing")
        self.shape = shape
        self.block_size = block_size
        self.max_pages = max_pages
        self._pages: dict[int, Page] = {}

    def __len__(self) -> int:
        return len(self._pages)

    @property
    def nbytes(self) -> int:
        """Memory of all pages."""
        return sum(page.nbytes for page in self._pages.values())

    def renew(self, block_ids: Iterable[int]) -> None:
        """Forget what blocks held: they are about to be given new content.

        To be called for every block that is allocated, whether or not its request opted in and
        whoever fills it; not for those that a request shares because of a prefix-cache hit.
        """
        for block in block_ids:
            self._pages.pop(block, None)

    def page(self, block_id: int) -> Page:
        """Return the page of a block's content, to be filled."""
        page = self._pages.get(block_id)
        if page is None:
            page = self._pages[block_id] = Page(self.shape, self.block_size)
            if self.max_pages is not None and len(self._pages) > self.max_pages:
                del self._pages[next(iter(self._pages))]
        return page

    def find(self, block_id: int) -> Page:
        """Return the page of a block that others filled; an empty one where it was forgotten."""
        page = self._pages.get(block_id)
        # Nobody would write to it, so it is not worth another one's place.
        return Page(self.shape, self.block_size) if page is None else page

    def clear(self) -> None:
        """Forget all, as a reset of the prefix cache does."""
        self._pages.clear()
