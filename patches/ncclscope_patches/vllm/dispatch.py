"""A dispatcher for vLLM's mixture-of-experts layers without rank-dependent branches.

vLLM's own dispatcher enqueues an all_gather if all ranks have the same number of rows, and an
all_gatherv otherwise. The number of rows also selects the kernel below. If one rank has other
sizes than its peers, it enqueues another call, and all ranks hang. This dispatcher pads rows to the
largest number of any rank. So every step enqueues the same calls with the same shapes, and the
padding is removed afterwards.

``NCCLSCOPE_VLLM_DISPATCH=fixed`` enables it. With ``checked``, the ranks also compare on the host
what each is about to do, before they enqueue it. If they differ, all of them raise an error that
shows every rank's sizes, instead of hanging. The check is one small gloo call per dispatch and
combine. It runs on the host, so only once for a call that a CUDA graph replays.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from ncclscope.errors import DivergenceError
from ncclscope.model.text import ranks_text, sizes_text
from ncclscope.tracing import session
from ncclscope_patches.importing import ImportHook

__all__ = ["VARIABLE", "VERSIONS", "agree", "install", "make_manager"]

VARIABLE = "NCCLSCOPE_VLLM_DISPATCH"

VERSIONS = ("0.26.0", "0.30.0", "0.32.0")
"""Supported versions of vLLM; another version's dispatcher may have other branches."""

_MODULE = "vllm.distributed.device_communicators.all2all"
_STOCK = "AgRsAll2AllManager"
_NEEDED = ("_get_comm_group", "_get_sizes", "dispatch", "dispatch_router_logits", "combine")
_TEXT_BYTES = 512

_hook = ImportHook()
_waiting = False


def install() -> None:
    """Replace vLLM's dispatcher as soon as it is imported."""
    global _waiting
    if not _waiting:
        _waiting = True
        _hook.after(_MODULE, _replace)


def _replace() -> None:
    try:
        mode = os.environ.get(VARIABLE, "")
        if mode not in ("fixed", "checked"):
            raise ValueError(f"{VARIABLE}={mode!r} is neither 'fixed' nor 'checked'")
        version = str(getattr(sys.modules.get("vllm"), "__version__", "unknown")).partition("+")[0]
        if version not in VERSIONS:
            raise NotImplementedError(
                f"vLLM {version} is not among {', '.join(VERSIONS)}, for which it was written"
            )
        module: Any = sys.modules[_MODULE]
        stock = getattr(module, _STOCK)
        missing = [name for name in _NEEDED if not hasattr(stock, name)]
        if missing:
            raise NotImplementedError(f"{_STOCK} has no {' '.join(missing)}")
        setattr(module, _STOCK, make_manager(stock, check=mode == "checked"))
    except Exception as error:
        session.warn_once(VARIABLE, f"vLLM's own dispatcher stays in this process: {error}")


def make_manager(stock: Any, *, check: bool) -> Any:
    """Return a class that replaces vLLM's ``AgRsAll2AllManager``.

    Args:
        stock: That class, which provides the peers and their numbers of rows.
        check: Whether ranks compare what they are about to do.
    """

    class PaddedAll2AllManager(stock):  # type: ignore[misc]
        """Dispatches with an all_gather and combines with a reduce_scatter, for any sizes."""

        def dispatch_router_logits(
            self,
            hidden_states: Any,
            router_logits: Any,
            is_sequence_parallel: bool = False,
            extra_tensors: list[Any] | None = None,
        ) -> Any:
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
            tensors = [hidden_states, topk_weights, topk_ids, *(extra_tensors or ())]
            gathered = self._gather("dispatch", tensors, is_sequence_parallel)
            return _like_stock(gathered, 3, extra_tensors)

        def combine(self, hidden_states: Any, is_sequence_parallel: bool = False) -> Any:
            group, sizes, rows = self._scattering(hidden_states, is_sequence_parallel)
            own = group.reduce_scatterv(rows, dim=0)
            return own[: sizes[group.rank_in_group]]

        def combine_into_output(
            self, hidden_states: Any, output: Any, is_sequence_parallel: bool = False
        ) -> Any:
            group, sizes, rows = self._scattering(hidden_states, is_sequence_parallel)
            if rows is hidden_states:
                return group.reduce_scatterv_into_output(rows, output, dim=0)
            own = group.reduce_scatterv(rows, dim=0)
            return output.copy_(own[: sizes[group.rank_in_group]])

        def _gather(self, name: str, tensors: list[Any], is_sequence_parallel: bool) -> list[Any]:
            group = self._get_comm_group(is_sequence_parallel)
            rows = tensors[0].shape[0]
            sizes = [int(size) for size in self._get_sizes(rows, group)]
            self._examine(group, name, tensors, sizes, rows)
            most = max(sizes)
            gathered = group.all_gatherv([_padded(tensor, most) for tensor in tensors], dim=0)
            return [_without_padding(tensor, sizes, most) for tensor in gathered]

        def _scattering(
            self, hidden_states: Any, is_sequence_parallel: bool
        ) -> tuple[Any, list[int], Any]:
            group = self._get_comm_group(is_sequence_parallel)
            rows = hidden_states.shape[0]
            sizes = [int(size) for size in self._get_sizes(rows // group.world_size, group)]
            self._examine(group, "combine", [hidden_states], sizes, rows)
            return group, sizes, _with_padding(hidden_states, sizes)

        def _examine(
            self, group: Any, name: str, tensors: list[Any], sizes: list[int], rows: int
        ) -> None:
            """Raise if the sizes do not match; with the check, on all ranks or on none."""
            own = group.rank_in_group
            right = len(sizes) == group.world_size and rows == (
                sum(sizes) if name == "combine" else sizes[own]
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
    who: dict[str, list[int]] = {}
    for rank, one in posted.items():
        who.setdefault(one, []).append(rank)
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
