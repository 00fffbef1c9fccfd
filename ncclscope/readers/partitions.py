"""Find unnamed process groups that partition the job, and so have the same role."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from ncclscope.model import Communicator

_NUMBERED = re.compile(r"(?:pg|group )(\d{1,9})", re.ASCII)
"""Label of a group without a description: its number, as torch counts groups."""


def with_parts(communicators: Mapping[str, Communicator], expected: int) -> dict[str, Communicator]:
    """Mark consecutively created groups that together hold each rank exactly once.

    ``for ranks in ([0, 1], [2, 3]): new_group(ranks)`` creates such groups. With a common
    `Communicator.part`, the order of calls can be compared across them.

    Args:
        communicators: Communicators by key.
        expected: Number of ranks of the job.
    """
    found = dict(communicators)
    numbered: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for key, comm in communicators.items():
        name = _NUMBERED.fullmatch(comm.label)
        if name and 1 < len(comm.ranks) < expected and expected % len(comm.ranks) == 0:
            same = comm.backend, len(comm.ranks)
            numbered.setdefault(same, []).append((int(name[1]), key))
    for (_, size), groups in numbered.items():
        groups.sort()
        start = 0
        last: dict[int, int] = {}
        for place, (number, key) in enumerate(groups):
            if place and number != groups[place - 1][0] + 1:
                start = place
            for rank in communicators[key].ranks:
                start = max(start, last.get(rank, -1) + 1)
                last[rank] = place
            if (place + 1 - start) * size == expected:  # all ranks, none of them twice
                together = [key for _, key in groups[start : place + 1]]
                ends = [communicators[end].label for end in (together[0], together[-1])]
                for own in together:
                    found[own] = replace(found[own], part=" to ".join(ends))
                start = place + 1
    return found
