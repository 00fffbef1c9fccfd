"""Sentences about ranks that wait for others before their calls, or between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten

from ncclscope.model import Communicator, Rank, Run
from ncclscope.untrusted import printable
from ncclscope.wording.names import (
    comm_text,
    have,
    plural,
    ranks_text,
    sentence,
    verb,
    who_text,
)

NOT_STARTED = "a process without a ring was not started, or has not got that far"
_LONGEST = 200
"""Characters of an exception's text in a summary; the evidence has all of it."""


@dataclass(frozen=True)
class Waiting:
    """Ranks that wait for the same.

    Attributes:
        ranks: The ranks.
        text: In what they wait.
        seconds: For how long all of them have waited.
        over: Whether all have given up.
    """

    ranks: Sequence[int]
    text: str
    seconds: float
    over: bool

    @property
    def verb(self) -> str:
        """``wait``, ``waits`` or, where all have given up, ``waited``."""
        return "waited" if self.over else verb(self.ranks, "wait")

    def __str__(self) -> str:
        return f"{ranks_text(self.ranks)} {self.verb} in {self.text}"

    @property
    def timed(self) -> str:
        """Who waits in what, and for how long."""
        return f"{self} for {self.seconds:.0f} s"


def disagree(text: str, wait: Waiting, others: Iterable[str]) -> str:
    """Say in what settings ranks differ, who waits, and what the others do."""
    return f"{sentence('; '.join([f'{text}: {wait.timed}', *others]))}."


def doubled(pids: Mapping[int, Sequence[object]], absent: Sequence[int], wait: Waiting) -> str:
    """Say which ranks several processes have, which none has, and who waits."""
    texts = [
        f"{len(own)} processes have rank {rank} (pids {' '.join(map(str, own))})"
        for rank, own in pids.items()
    ]
    missing = f", and none has {ranks_text(absent)}" if absent else ""
    return f"{'; '.join(texts)}{missing}: {wait.timed}."


def waits_in_call(rank: int, comm: Communicator, seq: int) -> str:
    """Say in which call a rank waits."""
    return f"{ranks_text([rank])} waits in call {seq} on {comm_text(comm)}"


def recorded(text: str) -> str:
    """Say that each process recorded its settings."""
    return f"{text}, as each process recorded it"


def not_come(
    run: Run, absent: Sequence[int], wait: Waiting, doing: Iterable[str], *, known: bool
) -> str:
    """Say who has not come to where others wait, or may not have, and what they do."""
    come = f"{have(absent)} not come" if known else "may not have come"
    return (
        f"{sentence(who_text(run, absent))} {come} to {wait.text}, in which "
        f"{'; '.join([_timed_after(wait), *doing])}."
    )


def failed_in(
    run: Run, broken: Sequence[int], text: str, wait: Waiting, doing: Iterable[str]
) -> str:
    """Say who failed in that in which others wait."""
    return (
        f"{sentence(who_text(run, broken))} failed in {text}, in which "
        f"{'; '.join([_timed_after(wait), *doing])}."
    )


def _timed_after(wait: Waiting) -> str:
    return f"{ranks_text(wait.ranks)} {wait.verb} for {wait.seconds:.0f} s"


def nobody_missing(
    wait: Waiting, error: str, rest: Iterable[str], went_on: Sequence[int], *, are_all: bool
) -> str:
    """Say who waits, or failed, where no record shows for whom, or why."""
    did, why = f"{wait.verb} in {wait.text} for {wait.seconds:.0f} s", "for whom"
    if error:
        did, why = error, "why"
    past = [f"{ranks_text(went_on)} went on"] if went_on else []
    who = "All ranks" if are_all else sentence(ranks_text(wait.ranks))
    return f"{'; '.join([f'{who} {did}', *past, *rest])}, and no record shows {why}."


def gave_up(text: str, seconds: float, first: Rank) -> str:
    """Say in what and after how long ranks failed, and with what the first of them ended."""
    time = f"{seconds:.0f} s" if seconds >= 1 else "less than a second"
    error = printable(str(first.details.get("ended_with"))).rstrip(": ")
    shown = shorten(error, _LONGEST, placeholder=" ...")
    return f"failed in {text} after {time} (rank {first.rank} ended with {shown})"


def at_store(wait: Waiting) -> str:
    """Say who waits at a store, and for how long."""
    return f"{ranks_text(wait.ranks)} {wait.verb} {wait.text} for {wait.seconds:.0f} s"


def all_at_store(first: Waiting, others: Iterable[Waiting], *, over: bool, connects: bool) -> str:
    """Say that all ranks wait at a store, each group for what, and none answers."""
    waits = [f"{ranks_text(one.ranks)} {one.verb} {one.text}" for one in others]
    end = f"all ranks wait, and none {'serves' if connects else 'sets'} it"
    if over:
        end = f"all ranks waited, and none {'served' if connects else 'set'} it"
    return f"{sentence('; '.join([at_store(first), *waits]))}: {end}."


def not_at_store(
    wait: Waiting, others: Sequence[int], doing: Iterable[str], *, connects: bool, barrier: bool
) -> str:
    """Say who waits at a store, and who has not set a key, come to a barrier, or served it."""
    missing = f"{ranks_text(others)} {have(others)} not {'come to it' if barrier else 'set it'}"
    if connects:
        missing = _server(others)
    return f"{sentence(at_store(wait))}, and {'; '.join([missing, *doing])}."


def _server(absent: Sequence[int]) -> str:
    """Say that the server of a store is not there; torch's is rank 0 unless the program says so."""
    if 0 in absent:
        return "rank 0, which is to serve it, has not come"
    if len(absent) == 1:
        return f"rank {absent[0]}, which may have to serve it, has not come"
    return f"{ranks_text(absent)}, of which one may have to serve it, have not come"


def not_begun(wait: Waiting, others: Sequence[int], doing: Iterable[str]) -> str:
    """Say who waits in what others have not begun; without others, that nobody is missing."""
    if not others:
        return f"{sentence(wait.timed)}, and no record shows for whom."
    missing = f"which {ranks_text(others)} {have(others)} not begun"
    return f"{sentence(wait.timed)}, {'; '.join([missing, *doing])}."


def not_recorded(rank: int) -> str:
    """Say that what a rank does is unknown."""
    return f"what rank {rank} does is not recorded"


def left_none(rank: int) -> str:
    """Say that a rank left no record."""
    return f"rank {rank} left no record"


def raised_ago(rank: int, error: str, seconds: float) -> str:
    """Say what a rank raised."""
    return f"rank {rank} raised {error} {seconds:.0f} s ago"


def is_elsewhere(rank: int, made: int) -> str:
    """Say that a rank is elsewhere, after how many calls."""
    return f"rank {rank} is elsewhere" + (f" after {plural(made, 'call')}" if made else "")
