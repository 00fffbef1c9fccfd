"""Number the calls of ranks whose plugin was armed while the job ran, from the job's first call.

Arming reaches the ranks at different calls. NCCL numbers the launches of each function on a
communicator, and the plugin keeps the number of the first one that it recorded. So the sum over all
functions is the number of calls before, and the record reads like one whose beginning has been
overwritten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ncclscope.model import Call, Communicator, Rank
from ncclscope.model.log import CallLog


class LateLog:
    """A log behind a number of calls that were made before recording began.

    Args:
        log: The recorded calls, numbered from 1.
        before: Number of calls before.

    Attributes:
        before: Number of calls before.
    """

    anchored = True
    rooted = False

    def __init__(self, log: CallLog, before: int) -> None:
        self.communicator: Communicator = log.communicator
        self._log = log
        self.before = before

    @property
    def calls(self) -> int:
        """Number of calls made, recorded or not."""
        return self._log.calls + self.before

    @property
    def first(self) -> int:
        """Number of the first call that is kept."""
        return self._log.first + self.before

    @property
    def ops(self) -> frozenset[str]:
        """Operations that the process has enqueued."""
        return frozenset(getattr(self._log, "ops", ()))

    def fingerprint(self, seq: int) -> int:
        """Return the running hash since recording began."""
        return self._log.fingerprint(seq - self.before)

    def call(self, seq: int) -> Call:
        """Return call number ``seq``."""
        return self._moved([self._log.call(seq - self.before)])[0]

    def span(self, start: int, stop: int) -> Sequence[Call]:
        """Return the calls in ``[start, stop)``, as far as they are kept."""
        return self._moved(self._log.span(start - self.before, stop - self.before))

    def signatures(self, start: int, stop: int) -> Sequence[int]:
        """Return the signatures of the calls in ``[start, stop)``."""
        return self._log.signatures(start - self.before, stop - self.before)

    def sites(self, start: int, stop: int) -> Sequence[str | None]:
        """Return the sites of the calls in ``[start, stop)``."""
        return self._log.sites(start - self.before, stop - self.before)

    def positions(self, start: int, stop: int) -> Sequence[int]:
        """Return the numbers of these calls in the whole stream of the rank."""
        return self._log.positions(start - self.before, stop - self.before)

    def threads(self, start: int, stop: int) -> Sequence[int]:
        """Return the thread that posted each of these calls; 0 where it is not known."""
        return self._log.threads(start - self.before, stop - self.before)

    def _moved(self, calls: Sequence[Call]) -> list[Call]:
        return [replace(call, seq=call.seq + self.before) for call in calls]


def number_late(ranks: Sequence[Rank]) -> list[Rank]:
    """Return ranks whose late logs are numbered from the job's first call, where NCCL counted."""
    numbers = {key: _before(ranks, key) for key in {key for rank in ranks for key in rank.before}}
    return [_numbered(rank, numbers) for rank in ranks]


def _numbered(rank: Rank, numbers: Mapping[str, Mapping[int, int]]) -> Rank:
    logs = dict(rank.logs)
    for key, log in rank.logs.items():
        count = numbers.get(key, {}).get(id(rank))
        if count is not None and not log.anchored:
            logs[key] = LateLog(log, count)
    return replace(rank, logs=logs)


def _before(ranks: Sequence[Rank], key: str) -> dict[int, int]:
    """Return the number of calls before recording began, by the rank's identity.

    Empty where NCCL did not number a function that a rank called: then nobody knows the total.
    """
    members = [rank for rank in ranks if key in rank.logs and not rank.logs[key].anchored]
    made = {id(rank): _by_op(rank.logs[key]) for rank in members}
    totals: dict[str, int] = {}
    for rank in members:
        own = rank.before.get(key, {})
        if made[id(rank)].keys() - own.keys():
            return {}
        for op, count in own.items():
            totals[op] = max(totals.get(op, 0), count + made[id(rank)][op])
    # A function that a rank has not called since was called by all before it was armed.
    return {
        id(rank): sum(rank.before.get(key, {}).get(op, totals[op]) for op in totals)
        for rank in members
    }


def _by_op(log: CallLog) -> Counter[str]:
    return Counter(call.op for call in log.span(log.first, log.calls + 1) if not call.captured)
