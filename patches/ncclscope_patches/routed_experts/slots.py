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

    __slots__ = ("_ids", "captured", "shape", "size")

    def __init__(self, shape: RoutingShape, size: int) -> None:
        self.shape = shape
        self.size = size
        self.captured: Mask | None = None
        self._ids: Ids | None = None

    @property
    def nbytes(self) -> int:
        """Memory of its arrays; none before the first write."""
        if self._ids is None or self.captured is None:
            return 0
        return self._ids.nbytes + self.captured.nbytes

    @property
    def whole(self) -> bool:
        """Whether all of its tokens were captured."""
        return self.captured is not None and bool(self.captured.all())

    def write(self, offset: int, ids: Ids, captured: Mask) -> None:
        """Stores tokens from an offset on; those that were not captured become missing."""
        if self._ids is None or self.captured is None:
            if not captured.any():
                return
            self._ids = self.shape.empty(self.size)
            self.captured = np.zeros(self.size, np.bool_)
        here = slice(offset, offset + len(ids))
        self._ids[here] = ids
        self.captured[here] = captured

    def overlay(self, start: int, ids: Ids, missing: Mask) -> None:
        """Puts its captured tokens, from one on, over others'.

        Args:
            start: First token of the page that is wanted.
            ids: Where they go; as many as are wanted.
            missing: Of those, cleared for each that is captured here.
        """
        if self._ids is None or self.captured is None:
            return
        wanted = slice(start, start + len(ids))
        captured = self.captured[wanted]
        if captured.all():
            ids[:] = self._ids[wanted]
            missing[:] = False
            return
        ids[captured] = self._ids[wanted][captured]
        missing[captured] = False


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
        """Forgets what blocks held: they are about to be given new content.

        To be called for every block that is allocated, whether or not its request opted in and
        whoever fills it; not for those that a request shares because of a prefix-cache hit.
        """
        for block in block_ids:
            self._pages.pop(block, None)

    def page(self, block_id: int) -> Page:
        """Returns the page of a block's content, to be filled."""
        page = self._pages.get(block_id)
        if page is None:
            page = self._pages[block_id] = Page(self.shape, self.block_size)
            if self.max_pages is not None and len(self._pages) > self.max_pages:
                del self._pages[next(iter(self._pages))]
        return page

    def find(self, block_id: int) -> Page:
        """Returns the page of a block that others filled; an empty one where it was forgotten."""
        page = self._pages.get(block_id)
        # Nobody would write to it, so it is not worth another one's place.
        return Page(self.shape, self.block_size) if page is None else page

    def clear(self) -> None:
        """Forgets all, as a reset of the prefix cache does."""
        self._pages.clear()
