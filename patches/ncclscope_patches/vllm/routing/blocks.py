"""KV blocks of vLLM's scheduler: which of them stand for a token, and which hits are of use."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from ncclscope_patches.vllm.routing.wrapping import attempt

_KEPT = "a prefix hit is used, whether its routing is known or not"


def group_of_all_tokens(groups: list[Any]) -> int | None:
    """Return the group of KV blocks that has each token of a request in a block of its own.

    Models with several kinds of layers have several groups. Those of sliding windows and states
    drop tokens; a prefix hit ends where the group with full attention ends, too.

    Args:
        groups: The groups of a ``KVCacheConfig``.

    Returns:
        Its index; None if there is none.
    """
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    if len(groups) == 1:
        return 0
    full = (
        number
        for number, group in enumerate(groups)
        if isinstance(group.kv_cache_spec, FullAttentionSpec)
    )
    return next(full, None)


def watch_pool(pool: Any, renew: Any) -> None:
    """Report the blocks that get new content, whoever they are for."""

    def get_new_blocks(usual: Any, *args: Any, **kwargs: Any) -> Any:
        blocks = usual(*args, **kwargs)
        renew(block.block_id for block in blocks)
        return blocks

    pool.get_new_blocks = functools.partial(get_new_blocks, pool.get_new_blocks)


def without_lost_hits(manager: Any, group: int | None, is_lost: Any) -> None:
    """Let a prompt be computed again where a prefix hit would leave tokens without routing.

    Args:
        manager: vLLM's ``KVCacheManager``.
        group: Index of the blocks that stand for tokens; None if there are none, and no hit is of
            use.
        is_lost: Whether a block's routing is known to be missing, by its number.
    """

    def unusable(hits: Iterable[Any]) -> bool:
        return any(is_lost(block.block_id) for block in hits)

    def get_computed_blocks(usual: Any, *args: Any, **kwargs: Any) -> Any:
        blocks, computed, *more = found = usual(*args, **kwargs)
        if computed and attempt(_KEPT, lambda: group is None or unusable(blocks.blocks[group])):
            return (manager.empty_kv_cache_blocks, 0, *(0 for _ in more))
        return found

    manager.get_computed_blocks = functools.partial(
        get_computed_blocks, manager.get_computed_blocks
    )
