"""The routing of one request while it runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.result import RoutedExperts
from ncclscope_patches.routed_experts.shape import Ids, Mask, RoutingShape
from ncclscope_patches.routed_experts.slots import Page


@dataclass(slots=True, eq=False)
class Ticket:
    """The destination of one scheduled step's rows, whatever happens to the request meanwhile.

    Attributes:
        request: Id of the request.
        pages: Its pages of the KV cache, one a block. Pages are only appended to this list; a
            preempted request starts a new list.
        block_size: Rows of a block.
        position: Position in the request of the first row.
        count: Number of scheduled rows.
    """

    request: str
    pages: list[Page]
    block_size: int
    position: int
    count: int

    def lose(self) -> None:
        """Note that the routing of its tokens will not come."""
        size = self.block_size
        end = -(-(self.position + self.count) // size)
        for page in self.pages[self.position // size : end]:
            page.lost = True

    def write(self, position: int, ids: Ids, missing: Mask | None) -> None:
        """Store rows from a position of the request on.

        Args:
            position: Position of the first row.
            ids: Expert ids, ``[rows, layers, top_k]``.
            missing: Which rows were not captured, ``[rows]``; None if all were.

        Raises:
            UsageError: The request has no blocks for them.
        """
        size = self.block_size
        if position < 0 or position + len(ids) > len(self.pages) * size:
            raise UsageError(
                f"request {self.request!r} has {len(self.pages)} blocks of {size} tokens, "
                f"none for its {len(ids)} tokens from token {position} on"
            )
        done = 0
        while done < len(ids):
            number, offset = divmod(position + done, size)
            part = slice(done, done + size - offset)
            holes = None if missing is None else missing[part]
            self.pages[number].write(offset, ids[part], holes)
            done += size - offset


class Record:
    """The routing collected for one request.

    Args:
        request: Id of the request.
        prompt_tokens: Number of tokens of its prompt.
        shape: Shape of the model's routing.
        block_size: Tokens per page.
        paged: Whether its pages are those of KV blocks and will be attached; otherwise it creates
            its own.
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
        """Number of tokens that :meth:`take` has returned."""
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
        """Start again with other blocks; captured and in-flight rows are kept."""
        *older, pages = self._attempts
        # Keep no page twice that an older attempt has captured completely.
        kept = [page for number, page in enumerate(pages) if not _whole(older, number)]
        if kept:
            wanted = [_whole(older, number) or page for number, page in enumerate(pages)]
            # Steps in flight still write to the list in their ticket.
            self._attempts = [*older, wanted, []]
        else:
            self._attempts = [*older, []]

    def rows(self, start: int, end: int) -> RoutedExperts:
        """Return the routing of the tokens from `start` to `end - 1`.

        The first attempt that captured a token counts: later tokens were computed with that
        routing, and it may already have been returned.
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
        """Return the routing of tokens before `end` that has not been returned yet."""
        part = self.rows(self.sent, max(end, self.sent))
        self.sent += part.tokens
        return part

    def _whole_pages(self, start: int, end: int) -> list[Ids]:
        """Return the consecutive, completely captured pages from a token on.

        This is the fast path: most tokens of most requests are in such pages.
        """
        first, offset = divmod(start, self.block_size)
        found: list[Ids] = []
        if offset == 0:
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
    """Return the first attempt's page in which every token was captured; None if there is none."""
    for pages in attempts:
        if number < len(pages) and pages[number].whole is not None:
            return pages[number]
    return None
