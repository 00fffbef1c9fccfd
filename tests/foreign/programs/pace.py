"""Ranks that are seldom in step."""

import random
import time

__all__ = ["pause"]


def pause(rank: int, step: int) -> None:
    """Sleep up to 50 ms, and now and then three seconds, on one rank only."""
    late = step % 12 == 3 and rank == step // 12 % 4
    time.sleep(3 if late else random.random() * 0.05)
