"""The stand-in's first buffer."""

from __future__ import annotations

from typing import Any

from ..exchange import Exchange, ranks_of


class Buffer:
    """Exchanges tokens, one layout for throughput and one for low latency."""

    num_sms: int = 20

    def __init__(self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0) -> None:
        self.group = group
        self._exchange = Exchange(group)

    def dispatch(
        self,
        x: Any,
        handle: Any = None,
        num_tokens_per_rank: Any = None,
        num_tokens_per_rdma_rank: Any = None,
        is_token_in_rank: Any = None,
        num_tokens_per_expert: Any = None,
        topk_idx: Any = None,
        topk_weights: Any = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Any = None,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:
        """Send tokens; the handle takes them back."""
        x, scales = x if isinstance(x, tuple) else (x, None)
        chosen = handle[0] if handle is not None else is_token_in_rank
        if chosen is None:
            raise ValueError("neither a handle nor is_token_in_rank")
        received, counts = self._exchange.dispatch(x, chosen)
        return (
            received if scales is None else (received, scales),
            None,
            None,
            [],
            (chosen, counts),
            None,
        )

    def combine(
        self,
        x: Any,
        handle: Any,
        topk_weights: Any = None,
        bias: Any = None,
        config: Any = None,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:
        """Send tokens back."""
        return self._exchange.combine(x, *handle), None, None

    def low_latency_dispatch(
        self,
        x: Any,
        topk_idx: Any,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Any = None,
        dispatch_wait_recv_cost_stats: Any = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[Any, ...]:
        """Send tokens; they arrive as those of one local expert, `[1, tokens, hidden]`."""
        chosen = ranks_of(topk_idx, num_experts, self._exchange.size)
        received, counts = self._exchange.dispatch(x, chosen)
        most, hidden = num_max_dispatch_tokens_per_rank, x.shape[1]
        return received[None], counts, (chosen, counts, most, hidden, num_experts), None, None

    def low_latency_combine(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        handle: Any,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Any = None,
        combine_wait_recv_cost_stats: Any = None,
    ) -> tuple[Any, ...]:
        """Send tokens back."""
        return self._exchange.combine(x[0], *handle[:2]), None, None
