"""A dispatcher for vLLM's mixtures of experts that takes no branch a rank could take alone.

vLLM's own posts an all_gather where all ranks have the same number of rows and an all_gatherv
where they have not, and what replaces NCCL below it is chosen by the number of rows as well.
One rank with another idea of the sizes then posts another call than its peers, and all hang.
Here rows are padded to the most that a rank has, so that every step posts the same calls with
the same shapes; the padding is cut off behind.

``NCCLSCOPE_VLLM_DISPATCH=fixed`` asks for it, ``checked`` in addition has the ranks compare, on
the host and before anything is posted, what each is about to do. Where they differ all of them
raise, with what each rank had, in place of a hang. The check is one small gloo call for each
dispatch and combine. It happens on the host, thus once for a call that a CUDA graph replays.
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
"""Those whose dispatcher has been read; another may have branches of its own."""

_MODULE = "vllm.distributed.device_communicators.all2all"
_STOCK = "AgRsAll2AllManager"
_NEEDED = ("_get_comm_group", "_get_sizes", "dispatch", "dispatch_router_logits", "combine")
_TEXT_BYTES = 512

_hook = ImportHook()
_waiting = False


def install() -> None:
    """Put the dispatcher in the place of vLLM's as soon as that is imported."""
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
    """Return a class to take the place of vLLM's ``AgRsAll2AllManager``.

    Args:
        stock: That class. Who the peers are and how many rows they have is asked of it.
        check: Whether ranks compare what they are about to do.
    """

    class PaddedAll2AllManager(stock):  # type: ignore[misc]
        """Dispatch is an all_gather, combine a reduce_scatter, whatever the sizes are."""

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
            """Raise where the sizes do not fit; with the check, on all ranks or on none."""
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
    """Return on all members of a group when all are about to do the same, else raises on all.

    Args:
        group: One of vLLM's coordinators. What is exchanged goes through its group for the host.
        same: What has to be equal; exchanged as a digest of 63 bits.
        text: The same for a person; exchanged only where ranks differ.
        right: Whether this rank can do it. Where one cannot, all raise.

    Raises:
        DivergenceError: Members differ. It says what each of them had.
    """
    digest = int.from_bytes(blake2b(same.encode(), digest_size=8).digest(), "big") >> 1
    torch: Any = sys.modules["torch"]
    mine = torch.tensor([digest, int(right)], dtype=torch.int64)
    found = [(int(one), bool(fits)) for one, fits in _all_gather(group, mine)]
    if len(set(found)) == 1 and right:
        return
    # Every member is here: each has seen the same digests.
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
    """Return the tensor with rows added up to ``most``; what is in those never matters."""
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
    """Return what the stock method does: the rest as a list, where there was one to begin with."""
    if extra_tensors is None:
        return tuple(gathered[:count])
    return (*gathered[:count], gathered[count:])
