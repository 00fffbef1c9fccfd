"""Where the stacks of ranks are, what moves, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ncclscope.wording.names import be, have, ranks_text, sentence, verb
from ncclscope.wording.phrase import Phrase

REASONS = {
    "child": "waits for a child process",
    "data": "waits for its data loader",
    "device": "waits for the GPU",
    "file": "waits for a file or pipe",
    "lock": "waits for a lock",
    "poll": "polls",
    "sleep": "sleeps",
    "socket": "waits for a socket",
    "started": "waits for processes that it started",
}
"""What a rank waits for without a peer."""
OPS = {"p2p": "a message between stages", "compiled": "a compiled graph"}
"""Operations without a name of their own."""
WORK = {
    "autotuning": "autotuning",
    "triton": "Triton's compiler",
    "extension": "the compiler of an extension",
    "compile": "torch.compile",
    "download": "a download",
    "load": "loading weights",
}
"""What keeps a rank busy."""


class Sign(Phrase):
    """What shows that a rank moves."""

    ONE_SAMPLE = "its stack was read only once"
    STACK = "its stack changed"
    COUNTER = "a loop counter changed"
    SWITCHES = "it went to sleep and woke {:.0f} times a second"
    WAKES = "it woke {:.0f} times in {:g} s"
    CORE = "it took {:.0%} of a core"
    STARTED = "processes that it started took {:.0%} of a core"
    FILES = "it read and wrote {:.1f} MB"


class Seen(Phrase):
    """What stacks and processes show, and what follows from it."""

    ALL_STOPPED = "All ranks are stopped by a signal (state T): none can move."
    CONTINUE = "kill -CONT resumes a stopped process"
    STOPPED = "proc: {}: state T, stopped by a signal or a debugger"
    ENDED = "proc: {}: the process has ended"
    NOBODY_WAITS = "no other rank waits for it yet"
    MAY_WAIT = "They may also wait for others: {}."
    TOO_EARLY = "It is unknown whether the processes ended too early."
    BRIEFLY = "Seen for {:g} s: a rank that is merely late looks the same."
    LONGER = "--gap {:g} distinguishes late from stuck"
    SERVER = "If that rank sends on what it receives, a server without requests looks the same."
    HAVE_MET = "Of {}, those of one group would have met there: one of them waits in another group."
    MAY_SEND = "{} may wait to send to {}."
    SMALLER_GROUP = "{} may wait in a smaller group, for {}."
    CHAINS_END = "All chains of waiting end in {}."
    DISAGREE = "The data sources name different ranks."
    AMONG = "among the candidates, {} names one"
    ALL_MOVE = "{} of {} move, and none differs from the others"
    FROM_RINGS = "the verdict is based on them"
    FOLLOWS = "{} This follows from the extra call."
    APART = "{} apart from the others"
    NO_MAJORITY = "no majority among {}"
    STILL_JOIN = "{} for {:g} s, while {} move: they may still join."
    NOT_WHERE = "and not where"
    MOST_NOT = "{}, which most ranks have not joined: {}."
    AHEAD = "rank {} is ahead of its peers: {}"
    BEHIND = "rank {} is behind its peers: {}"
    ONE_PLACE = "All ranks wait in {}, and none moved for {:g} s.{}"
    NONE_MOVES = "{}, while {}; none of them moves."
    NO_WAIT = "No rank moved for {:g} s, and no stack shows a wait for another rank: {}."
    UNDECIDED = "{}: {}, and stacks alone do not show which side diverged."
    MORE_PLACES = "; and {} more places"
    DIFFER = "the stacks differ {}; it is unknown which line runs first"
    AT_LINES = "in {} of {}, at lines {} and {}"
    COUNTED = "{} in {}:{} {} is {}, and {} on its peers"
    IN_LINE = "; it is in line {} of {}, its peers in line {}"
    NEARLY = "less than one iteration {}"
    STARTED_WORK = "at work in processes that it started, at {}"
    AT_WORK = "at work at {}"
    NO_FRAME = "no Python frame"
    COLLECTIVE_OF = "a collective of {}"
    BESIDE = "; its thread {} is at {}"


class Group(Protocol):
    """Ranks with the same stack."""

    @property
    def ranks(self) -> tuple[int, ...]: ...
    @property
    def where(self) -> str: ...
    @property
    def condition(self) -> str: ...
    @property
    def samples(self) -> int: ...


def place_text(group: Group) -> str:
    """Return ``ranks 0 1 3 are in all_reduce at hang.py:3 step``."""
    return f"{ranks_text(group.ranks)} {be(group.ranks)} {group.where}"


def waiting_text(classes: Sequence[Group]) -> str:
    """Return ``ranks 0 1 3 wait in all_reduce at hang.py:3 step``."""
    return " and ".join(
        f"{ranks_text(group.ranks)} {verb(group.ranks, 'wait')} {group.where}"
        for group in classes[:3]
    )


def seen(classes: Sequence[Group], gap: float) -> tuple[str, ...]:
    """Return one line of evidence for each class; ``gap`` is in seconds."""
    lines = []
    for group in classes:
        how = group.condition
        if how == "still":
            how = f"the same in {group.samples} samples over {gap:g} s"
        lines.append(f"stacks: {place_text(group)}, {how}")
    return tuple(lines)


def starved_text(shares: Mapping[int, float]) -> str:
    """Return that ranks have no processor for a share of the time; empty where none has."""
    if not shares:
        return ""
    least, most = f"{min(1.0, *shares.values()):.0%}", f"{min(1.0, max(shares.values())):.0%}"
    share = most if least == most else f"{least} to {most}"
    was = "was" if len(shares) == 1 else "were"
    return (
        f"{ranks_text(shares)} {was} ready to run without a processor for {share} of the time: "
        f"the host is overloaded, and they may be slow, not stuck"
    )


def no_process(ranks: Sequence[int], waiting: Sequence[Group]) -> str:
    """Say that ranks have no process, and who waits."""
    return f"{sentence(ranks_text(ranks))} {have(ranks)} no live process; {waiting_text(waiting)}."


def stopped(ranks: Sequence[int], at: str, waiting: Sequence[Group]) -> str:
    """Say that ranks are stopped, and who waits for them."""
    rest = waiting_text(waiting) if waiting else Seen.NOBODY_WAITS
    return (
        f"{sentence(ranks_text(ranks))} {be(ranks)} stopped by a signal (state T) at {at}; {rest}."
    )


def unread(ranks: Sequence[int], waiting: Sequence[Group]) -> str:
    """Say that others wait, and the stacks of some ranks are not known."""
    return (
        f"{sentence(waiting_text(waiting))}; the stack of {ranks_text(ranks)} could not be read, "
        f"so it is unknown whether it joined."
    )


def at_work(moving: Sequence[int], at: str, waiting: Sequence[Group], *, known: bool) -> str:
    """Say that ranks are at work while others wait; `known`: in work that has a name."""
    what, rest = ("in", "late") if known else ("at work at", "late, or in an endless loop")
    return (
        f"{sentence(ranks_text(moving))} {be(moving)} {what} {at}, and {waiting_text(waiting)}: "
        f"{rest}."
    )
