"""The stand-in's second buffer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ..exchange import Exchange, ranks_of


class ElasticBuffer:
    """Exchanges tokens; its handles know the number of experts."""

    def __init__(self, group: Any, num_bytes: Any = None) -> None:
        self.group = group
        self._exchange = Exchange(group)

    def dispatch(
        self,
        x: Any,
        topk_idx: Any = None,
        topk_weights: Any = None,
        cumulative_local_expert_recv_stats: Any = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Any = None,
        previous_event_before_epilogue: Any = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: Any = None,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> tuple[Any, ...]:
        """Send tokens; the handle takes them back."""
        if handle is None:
            assert num_experts is not None
            chosen = ranks_of(topk_idx, num_experts, self._exchange.size)
            handle = SimpleNamespace(num_experts=num_experts, chosen=chosen)
        received, handle.counts = self._exchange.dispatch(x, handle.chosen)
        return received, None, None, handle, None

    def combine(
        self,
        x: Any,
        handle: Any,
        topk_weights: Any = None,
        bias: Any = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Any = None,
        previous_event_before_epilogue: Any = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:
        """Send tokens back."""
        return self._exchange.combine(x, handle.chosen, handle.counts), None, None
