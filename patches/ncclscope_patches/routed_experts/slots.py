"""Routing by physical KV block, so that a prefix-cache hit finds an earlier request's routing.

A :class:`Page` belongs to one content of a block, not to the block. When the block gets new
content, the store forgets the page. A step in flight or an ended request that still holds the page
then accesses only the old content's routing.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.shape import Ids, Mask, RoutingShape


class Page:
    """The captured routing of one block's tokens.

    Args:
        shape: Shape of the model's routing.
        size: Tokens per block.
    """

    __slots__ = ("_captured", "_ids", "lost", "shape", "size")

    def __init__(self, shape: RoutingShape, size: int) -> None:
        self.shape = shape
        self.size = size
        self._captured = 0  # One bit per token: a step has many requests with one token each.
        self._ids: Ids | None = None
        self.lost = False
        """Whether a step computed tokens of it, and their routing never came."""

    @property
    def nbytes(self) -> int:
        """Memory of its array in bytes; 0 before the first write."""
        return 0 if self._ids is None else self._ids.nbytes

    @property
    def whole(self) -> Ids | None:
        """Its ids, ``[size, layers, top_k]``, if all tokens were captured; else None."""
        return self._ids if self._captured == (1 << self.size) - 1 else None

    def write(self, offset: int, ids: Ids, missing: Mask | None = None) -> None:
        """Store tokens from an offset on.

        Args:
            offset: Index of the first token in the block.
            ids: Expert ids, ``[tokens, layers, top_k]``.
            missing: Which tokens were not captured, ``[tokens]``; None if all were.
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
        """Copy its captured tokens over others.

        Args:
            start: Index of the first token to copy.
            ids: Receives the expert ids, ``[tokens, layers, top_k]``.
            missing: Cleared for each token that is captured here, ``[tokens]``.
        """
        if self._ids is None:
            return
        here = [place for place in range(len(ids)) if self._captured >> (start + place) & 1]
        ids[here] = self._ids[start : start + len(ids)][here]
        missing[here] = False


class SlotStore:
    """Pages by block.

    Args:
        shape: Shape of the model's routing.
        block_size: Tokens per block.
        max_pages: Maximum number of pages, oldest removed first; None for one per block. After
            removal, tokens of later prefix-cache hits are missing.
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
        """Memory of all pages in bytes."""
        return sum(page.nbytes for page in self._pages.values())

    def renew(self, block_ids: Iterable[int]) -> None:
        """Forget the pages of blocks that are about to get new content.

        Call it for every allocated block, even if its request did not opt in; not for blocks that
        a request shares because of a prefix-cache hit.
        """
        for block in block_ids:
            self._pages.pop(block, None)

    def page(self, block_id: int) -> Page:
        """Return the page of a block's content, creating it if needed."""
        page = self._pages.get(block_id)
        if page is None:
            page = self._pages[block_id] = Page(self.shape, self.block_size)
            if self.max_pages is not None and len(self._pages) > self.max_pages:
                del self._pages[next(iter(self._pages))]
        return page

    def find(self, block_id: int) -> Page:
        """Return the page of a block that others filled; an empty one if it was removed."""
        page = self._pages.get(block_id)
        # No one writes to an empty page, so it should not take another page's place.
        return Page(self.shape, self.block_size) if page is None else page

    def is_lost(self, block_id: int) -> bool:
        """Return whether routing of a block's content is known to be missing."""
        page = self._pages.get(block_id)
        return page is not None and page.lost and page.whole is None

    def clear(self) -> None:
        """Forget all pages, as a reset of the prefix cache does."""
        self._pages.clear()
