"""The result for a request: the experts of its tokens, and which tokens are missing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ncclscope_patches.routed_experts.shape import Ids, Mask


def routed_tokens(prompt: int, generated: int) -> int:
    """Return the number of routed tokens of a request: all but the last generated one.

    Args:
        prompt: Number of tokens of the prompt.
        generated: Number of generated tokens; 0 for a request that ended before.
    """
    return prompt + max(generated - 1, 0)


@dataclass(frozen=True)
class RoutedExperts:
    """The routing of consecutive tokens of one request.

    Attributes:
        ids: Expert ids, ``[tokens, layers, top_k]``. Rows of missing tokens are zeros, although
            0 is a valid id.
        missing: Whether each token's routing is unknown, ``[tokens]``.
        prompt_tokens: Number of tokens of the request's prompt.
        first: Position in the request of the first token here; not 0 in parts of a stream.
    """

    ids: Ids
    missing: Mask
    prompt_tokens: int
    first: int = 0

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return len(self.ids)

    @property
    def missing_count(self) -> int:
        """Number of missing tokens."""
        return int(self.missing.sum())

    @property
    def missing_runs(self) -> tuple[tuple[int, int], ...]:
        """Runs of missing tokens: index of the first one here, and length."""
        padded = np.concatenate(([False], self.missing, [False])).astype(np.int8)
        edges = np.flatnonzero(np.diff(padded)).tolist()
        return tuple(
            (start, end - start) for start, end in zip(edges[::2], edges[1::2], strict=True)
        )

    @property
    def prompt(self) -> RoutedExperts:
        """The part that belongs to the prompt."""
        return self.part(0, self._border)

    @property
    def generation(self) -> RoutedExperts:
        """The part that belongs to generated tokens."""
        return self.part(self._border, self.tokens)

    def part(self, start: int, end: int) -> RoutedExperts:
        """Return tokens `start` to `end - 1`, counted from the first one here."""
        return RoutedExperts(
            self.ids[start:end], self.missing[start:end], self.prompt_tokens, self.first + start
        )

    @property
    def _border(self) -> int:
        return min(max(self.prompt_tokens - self.first, 0), self.tokens)
