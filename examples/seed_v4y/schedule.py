"""Batch sizes: how many tokens each node's replica computes in each step.

The older steps are drawn from a seed. The later ones are chosen so that the windows come out
as recorded; README.md says how much freedom the record leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

__all__ = ["Batch", "batches"]

Batch = tuple[int, int]
"""Tokens of one step on node-1 and on node-15."""

HISTORY = 20
"""Steps before those that are chosen."""

NODE_1 = (
    # Long prompts come in; after each, one request more is decoded for a while.
    (18, 18),
    (1, 9211),
    (5, 19),
    (8, 18),
    (1, 7264),
    (4, 19),
    (11, 18),
    (1, 6035),
    (4, 18),
    (1, 10733),
)
NODE_15 = (
    # A small and steady load, of even numbers most of the time.
    (1, 13),
    (23, 14),
    (1, 876),
    (6, 15),
    (22, 14),
    (1, 15),
)
"""(steps, tokens of each), oldest first. The last step is the one that never ended."""


def batches(seed: int = 4) -> list[Batch]:
    """Return the batches of the whole run, that of the unfinished step last."""
    recent = zip(_unrolled(NODE_1), _unrolled(NODE_15), strict=True)
    return [*_history(Random(seed)), *recent]


def _unrolled(phases: tuple[tuple[int, int], ...]) -> Iterator[int]:
    for steps, tokens in phases:
        yield from [tokens] * steps


def _history(random: Random) -> Iterator[Batch]:
    """Draw requests that come, with a prompt, and go; each running one is a token a step."""
    running = [16, 12]
    for _ in range(HISTORY):
        tokens = []
        for node, longest in enumerate((12_000, 900)):
            chance = random.random()
            prompt = 0
            if chance < 0.1:
                prompt = int(longest * (0.5 + 0.5 * random.random()))
                running[node] += 1
            elif chance < 0.2 and running[node] > 8:
                running[node] -= 1
            tokens.append(running[node] + prompt)
        yield tokens[0], tokens[1]
