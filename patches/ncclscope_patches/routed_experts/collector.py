"""The scheduler's side: collect the rows of many steps, per request.

    collector = Collector(shape, block_size=16, store=SlotStore(shape, 16))

    collector.admit(request, prompt_tokens)         # of requests that opted in
    collector.renew(new_blocks)                     # of all requests, whatever they want
    collector.attach(request, cached, hits=True)    # those of a prefix-cache hit, then new ones
    collector.attach(request, new_blocks)
    ticket = collector.schedule(request, position, count)
    ...                                             # the step runs; others may be in flight
    collector.deliver([ticket], delta, {request: accepted})
    part = collector.take(request, generated)       # in a stream
    result = collector.finish(request, generated)

No function here waits, locks or reads a device. Rows that are not delivered are missing in the
result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.deltas import StepDelta
from ncclscope_patches.routed_experts.records import Record, Ticket
from ncclscope_patches.routed_experts.result import RoutedExperts, routed_tokens
from ncclscope_patches.routed_experts.shape import RoutingShape
from ncclscope_patches.routed_experts.slots import SlotStore


class Collector:
    """Routing of the requests that opted in, from admission to the end.

    Args:
        shape: Shape of the model's routing.
        block_size: Tokens per KV block, or per page if there are no blocks.
        store: Routing by KV block, for prefix-cache hits. Without it, tokens that a request did
            not compute itself are missing.
        model: Name of the model; a draft model has its own collector.
    """

    def __init__(
        self,
        shape: RoutingShape,
        block_size: int = 64,
        *,
        store: SlotStore | None = None,
        model: str = "target",
    ) -> None:
        if block_size < 1 or (
            store is not None
            and (store.shape, store.block_size)
            != (
                shape,
                block_size,
            )
        ):
            raise UsageError(f"the store is not one of blocks of {block_size} tokens of {shape}")
        self.shape = shape
        self.block_size = block_size
        self.store = store
        self.model = model
        self._records: dict[str, Record] = {}

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, request: str) -> bool:
        return request in self._records

    def admit(self, request: str, prompt_tokens: int) -> None:
        """Begin to collect for a request that opted in.

        Raises:
            UsageError: The request was already admitted.
        """
        if request in self._records:
            raise UsageError(f"request {request!r} is being collected for already")
        paged = self.store is not None
        self._records[request] = Record(
            request, prompt_tokens, self.shape, self.block_size, paged=paged
        )

    def renew(self, block_ids: Iterable[int]) -> None:
        """Note that KV blocks are about to get new content; call it for all requests' blocks."""
        if self.store is not None:
            self.store.renew(block_ids)

    def attach(self, request: str, block_ids: Iterable[int], *, hits: bool = False) -> None:
        """Note the KV blocks of a request's next tokens.

        Args:
            request: Id of any request; ignored if it did not opt in.
            block_ids: The blocks, in the order of the tokens.
            hits: Whether they are shared because of a prefix-cache hit.
        """
        record = self._records.get(request)
        if record is not None and self.store is not None:
            page = self.store.find if hits else self.store.page
            record.attach([page(block) for block in block_ids])

    def schedule(self, request: str, position: int, count: int) -> Ticket | None:
        """Reserve the destination of a step's rows.

        Args:
            request: Id of a scheduled request.
            position: Position of its first token of the step.
            count: Number of its tokens in the step, including drafts.

        Returns:
            The ticket to keep with the step; None for a request that did not opt in.

        Raises:
            UsageError: The request has no KV blocks for them.
        """
        record = self._records.get(request)
        return None if record is None else record.schedule(position, count)

    def deliver(
        self,
        tickets: Iterable[Ticket],
        delta: StepDelta | None,
        accepted: Mapping[str, int] | None = None,
        positions: Mapping[str, int] | None = None,
    ) -> None:
        """Store the rows of a step's output; deliver steps in order.

        Requests that ended meanwhile may still have tickets, since their blocks may be shared.

        Args:
            tickets: The tickets of the step.
            delta: The rows from the model runner; None if it sent none.
            accepted: Number of valid rows by request: all but those of rejected drafts. For a
                request that is not in it, all rows are valid.
            positions: Actual position of the first row by request, if drafts of an earlier step
                in flight were rejected after this step was scheduled.

        Raises:
            UsageError: The rows are of another model, or their number differs from the schedule.
        """
        if delta is None:
            for ticket in tickets:
                ticket.lose()
            return
        if delta.model != self.model:
            raise UsageError(f"routing of the {delta.model} model, not of the {self.model} model")
        for ticket in tickets:
            ids = delta.rows.get(ticket.request)
            if ids is None:
                ticket.lose()
                continue
            self.shape.check(ids)
            if len(ids) != ticket.count:
                raise UsageError(
                    f"request {ticket.request!r} has {len(ids)} rows where {ticket.count} tokens "
                    "were scheduled"
                )
            missing = delta.missing.get(ticket.request)
            if missing is not None:
                ticket.lose()
            pending_calls = len(ids)
            if accepted is not None:
                pending_calls = max(
                    0, min(accepted.get(ticket.request, pending_calls), pending_calls)
                )
            position = ticket.position
            if positions is not None:
                position = positions.get(ticket.request, position)
            ticket.write(
                position, ids[:pending_calls], None if missing is None else missing[:pending_calls]
            )

    def preempt(self, request: str) -> None:
        """Note that a request lost its KV blocks and will be recomputed."""
        record = self._records.get(request)
        if record is not None:
            record.preempt()

    def take(self, request: str, generated: int) -> RoutedExperts | None:
        """Return the part that a stream has not sent yet.

        Args:
            request: Id of any request.
            generated: Number of tokens generated so far. With 0 nothing is returned, since the
                prompt may not be complete.

        Returns:
            The part; None for a request that did not opt in.
        """
        record = self._records.get(request)
        if record is None:
            return None
        return record.take(routed_tokens(record.prompt_tokens, generated) if generated else 0)

    def finish(self, request: str, generated: int) -> RoutedExperts | None:
        """Return the routing of an ended request, and forget the request.

        Args:
            request: Id of any request.
            generated: Number of tokens in its answer, after all stop conditions.

        Returns:
            The routing of the prompt's tokens and all but the last generated one; None for a
            request that did not opt in, or was already forgotten.
        """
        record = self._records.pop(request, None)
        if record is None:
            return None
        return record.rows(0, routed_tokens(record.prompt_tokens, generated))

    def abort(self, request: str) -> None:
        """Forget a request whose result is not needed."""
        self._records.pop(request, None)
