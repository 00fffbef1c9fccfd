"""Dispatchers for vLLM's mixture-of-experts layers, without rank-dependent branches.

============  ====================================================================================
``fixed``     Rows are padded to the largest number of any rank, so that every step enqueues the
              same calls with the same shapes. The padding is removed afterwards.
``checked``   The same, and before each dispatch and combine the ranks compare on the host what
              each is about to do. If they differ, all of them raise an error that shows every
              rank's sizes, instead of hanging. The check is one small gloo call. It runs on the
              host, so only once for a call that a CUDA graph replays.
``sentinel``  Every rank adds one row of zeros, routed to its own first expert with weight 0. So
              every rank sends at least one row, and has an expert with work. Batches keep their
              own sizes, whose differences still select the call.
============  ====================================================================================
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from ncclscope.errors import DivergenceError
from ncclscope.model.text import ranks_text, sizes_text
from ncclscope.model.ties import grouped
from ncclscope.tracing import session
from ncclscope_patches.vllm import group_mode

MODES = ("fixed", "checked", "sentinel")
"""Dispatchers by the value of the variable."""

_TEXT_BYTES = 512
_CHOSEN = 1e4
"""A router logit that no other one reaches, also in half precision."""


def make_manager(stock: Any, mode: str, variable: str = "") -> Any:
    """Return a class that replaces vLLM's ``AgRsAll2AllManager``.

    Args:
        stock: That class, which provides the peers and their numbers of rows.
        mode: One of `MODES`.
        variable: Name of the switch, on whose value the ranks agree; empty: they need not.
    """
    check = mode == "checked"
    added = int(mode == "sentinel")

    class PaddedAll2AllManager(stock):  # type: ignore[misc]
        """Dispatches with an all_gather and combines with a reduce_scatter, for any sizes."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._serves = not variable or _agreed(self, variable, mode)
            self._expert = _first_expert(self) if added and self._serves else 0

        def dispatch_router_logits(
            self,
            hidden_states: Any,
            router_logits: Any,
            is_sequence_parallel: bool = False,
            extra_tensors: list[Any] | None = None,
        ) -> Any:
            if not self._serves:
                return super().dispatch_router_logits(
                    hidden_states, router_logits, is_sequence_parallel, extra_tensors
                )
            tensors = [hidden_states, router_logits, *(extra_tensors or ())]
            gathered = self._gather("dispatch_router_logits", tensors, is_sequence_parallel)
            return _like_stock(gathered, 2, extra_tensors)

        def dispatch(
            self,
            hidden_states: Any,
            topk_weights: Any,
            topk_ids: Any,
            is_sequence_parallel: bool = False,
            extra_tensors: list[Any] | None = None,
        ) -> Any:
            if not self._serves:
                return super().dispatch(
                    hidden_states, topk_weights, topk_ids, is_sequence_parallel, extra_tensors
                )
            tensors = [hidden_states, topk_weights, topk_ids, *(extra_tensors or ())]
            gathered = self._gather("dispatch", tensors, is_sequence_parallel)
            return _like_stock(gathered, 3, extra_tensors)

        def combine(self, hidden_states: Any, is_sequence_parallel: bool = False) -> Any:
            if not self._serves:
                return super().combine(hidden_states, is_sequence_parallel)
            group, own, rows, sizes = self._scattering(hidden_states, is_sequence_parallel)
            return group.reduce_scatterv(rows, dim=0, sizes=sizes)[:own]

        def combine_into_output(
            self, hidden_states: Any, output: Any, is_sequence_parallel: bool = False
        ) -> Any:
            if not self._serves:
                return super().combine_into_output(hidden_states, output, is_sequence_parallel)
            group, own, rows, sizes = self._scattering(hidden_states, is_sequence_parallel)
            if rows is hidden_states and sizes is None:
                return group.reduce_scatterv_into_output(rows, output, dim=0)
            return output.copy_(group.reduce_scatterv(rows, dim=0, sizes=sizes)[:own])

        def _gather(self, name: str, tensors: list[Any], is_sequence_parallel: bool) -> list[Any]:
            group = self._get_comm_group(is_sequence_parallel)
            rows = tensors[0].shape[0]
            sizes = [int(size) for size in self._get_sizes(rows, group)]
            self._examine(group, name, tensors, sizes, rows)
            if added:
                more = _with_sentinel(name, tensors, self._expert)
                larger = [size + 1 for size in sizes]
                gathered: list[Any] = group.all_gatherv(more, dim=0, sizes=larger)
                return gathered
            most = max(sizes)
            gathered = group.all_gatherv([_padded(tensor, most) for tensor in tensors], dim=0)
            return [_without_padding(tensor, sizes, most) for tensor in gathered]

        def _scattering(
            self, hidden_states: Any, is_sequence_parallel: bool
        ) -> tuple[Any, int, Any, list[int] | None]:
            """Return the group, the own number of rows, and the rows to scatter with their sizes.

            None for sizes that are equal.
            """
            group = self._get_comm_group(is_sequence_parallel)
            rows = hidden_states.shape[0]
            sizes = [int(size) for size in self._get_sizes(rows // group.world_size - added, group)]
            self._examine(group, "combine", [hidden_states], sizes, rows)
            own = sizes[group.rank_in_group]
            if added:
                return group, own, hidden_states, [size + 1 for size in sizes]
            return group, own, _with_padding(hidden_states, sizes), None

        def _examine(
            self, group: Any, name: str, tensors: list[Any], sizes: list[int], rows: int
        ) -> None:
            """Raise if the sizes do not match; with the check, on all ranks or on none."""
            own = group.rank_in_group
            right = len(sizes) == group.world_size and rows == (
                sum(sizes) + added * len(sizes) if name == "combine" else sizes[own]
            )
            if check:
                kinds = " ".join(f"{list(tensor.shape[1:])} {tensor.dtype}" for tensor in tensors)
                text = f"{name} of sizes {sizes_text(sizes)}, {kinds}"
                same = f"{name} {sizes} {kinds}"
                agree(group, same, text if right else f"{text}, but {rows} rows", right)
            elif not right:
                raise ValueError(f"{rows} rows to {name}, of sizes {sizes}, as rank {own}")

    PaddedAll2AllManager.__qualname__ = PaddedAll2AllManager.__name__
    return PaddedAll2AllManager


def _agreed(manager: Any, variable: str, mode: str) -> bool:
    stateless = getattr(manager, "tcp_store_group", None)
    group = manager.cpu_group if stateless is None else stateless
    try:
        otherwise = "vLLM's own dispatcher stays on all ranks of this group"
        return group_mode.agreed(group, variable, mode, otherwise=otherwise)
    except Exception as error:
        session.warn_once(variable, f"vLLM's own dispatcher stays in this process: {error}")
        return False


def _first_expert(manager: Any) -> int:
    """Return the first expert of this rank, if they are placed in order; else some expert."""
    from vllm.config import get_current_vllm_config

    experts = int(get_current_vllm_config().model_config.get_num_experts() or 0)
    return experts * int(manager.rank) // int(manager.world_size)


def _with_sentinel(name: str, tensors: list[Any], expert: int) -> list[Any]:
    """Append a row of zeros to each tensor, which is routed to an expert."""
    rows = [tensor.new_zeros((1, *tensor.shape[1:])) for tensor in tensors]
    if name == "dispatch":
        rows[2].fill_(expert)
    else:
        rows[1][:, expert] = _CHOSEN
    cat: Callable[..., Any] = sys.modules["torch"].cat
    return [cat(pair) for pair in zip(tensors, rows, strict=True)]


def agree(group: Any, same: str, text: str, right: bool = True) -> None:
    """Compare what all members of a group are about to do; raise on all of them if it differs.

    Args:
        group: One of vLLM's coordinators, whose CPU group carries the exchange.
        same: Text that must be equal; exchanged as a digest of 63 bits.
        text: Description for the error; exchanged only if ranks differ.
        right: Whether this rank can do it; if one cannot, all raise.

    Raises:
        DivergenceError: Members differ; the message shows each member's text.
    """
    digest = int.from_bytes(blake2b(same.encode(), digest_size=8).digest(), "big") >> 1
    torch: Any = sys.modules["torch"]
    mine = torch.tensor([digest, int(right)], dtype=torch.int64)
    found = [(int(one), bool(fits)) for one, fits in _all_gather(group, mine)]
    if len(set(found)) == 1 and right:
        return
    # Every member reaches this line, since all have seen the same digests.
    encoded = text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")
    mine = torch.tensor(list(encoded), dtype=torch.uint8)
    texts = [
        bytes(row.tolist()).rstrip(b"\0").decode(errors="replace")
        for row in _all_gather(group, mine)
    ]
    posted = dict(zip(group.ranks, texts, strict=True))
    who = grouped(posted, lambda rank: posted[rank])
    each = "; ".join(f"{ranks_text(ranks)}: {one}" for one, ranks in who.items())
    raise DivergenceError(
        f"the ranks of {group.unique_name} are about to post different calls: {each}",
        "nothing was posted; the sizes come from the ranks' agreement on tokens in this step",
        comm=group.unique_name,
        posted=posted,
    )


def _all_gather(group: Any, tensor: Any) -> list[Any]:
    found = [tensor.new_empty(tensor.shape) for _ in range(group.world_size)]
    sys.modules["torch.distributed"].all_gather(found, tensor, group=group.cpu_group)
    return found


def _padded(tensor: Any, most: int) -> Any:
    """Pad a tensor to ``most`` rows with arbitrary values."""
    if tensor.shape[0] == most:
        return tensor
    padded = tensor.new_empty((most, *tensor.shape[1:]))
    padded[: tensor.shape[0]] = tensor
    return padded


def _without_padding(tensor: Any, sizes: Sequence[int], most: int) -> Any:
    if all(size == most for size in sizes):
        return tensor
    cat: Callable[..., Any] = sys.modules["torch"].cat
    starts = range(0, most * len(sizes), most)
    return cat([tensor[start : start + size] for start, size in zip(starts, sizes, strict=True)])


def _with_padding(tensor: Any, sizes: Sequence[int]) -> Any:
    most = max(sizes)
    if all(size == most for size in sizes):
        return tensor
    padded = tensor.new_zeros((most * len(sizes), *tensor.shape[1:]))
    begin = 0
    for place, size in enumerate(sizes):
        padded[place * most : place * most + size] = tensor[begin : begin + size]
        begin += size
    return padded


def _like_stock(gathered: list[Any], count: int, extra_tensors: list[Any] | None) -> Any:
    """Return the stock method's result: the extra tensors as a list, if there were any."""
    if extra_tensors is None:
        return tuple(gathered[:count])
    return (*gathered[:count], gathered[count:])
