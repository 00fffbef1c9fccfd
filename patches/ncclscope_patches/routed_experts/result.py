"""What a request gets: the experts of its tokens, and which tokens they are not known of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ncclscope_patches.routed_experts.shape import Ids, Mask

__all__ = ["RoutedExperts", "routed_tokens"]


def routed_tokens(prompt: int, generated: int) -> int:
    """Return how many tokens of a request are routed: the last one that it generates is not.

    Args:
        prompt: Tokens of the prompt.
        generated: Tokens that were generated; 0 for a request that ended before.
    """
    return prompt + max(generated - 1, 0)


@dataclass(frozen=True)
class RoutedExperts:
    """The routing of consecutive tokens of one request.

    Attributes:
        ids: Experts, ``[tokens, layers, top_k]``. Rows of missing tokens are zeros, which says
            nothing: expert 0 is an expert.
        missing: For each token, whether its routing is unknown.
        prompt_tokens: Tokens of the request's prompt.
        first: Position in the request of the first token here; not 0 in parts of a stream.
    """

    ids: Ids
    missing: Mask
    prompt_tokens: int
    first: int = 0

    @property
    def tokens(self) -> int:
        """How many they are."""
        return len(self.ids)

    @property
    def missing_count(self) -> int:
        """How many of them are missing."""
        return int(self.missing.sum())

    @property
    def missing_runs(self) -> tuple[tuple[int, int], ...]:
        """The missing ones: of each run, its first token, counted from the first, and how many."""
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
        """The part that belongs to tokens which were generated."""
        return self.part(self._border, self.tokens)

    def part(self, start: int, end: int) -> RoutedExperts:
        """Return some of the tokens, counted from the first one here."""
        return RoutedExperts(
            self.ids[start:end], self.missing[start:end], self.prompt_tokens, self.first + start
        )

    @property
    def _border(self) -> int:
        return min(max(self.prompt_tokens - self.first, 0), self.tokens)
