"""Sentences about ranks that wait for others before their calls, or between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ncclscope.wording.names import ranks_text, verb
from ncclscope.wording.phrase import Phrase


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


class Startup(Phrase):
    """Who waits before the calls, and who has not come; ``rest`` is what others do."""

    DISAGREE = "{text:^}: {wait} for {wait.seconds:.0f} s{rest}."
    DOUBLED = "{doubles}{none}: {wait} for {wait.seconds:.0f} s."
    PROCESSES = "{} processes have rank {} (pids {})"
    NONE_HAS = ", and none has {}"
    WAITS_IN = "{} waits in call {} on {}"
    RECORDED = "{}, as each process recorded it"
    NOT_COME = (
        "{who:^} {absent:have} not come to {wait.text}, in which {wait.ranks} {wait.verb} for "
        "{wait.seconds:.0f} s{rest}."
    )
    MAY_NOT_COME = (
        "{who:^} may not have come to {wait.text}, in which {wait.ranks} {wait.verb} for "
        "{wait.seconds:.0f} s{rest}."
    )
    FAILED_IN = (
        "{who:^} failed in {text}, in which {wait.ranks} {wait.verb} for {wait.seconds:.0f} "
        "s{rest}."
    )
    NO_REASON = "{who:^} {how}{rest}, and no record shows why."
    NOBODY = (
        "{who:^} {wait.verb} in {wait.text} for {wait.seconds:.0f} s{rest}, and no record shows "
        "for whom."
    )
    ALL = "all ranks"
    WENT_ON = "{} went on"
    GAVE_UP = "failed in {} after {} (rank {} ended with {})"
    AT_ONCE = "less than a second"
    ALL_AT_STORE = "{wait.ranks:^} {wait.verb} {wait.text} for {wait.seconds:.0f} s{rest}: {end}."
    OTHERS_AT_STORE = "{0.ranks} {0.verb} {0.text}"
    NONE_SETS = "all ranks wait, and none sets it"
    NONE_SERVES = "all ranks wait, and none serves it"
    NONE_SET = "all ranks waited, and none set it"
    NONE_SERVED = "all ranks waited, and none served it"
    AT_STORE = (
        "{wait.ranks:^} {wait.verb} {wait.text} for {wait.seconds:.0f} s, and {missing}{rest}."
    )
    NOT_SET = "{0} {0:have} not set it"
    NOT_AT_BARRIER = "{0} {0:have} not come to it"
    NO_SERVER = "rank 0, which is to serve it, has not come"
    NO_LIKELY_SERVER = "rank {}, which may have to serve it, has not come"
    NO_SERVERS = "{}, of which one may have to serve it, have not come"
    NOT_BEGUN = (
        "{wait.ranks:^} {wait.verb} in {wait.text} for {wait.seconds:.0f} s, which {others} "
        "{others:have} not begun{rest}."
    )
    NOT_STARTED = "a process without a ring was not started, or has not got that far"
    NOT_RECORDED = "what rank {} does is not recorded"
    LEFT_NONE = "rank {} left no record"
    RAISED = "rank {} raised {} {:.0f} s ago"
    ELSEWHERE = "rank {} is elsewhere"
    ELSEWHERE_AFTER = "rank {} is elsewhere after {}"


def missing_server(absent: Sequence[int]) -> str:
    """Say that the server of a store is not there; torch's is rank 0 unless the program says so."""
    if 0 in absent:
        return Startup.NO_SERVER.of()
    if len(absent) == 1:
        return Startup.NO_LIKELY_SERVER.of(absent[0])
    return Startup.NO_SERVERS.of(absent)
