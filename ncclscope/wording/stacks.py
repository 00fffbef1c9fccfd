"""Where the stacks of ranks are, what moves, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping

from ncclscope.wording.names import ranks_text
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
    SLEEPS = "it wakes in {:.0f} s"


class Seen(Phrase):
    """What stacks and processes show, and what follows from it."""

    NO_PROCESS = "{0:^} {0:have} no live process; {1}."
    STOPPED_AT = "{0:^} {0:are} stopped by a signal (state T) at {1}; {2}."
    NOT_READ = "{:^}; the stack of {} could not be read, so it is unknown whether it joined."
    LATE = "{0:^} {0:are} in {1}, and {2}: late."
    AT_WORK_LATE = "{0:^} {0:are} at work at {1}, and {2}: late, or in an endless loop."
    PLACE = "{0.ranks} {0.ranks:are} {0.where}"
    WAITING = "{0.ranks} {0.ranks:wait} {0.where}"
    STACKS = "stacks: {0.ranks} {0.ranks:are} {0.where}, {1}"
    THE_SAME = "the same in {} samples over {:g} s"
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
    MAY_SEND = "{:^} may wait to send to {}."
    SMALLER_GROUP = "{:^} may wait in a smaller group, for {}."
    OF_GROUP = "They wait in the group of {}: for {}."
    SEVERAL_GROUPS = "{0:^} {0:wait} in calls of several groups."
    BESIDE_GROUPS = "{0:^} {0:wait} in different calls of groups without {1}."
    CHAINS_END = "All chains of waiting end in {}."
    DISAGREE = "The data sources name different ranks."
    AMONG = "among the candidates, {} names one"
    ALL_MOVE = "{} of {} move, and none differs from the others"
    FROM_RINGS = "the verdict is based on them"
    FOLLOWS = "{} This follows from the extra call."
    APART = "{} apart from the others"
    NO_MAJORITY = "no majority among {}"
    STILL_JOIN = "{:^} for {:g} s, while {} move: they may still join."
    NOT_WHERE = "and not where"
    MOST_NOT = "{:^}, which most ranks have not joined: {}."
    OTHER_ROUND = "rank {} is {} its peers: {}"
    ONE_PLACE = "All ranks wait in {}, and none moved for {:g} s.{}"
    NONE_MOVES = "{:^}, while {}; none of them moves."
    NO_WAIT = "No rank moved for {:g} s, and no stack shows a wait for another rank: {}."
    NO_ORDER = "In no order of these calls would another rank alone keep all others waiting."
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
    IN_ENGINE = "in its engine, pid {}"
    IN_STOPPED_ENGINE = "in its engine, pid {}, which a signal has stopped"


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
