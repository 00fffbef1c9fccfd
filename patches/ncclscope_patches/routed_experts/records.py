"""One request's routing while it runs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.result import RoutedExperts
from ncclscope_patches.routed_experts.shape import Ids, Mask, RoutingShape
from ncclscope_patches.routed_experts.slots import Page

__all__ = ["Record", "Ticket"]


class Ticket:
    """Where the rows of one scheduled step will go, whatever happens to the request meanwhile.

    Attributes:
        request: Whose rows they are.
        position: Position in the request of the first one.
        count: How many were scheduled.
    """

    __slots__ = ("_block_size", "_pages", "count", "position", "request")

    def __init__(
        self, request: str, pages: list[Page], block_size: int, position: int, count: int
    ) -> None:
        self.request = request
        self.position = position
        self.count = count
        # Pages are appended to this list and never exchanged; a preempted request begins another.
        self._pages = pages
        self._block_size = block_size

    def write(self, position: int, ids: Ids, missing: Mask | None) -> None:
        """Store rows from a position of the request on.

        Args:
            position: Of the first.
            ids: Their experts.
            missing: Which of them were not captured; None where all were.

        Raises:
            UsageError: The request had no blocks there.
        """
        size = self._block_size
        if position < 0 or position + len(ids) > len(self._pages) * size:
            raise UsageError(
                f"request {self.request!r} has {len(self._pages)} blocks of {size} tokens, "
                f"none for its {len(ids)} tokens from token {position} on"
            )
        done = 0
        while done < len(ids):
            number, offset = divmod(position + done, size)
            part = slice(done, done + size - offset)
            holes = None if missing is None else missing[part]
            self._pages[number].write(offset, ids[part], holes)
            done += size - offset


class Record:
    """What is known of one request.

    Args:
        request: Its id.
        prompt_tokens: Tokens of its prompt.
        shape: The model's routing.
        block_size: Tokens of a page.
        paged: Whether its pages are those of KV blocks, to be attached; otherwise it makes its
            own as it goes.
    """

    def __init__(
        self, request: str, prompt_tokens: int, shape: RoutingShape, block_size: int, *, paged: bool
    ) -> None:
        self.request = request
        self.prompt_tokens = prompt_tokens
        self.shape = shape
        self.block_size = block_size
        self.paged = paged
        self.sent = 0
        """Tokens that :meth:`take` has handed out."""
        self._attempts: list[list[Page]] = [[]]

    def attach(self, pages: Iterable[Page]) -> None:
        """Add the pages of further blocks, in the order of the request's tokens."""
        self._attempts[-1].extend(pages)

    def schedule(self, position: int, count: int) -> Ticket:
        """Reserve places for the rows of a step.

        Raises:
            UsageError: The request has no blocks for them.
        """
        pages, size = self._attempts[-1], self.block_size
        if not self.paged:
            while len(pages) * size < position + count:
                pages.append(Page(self.shape, size))
        if position < 0 or count < 1 or position + count > len(pages) * size:
            raise UsageError(
                f"request {self.request!r} has {len(pages)} blocks of {size} tokens, "
                f"none for {count} tokens from token {position} on"
            )
        return Ticket(self.request, pages, size, position, count)

    def preempt(self) -> None:
        """Begin anew with other blocks; what was captured so far, or is in flight, is kept."""
        *older, pages = self._attempts
        # What an older attempt knows for good is not needed twice, however often this happens.
        kept = [page for number, page in enumerate(pages) if not _whole(older, number)]
        if kept:
            wanted = [_whole(older, number) or page for number, page in enumerate(pages)]
            # Steps in flight go on writing into the list that they were given.
            self._attempts = [*older, wanted, []]
        else:
            self._attempts = [*older, []]

    def rows(self, start: int, end: int) -> RoutedExperts:
        """Return the tokens from one position to another.

        Of several attempts the first that captured a token counts: what was generated after it
        was computed with that routing, and it may have been handed out.
        """
        whole = self._whole_pages(start, end)
        known = len(whole) * self.block_size
        ids, missing = self.shape.empty(end - start), np.ones(end - start, np.bool_)
        if whole:
            np.concatenate(whole, out=ids[:known])
            missing[:known] = False
        for pages in reversed(self._attempts):
            self._overlay(pages, start + known, ids[known:], missing[known:])
        return RoutedExperts(ids, missing, self.prompt_tokens, start)

    def take(self, end: int) -> RoutedExperts:
        """Return the tokens before a position that have not been handed out."""
        part = self.rows(self.sent, max(end, self.sent))
        self.sent += part.tokens
        return part

    def _whole_pages(self, start: int, end: int) -> list[Ids]:
        """Return as many pages as begin at a token, follow each other and are known for good.

        Most tokens of most requests are in such pages, and the scheduler is in a hurry.
        """
        first, odd = divmod(start, self.block_size)
        found: list[Ids] = []
        if odd == 0:
            for page in self._attempts[0][first : end // self.block_size]:
                ids = page.whole
                if ids is None:
                    break
                found.append(ids)
        return found

    def _overlay(self, pages: list[Page], start: int, ids: Ids, missing: Mask) -> None:
        size, end = self.block_size, start + len(ids)
        for number in range(start // size, min(-(-end // size), len(pages))):
            first, last = max(number * size, start), min((number + 1) * size, end)
            here = slice(first - start, last - start)
            pages[number].overlay(first - number * size, ids[here], missing[here])


def _whole(attempts: list[list[Page]], number: int) -> Page | None:
    """Return a page of which every token was captured, of the first attempt that has one."""
    for pages in attempts:
        if number < len(pages) and pages[number].whole is not None:
            return pages[number]
    return None
