"""Ranks that are late, as they are at work or elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ncclscope.model import Call, Communicator, Run
from ncclscope.wording.names import (
    be,
    call_text,
    comm_text,
    ranks_text,
    sentence,
    verb,
    who_text,
)
from ncclscope.wording.phrase import Phrase


class Late(Phrase):
    """What follows for ranks that are late."""

    MAY_COME = "{} may still come to the call"
    USES = "rank {}, with the processes that it started, uses {:.0%} of a core"


def late_for_all(
    run: Run,
    absent: Sequence[int],
    waiting: Sequence[int],
    first: tuple[int, Communicator, Call],
    at: str,
) -> str:
    """Say that all ranks wait for late ones, the first in a call; `at`: where those are."""
    rank, comm, call = first
    return (
        f"{sentence(who_text(run, absent))} {be(absent)} late: {ranks_text(waiting)} "
        f"{verb(waiting, 'wait')}, rank {rank} in {call_text(call)} on {comm_text(comm)}. "
        f"{at or 'It is at work'}, or in an endless loop."
    )


def late_for(
    run: Run,
    absent: Sequence[int],
    waiting: Sequence[int],
    where: str,
    at: str,
    shares: Iterable[float],
) -> str:
    """Say that ranks are late for a call, and what share of a core each uses."""
    listed = ", ".join(f"{share:.0%}" for share in shares)
    return (
        f"{sentence(who_text(run, absent))} {be(absent)} late for {where}, in which "
        f"{ranks_text(waiting)} {verb(waiting, 'wait')}: {at or 'at work'} ({listed} of a core), "
        f"or in an endless loop."
    )


def elsewhere(absent: Sequence[int], waiting: Sequence[int], where: str) -> str:
    """Say that ranks wait in a call, and others post calls on other communicators."""
    return (
        f"{sentence(ranks_text(waiting))} {verb(waiting, 'wait')} in {where}; {ranks_text(absent)} "
        f"{verb(absent, 'post')} calls on other communicators, and may still come."
    )
