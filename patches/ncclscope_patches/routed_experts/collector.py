"""The scheduler's side: puts the rows of many steps together, request by request.

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

None of it waits, locks or reads a device. What nobody delivers is missing in the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.deltas import StepDelta
from ncclscope_patches.routed_experts.records import Record, Ticket
from ncclscope_patches.routed_experts.result import RoutedExperts, routed_tokens
from ncclscope_patches.routed_experts.shape import RoutingShape
from ncclscope_patches.routed_experts.slots import SlotStore

__all__ = ["Collector"]


class Collector:
    """Routing of the requests that opted in, from admission to the end.

    Args:
        shape: The model's routing.
        block_size: Tokens of a KV block, or of the pieces that memory is taken in.
        store: Routing by KV block, for prefix-cache hits. Without one, tokens that a request
            did not compute itself are missing.
        model: Whose routing it is. A draft model has a collector of its own.
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
            UsageError: It does so already.
        """
        if request in self._records:
            raise UsageError(f"request {request!r} is being collected for already")
        paged = self.store is not None
        self._records[request] = Record(
            request, prompt_tokens, self.shape, self.block_size, paged=paged
        )

    def renew(self, block_ids: Iterable[int]) -> None:
        """Say that KV blocks are about to get new content; of all requests, not those alone."""
        if self.store is not None:
            self.store.renew(block_ids)

    def attach(self, request: str, block_ids: Iterable[int], *, hits: bool = False) -> None:
        """Say which KV blocks a request's next tokens are in.

        Args:
            request: Any. Nothing is noted of one that did not opt in.
            block_ids: In the order of its tokens.
            hits: Whether they are shared because of a prefix-cache hit.
        """
        record = self._records.get(request)
        if record is not None and self.store is not None:
            page = self.store.find if hits else self.store.page
            record.attach([page(block) for block in block_ids])

    def schedule(self, request: str, position: int, count: int) -> Ticket | None:
        """Note where a step's rows will have to go.

        Args:
            request: Any that is scheduled.
            position: Position of its first token of the step.
            count: Its tokens of the step, drafts included.

        Returns:
            To be kept with the step; None for a request that did not opt in.

        Raises:
            UsageError: It has no KV blocks there.
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
        """Store what a step's output carries. Steps are delivered in their order.

        Requests that ended meanwhile may still have tickets: their blocks may be shared.

        Args:
            tickets: Those of the step.
            delta: What the model runner sent; None where it sent nothing.
            accepted: By request, how many of its rows stand: all but those of rejected drafts.
                A request that is left out keeps all.
            positions: By request, where its rows begin after all, if an earlier step in flight
                had drafts rejected after this one was scheduled.

        Raises:
            UsageError: The rows are another model's, or not as many as were scheduled.
        """
        if delta is None:
            return
        if delta.model != self.model:
            raise UsageError(f"routing of the {delta.model} model, not of the {self.model} model")
        for ticket in tickets:
            ids = delta.rows.get(ticket.request)
            if ids is None:
                continue
            self.shape.check(ids)
            if len(ids) != ticket.count:
                raise UsageError(
                    f"request {ticket.request!r} has {len(ids)} rows where {ticket.count} tokens "
                    "were scheduled"
                )
            missing = delta.missing.get(ticket.request)
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
        """Say that a request lost its KV blocks and will be computed again."""
        record = self._records.get(request)
        if record is not None:
            record.preempt()

    def take(self, request: str, generated: int) -> RoutedExperts | None:
        """Return what a stream has not sent yet.

        Args:
            request: Any.
            generated: Tokens that it has generated so far. Before the first of them nothing is
                handed out, since the prompt may not have been computed to its end.

        Returns:
            None for a request that did not opt in.
        """
        record = self._records.get(request)
        if record is None:
            return None
        return record.take(routed_tokens(record.prompt_tokens, generated) if generated else 0)

    def finish(self, request: str, generated: int) -> RoutedExperts | None:
        """Return what is known of a request that ended, however it did, and forget it.

        Args:
            request: Any.
            generated: Tokens that its answer has, after all stop conditions.

        Returns:
            The tokens of the prompt and all but the last one of the answer; None for a request
            that did not opt in, or has been forgotten.
        """
        record = self._records.pop(request, None)
        if record is None:
            return None
        return record.rows(0, routed_tokens(record.prompt_tokens, generated))

    def abort(self, request: str) -> None:
        """Forget a request whose result nobody waits for."""
        self._records.pop(request, None)
