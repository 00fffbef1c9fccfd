"""Calls that raised an exception on some members, while the others wait in them."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import shorten
from typing import TYPE_CHECKING

from ncclscope.analysis.waits.endings import ended_by, is_last
from ncclscope.analysis.waits.noted import raised_line
from ncclscope.analysis.wording import call_text, comm_text, ranks_text, sentence, verb
from ncclscope.model import Finding
from ncclscope.untrusted import printable

if TYPE_CHECKING:
    from ncclscope.analysis.case import Case

__all__ = ["failed_inside"]

_LONGEST = 240
"""Characters of an exception's text that are shown."""


def failed_inside(case: Case, analyzer: str) -> Iterator[Finding]:
    """Yield ranks that failed in a call that all members have posted.

    Args:
        case: The case.
        analyzer: Name of the analyzer that reports them.
    """
    ranks = case.run.by_rank
    inside: dict[tuple[str, int], list[int]] = {}
    for rank in case.run.ranks:
        if (call := rank.last_call()) is not None and ended_by(call, rank):
            inside.setdefault((call.comm, call.seq), []).append(rank.rank)
    for (key, seq), failing in inside.items():
        comm, odd = case.run.communicators[key], ranks[failing[0]].last_call()
        others = [number for number in comm.ranks if number not in failing]
        if odd is None or len(others) < len(failing):
            continue
        if not all(is_last(ranks.get(number), odd) for number in others):
            continue
        past = [n for n in others if (last := ranks[n].last_call()) and last.seq > seq]
        ended = [ranks[number] for number in failing]
        how = "; ".join(dict.fromkeys(str(rank.details["ended_with"]) for rank in ended))
        how = shorten(how, _LONGEST, placeholder=" ...")
        yield Finding(
            kind="dead_rank",
            summary=(
                f"{sentence(ranks_text(failing))} failed in call {seq} on {comm_text(comm)}, "
                f"{call_text(odd)} ({printable(how)}), in which {ranks_text(others)} "
                f"{verb(others, 'wait')}{', or in a later one' if past else ''}."
            ),
            comm=comm,
            seq=seq,
            diverging_ranks=tuple(failing),
            odd=odd,
            peers=ranks[others[0]].last_call(),
            confidence="likely",
            analyzer=analyzer,
            evidence=(
                f"{ranks_text(comm.ranks)} posted call {seq} on {comm_text(comm)}, "
                f"{call_text(odd)}; it is not known to have completed anywhere",
                *(line for rank in ended if (line := raised_line(case, rank))),
            ),
            inferred=("the exception comes from the line that made the call",),
        )
