"""KV blocks of one replica, and the prefix cache: which blocks hold which tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np

__all__ = ["BlockPool", "block_keys"]


def block_keys(tokens: Sequence[int], block_size: int) -> list[bytes]:
    """Return a key for each full block: equal where all tokens up to its end are."""
    data = np.asarray(tokens, np.int32)
    keys = []
    key = b""
    for end in range(block_size, len(tokens) + 1, block_size):
        key = blake2b(key + data[end - block_size : end].tobytes(), digest_size=16).digest()
        keys.append(key)
    return keys


class BlockPool:
    """Blocks, each used by any number of requests.

    A block that nobody uses any more keeps its content until it is given new content; the one
    that has been free for longest is the first to get it.

    Args:
        count: How many there are.
    """

    def __init__(self, count: int) -> None:
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))
        self._users = [0] * count
        self._by_key: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}

    @property
    def free(self) -> int:
        """How many can be allocated."""
        return len(self._free)

    def hits(self, keys: Iterable[bytes]) -> list[int]:
        """Return the blocks that hold the first tokens of a request."""
        found = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def share(self, blocks: Iterable[int]) -> None:
        """Give blocks one more user."""
        for block in blocks:
            if not self._users[block]:
                del self._free[block]
            self._users[block] += 1

    def allocate(self, count: int) -> list[int] | None:
        """Return blocks for new content; None where there are not as many."""
        if count > len(self._free):
            return None
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._users[block] = 1
            key = self._keys.pop(block, None)
            if key is not None:
                del self._by_key[key]
        return blocks

    def publish(self, block: int, key: bytes) -> None:
        """Offer a block to later requests, unless another one holds the same tokens."""
        if key not in self._by_key and block not in self._keys:
            self._by_key[key] = block
            self._keys[block] = key

    def release(self, blocks: Iterable[int]) -> None:
        """Take a user away from blocks."""
        for block in blocks:
            self._users[block] -= 1
            if not self._users[block]:
                self._free[block] = None
