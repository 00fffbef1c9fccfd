"""Work on a job grows with its ranks, and not with pairs of ranks."""

from __future__ import annotations

import time

from ncclscope.engine.coverage import survey
from ncclscope.model import Communicator, Rank, Run
from ncclscope.readers.members import join_processes

RANKS = 30_000
SECONDS = 6.0
"""Seconds of this process that each test may take; with pairs of ranks it is more than ten."""


def ranks() -> list[Rank]:
    return [Rank(rank, host=f"node-{rank // 8}", pid=1000 + rank) for rank in range(RANKS)]


def test_rings_are_joined_by_process_without_comparing_all_pairs() -> None:
    own = ranks()
    began = time.process_time()
    assert join_processes(own) == own
    assert time.process_time() - began < SECONDS


def test_groups_are_searched_for_damaged_transfers_on_their_members_only() -> None:
    groups = {
        f"tp:{group}": Communicator(f"tp:{group}", ranks=tuple(range(8 * group, 8 * group + 8)))
        for group in range(RANKS // 8)
    }
    run = Run(tuple(ranks()), groups, expected=RANKS)
    began = time.process_time()
    survey(run)
    assert time.process_time() - began < SECONDS
