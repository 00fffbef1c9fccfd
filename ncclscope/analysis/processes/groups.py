"""Weigh a verdict from stacks by the process groups in which the ranks may wait.

A rank that waits in a call of a smaller group waits for the members of that group, wherever all
other ranks are. Stacks show whether a call names a group, and connections show which groups exist.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ncclscope.analysis.processes.frames import INIT_OPS
from ncclscope.analysis.processes.judgement import Judgement
from ncclscope.analysis.processes.motion import Motion
from ncclscope.analysis.processes.stack_classes import has_left_loop
from ncclscope.analysis.wording import ranks_text, sentence
from ncclscope.model.snapshot import Worker

Group = frozenset[int]
"""Global ranks of the members."""

_C10D = re.compile(r"(?:^|/)torch/distributed/")
_USES_GPU = re.compile(r"cuda|nccl", re.IGNORECASE)
_DEFAULT, _GIVEN = "default", "given"


def groups_of(workers: Sequence[Worker]) -> frozenset[Group] | None:
    """Return the process groups of a job, as the connections of gloo show them.

    In each group a rank listens on a port of its own, and is connected to all members. Of two, the
    one with the lower port accepts. So the ranks accept from all, from all but one, and so on: a
    group of ranks 0 1 2 is seen as ``{0 1 2}`` at one of them and as the rest at the next.

    Args:
        workers: The processes of the job.

    Returns:
        None where the connections do not show all groups: those of other hosts, of ranks without
        a process, and of NCCL are not seen.
    """
    everyone = frozenset(worker.rank for worker in workers)
    threads = {name for one in workers for sample in one.samples for name in sample.threads}
    is_whole = all(one.world_size == len(everyone) and not one.host for one in workers)
    if not is_whole or any(map(_USES_GPU.search, threads)):
        return None
    seen: Counter[Group] = Counter()
    for worker in workers:
        for peers in worker.accepted:
            members = frozenset({worker.rank, *peers})
            if len(members) <= len(peers) or -1 in members:
                continue  # another server: a rank is connected twice, with itself, or is no rank
            seen[members] += 1
            seen[members - {worker.rank}] -= 1
    found = {members: count for members, count in seen.items() if len(members) > 1 and count}
    if everyone not in found or min(found.values()) < 0:
        return None
    return frozenset(found)


def within_groups(
    found: Judgement, motions: Sequence[Motion], groups: frozenset[Group] | None
) -> Judgement:
    """Return a judgement by a majority of all ranks, unless a smaller group decides otherwise.

    A rank is named only where it is in a minority of each group in which it may wait; otherwise the
    other members of the group are candidates, too.

    Args:
        found: The judgement.
        motions: The motion of each rank.
        groups: The process groups; None where they are not known.
    """
    by_rank = {motion.rank: motion for motion in motions}
    apart = found.diverging or found.candidates
    if not apart or not {*apart} < by_rank.keys():
        return found
    added = {
        rank
        for number in apart
        for group in _groups_of_call(by_rank[number], by_rank, apart, groups)
        if 2 * len(group.intersection(apart)) >= len(group)
        for rank in group.difference(apart)
    }
    if not added or _are_left_behind(by_rank, apart):
        return found
    candidates = tuple(sorted({*apart, *added}))
    return replace(
        found,
        kind="not_joined",
        summary=(
            f"{found.summary} {sentence(ranks_text(apart))} may wait in a smaller group, for "
            f"{ranks_text(sorted(added))}."
        ),
        diverging=(),
        candidates=candidates,
        confidence="ambiguous",
    )


def _groups_of_call(
    motion: Motion,
    motions: Mapping[int, Motion],
    apart: Collection[int],
    groups: frozenset[Group] | None,
) -> Collection[Group]:
    """Return the groups in which a rank may wait; none where nothing hints at a smaller one."""
    named = _group_of(motion)
    if not motion.is_waiting or motion.op is None or motion.op in INIT_OPS or named == _DEFAULT:
        return ()
    if groups is not None:
        return [group for group in groups if motion.rank in group]
    others = {_group_of(one) for rank, one in motions.items() if rank not in apart}
    # Where no call names a group of all, frameworks may pass that group by name.
    return [frozenset((motion.rank, rank)) for rank in motions if rank != motion.rank] if (
        named == _GIVEN and _DEFAULT in others
    ) else ()


def _group_of(motion: Motion) -> str:
    """Return whether the call in which a rank waits names a group; empty where not known."""
    named = ""
    for frame in reversed(motion.frames):
        if not _C10D.search(frame.file):
            break
        named = frame.group or named  # the outermost function has the arguments as passed
    return named


def _are_left_behind(motions: Mapping[int, Motion], apart: Collection[int]) -> bool:
    """Return whether all other ranks have left a loop that each of these ranks is in."""
    return all(
        has_left_loop(one, motions[rank])
        for rank in apart
        for number, one in motions.items()
        if number not in apart
    )
