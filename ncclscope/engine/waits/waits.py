"""The waits of ranks that do not move: the pending call of each thread, and how processes ended.

The pending call of each thread is the first of its calls that is not known to have completed. The
thread waits for the members of that call's communicator which have not posted it, and for those
which have posted it behind a pending call of the same thread. A chain of waiting ends at a rank
whose thread on that communicator waits for no other; a chain without an end is a deadlock cycle.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from ncclscope.model import Blame, Call, Communicator, Fact, Finding, Rank, Run, State
from ncclscope.model.activities import RAISED, STORE_PLACE, STORE_WAIT
from ncclscope.model.log import CallLog
from ncclscope.model.signature import BARRIERS, CREATION_OPS, P2P_OPS, ROOTED_OPS
from ncclscope.model.text import status_text
from ncclscope.model.threads import first_of_threads, is_any_thread, precedes, threads_of
from ncclscope.untrusted import printable
from ncclscope.wording.ends import End, Ending, Ends
from ncclscope.wording.names import call_on, numbered

if TYPE_CHECKING:
    from ncclscope.engine.records import Records

Node = tuple[int, int]
"""A rank, and the place of a call among those in which its threads wait; -1 for none of them."""


@dataclass(frozen=True)
class PendingCall:
    """The pending call of one rank, and the ranks that it waits for.

    Attributes:
        rank: Global rank.
        call: The first call in its stream that is not known to have completed.
        comm: Its communicator.
        absent: Members that have not posted this call.
        queued: Members that have posted it, but are in an earlier call themselves, or whose
            device has not reached it.
    """

    rank: int
    call: Call
    comm: Communicator
    absent: tuple[int, ...]
    queued: tuple[int, ...]

    @property
    def awaited(self) -> tuple[int, ...]:
        """All members it waits for."""
        return tuple(sorted({*self.absent, *self.queued}))


class Waits:
    """The wait-for graph of a run.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._ranks = run.by_rank
        self._least: dict[str, int] = {}
        self._passed: dict[tuple[str, int], bool] = {}
        self._threads: dict[tuple[int, str], frozenset[int]] = {}

    @cached_property
    def heads(self) -> Mapping[int, Call]:
        """The first call of each rank that is not known to have completed."""
        return {number: calls[0] for number, calls in self.heads_by_thread.items()}

    @cached_property
    def heads_by_thread(self) -> Mapping[int, tuple[Call, ...]]:
        """The first such call of each of a rank's threads, the oldest first."""
        found = {rank.rank: first_of_threads(self._open_calls(rank)) for rank in self._run.ranks}
        # Where a process has ended, so have all its threads, whichever was to blame.
        return {
            number: calls if number in self._living else calls[:1]
            for number, calls in found.items()
            if calls
        }

    def threads_on(self, number: int, key: str) -> frozenset[int]:
        """Return the threads of a rank that post on a communicator; empty if not known."""
        if (number, key) not in self._threads:
            log = self._ranks[number].logs.get(key) if number in self._ranks else None
            known = frozenset() if log is None else threads_of(log)
            self._threads[number, key] = frozenset() if 0 in known else known
        return self._threads[number, key]

    def threads_due(self, pending: tuple[int, Call], number: int) -> frozenset[int]:
        """Return the threads of a rank that may answer another rank's call; empty if any may.

        What one thread waits for holds up all threads of a process that may have ended of it. And
        what a thread posts beside others of its rank, no certain thread of a peer answers.

        Args:
            pending: A rank and its call.
            number: The rank that is to answer.
        """
        waiting, call = pending
        is_theirs = number in self._living and len(self.threads_on(waiting, call.comm)) == 1
        return self.threads_on(number, call.comm) if is_theirs else frozenset()

    @cached_property
    def _living(self) -> frozenset[int]:
        """Ranks that recorded no end."""
        return frozenset(
            rank.rank
            for rank in self._run.ranks
            if not rank.exited and not rank.details.get("ended_with")
        )

    def holding_up(self, pending: PendingCall, number: int) -> list[Call]:
        """Return the calls in which a rank is that keep it from coming to another rank's call."""
        due = self.threads_due((pending.rank, pending.call), number)
        heads = self.heads_by_thread.get(number, ())
        return [head for head in heads if is_any_thread(head.thread, due)]

    @cached_property
    def pending_calls(self) -> Mapping[int, PendingCall]:
        """The pending call of each rank that waits for another: in the cycle, or else the oldest.

        Another thread of the rank may wait in a further one.
        """
        found: dict[int, PendingCall] = {}
        for (number, _), pending in self._pending.items():
            found.setdefault(number, pending)
        found.update((node[0], self._pending[node]) for node in self._cycle)
        return found

    @property
    def all_pending(self) -> Collection[PendingCall]:
        """The pending calls of all threads that wait for other ranks."""
        return self._pending.values()

    @cached_property
    def _pending(self) -> Mapping[Node, PendingCall]:
        """The same by rank and thread."""
        pending_calls: dict[Node, PendingCall] = {}
        # All ranks in one call, perhaps the whole job, wait for the same ranks.
        known: dict[tuple[str, int, tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        for (number, place), call in (
            ((number, place), call)
            for number, calls in self.heads_by_thread.items()
            for place, call in enumerate(calls)
        ):
            if self.is_outside(number):
                continue  # blocked by its own earlier work, not by other ranks
            comm = self._run.communicators[call.comm]
            concerned = members_of(comm, call)
            where = (comm.key, call.seq, () if concerned is comm.ranks else concerned)
            if where not in known:
                known[where] = self._behind(concerned, call)
            absent, queued = (
                tuple(member for member in group if member != number) if number in group else group
                for group in known[where]
            )
            if absent or queued:
                pending_calls[number, place] = PendingCall(number, call, comm, absent, queued)
        return pending_calls

    def _behind(
        self, concerned: tuple[int, ...], call: Call
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ranks that have not posted a call, and those that are in an earlier one."""
        absent, queued = [], []
        for member in concerned:
            log = self._ranks[member].logs.get(call.comm) if member in self._ranks else None
            if log is None or log.calls < call.seq:
                absent.append(member)
            elif self._is_before(member, call) or (
                self.is_outside(member) and self.heads_by_thread[member][0].seq == call.seq
            ):
                queued.append(member)
        return tuple(absent), tuple(queued)

    @cached_property
    def ends(self) -> dict[int, tuple[int, ...]]:
        """Ranks that others wait for, in a thread that waits for none, with those that wait."""
        ends: dict[int, set[int]] = {}
        for (number, _), others in self._links.items():
            for member, place in others:
                if place < 0:
                    ends.setdefault(member, set()).add(number)
        return {member: tuple(sorted(waiting)) for member, waiting in sorted(ends.items())}

    @cached_property
    def _links(self) -> Mapping[Node, Sequence[Node]]:
        """For which threads each one waits; a rank has the place -1 where none of them waits."""
        return self._linked({node: one.awaited for node, one in self._pending.items()})

    def _linked(self, awaited: Mapping[Node, tuple[int, ...]]) -> dict[Node, Sequence[Node]]:
        waiting: dict[int, list[tuple[Node, int]]] = {}
        for node, pending in self._pending.items():
            waiting.setdefault(node[0], []).append((node, pending.call.thread))
        known: dict[tuple[str, tuple[int, ...], bool], Sequence[Node]] = {}
        links = {}
        for node, members in awaited.items():
            call = self._pending[node].call
            where = call.comm, members, len(self.threads_on(node[0], call.comm)) == 1
            if where not in known:
                known[where] = [
                    one
                    for member in members
                    for one in [
                        each
                        for each, thread in waiting.get(member, ())
                        if is_any_thread(thread, self.threads_due((node[0], call), member))
                    ]
                    or [(member, -1)]
                ]
            links[node] = known[where]
        return links

    @property
    def cycle(self) -> tuple[int, ...]:
        """One shortest deadlock cycle of ranks; empty when each chain of waiting has an end.

        Ranks that wait for each other, in calls which the next one has not posted, also deadlock
        where they wait for ranks without a record, too.
        """
        return tuple(number for number, _ in self._cycle)

    @cached_property
    def _cycle(self) -> tuple[Node, ...]:
        ends = [(number, -1) for number in self.ends]
        if (cycle := _cycle(self._links, ends)) or self.ends.keys() <= self._ranks.keys():
            return cycle
        absent = self._linked({node: one.absent for node, one in self._pending.items()})
        return _cycle(absent, [end for end in ends if end[0] in self._ranks])

    @property
    def cycle_creates(self) -> bool:
        """Whether a rank of the cycle is in the creation of a group.

        Each creation is new, so that a new call does not identify a diverging rank.
        """
        return any(self.pending_calls[number].call.op in CREATION_OPS for number in self.cycle)

    @cached_property
    def still(self) -> bool:
        """Whether the pending calls look like a hang.

        Input without a clock does not show how long ranks have waited, and a snapshot of a running
        job also has ranks that are behind. But in a running job a rank has completed a call that
        others have not posted, or the waiting ranks have posted different numbers of calls, or
        most ranks are behind a few. Where all waiting ranks stopped at the same number and wait
        for a few, it is taken for a hang.
        """
        return bool(self.cycle) or (len(self.ends) <= len(self.pending_calls) and self.is_stuck)

    @cached_property
    def is_stuck(self) -> bool:
        """The same for any number of waiting ranks, where no other rank is known to move."""
        if self.cycle:
            return True
        if not any(pending.absent for pending in self.pending_calls.values()):
            return False  # only the notice of completion is late: all have posted
        reached: dict[str, int] = {}
        for number, pending in self.pending_calls.items():
            calls = self._ranks[number].logs[pending.comm.key].calls
            if reached.setdefault(pending.comm.key, calls) != calls:
                return False
        return not self._overtaken()

    def where_most_wait(self, waiting: Sequence[int], member: int | None = None) -> PendingCall:
        """Return the pending call, of those of some ranks, that most of these ranks are in.

        Args:
            waiting: The ranks.
            member: A rank that they wait for, in any of their threads.
        """
        pending_calls = [self.pending_calls[number] for number in waiting]
        if member is not None:
            end = (member, -1)
            for_it = [
                pending
                for node, pending in self._pending.items()
                if node[0] in waiting and end in self._links[node]
            ]
            pending_calls = for_it or pending_calls
        counts = Counter((pending.comm.key, pending.call.seq) for pending in pending_calls)
        return max(
            pending_calls,
            key=lambda pending: (counts[pending.comm.key, pending.call.seq], -pending.rank),
        )

    def overtaken(self, number: int) -> bool:
        """Return whether another member has completed the pending call of a rank.

        The rank's own part is then done, but the rank does not notice: its process, its device or
        its watchdog has stopped. Where the input does not report the completion of each call, and
        where devices count calls, most members must have completed it: a single member that is
        ahead, such as the root of a broadcast, identifies no diverging rank.
        """
        head = self.heads.get(number)
        if head is None:
            return False
        if not _reports_completion(self._ranks[number], head.comm):
            return self._completed_by_most(head)
        past = 0
        for rank in self._run.members(head.comm):
            log = rank.logs[head.comm]
            if rank.rank == number or log.calls < head.seq:
                continue
            if not _reports_completion(rank, head.comm):
                continue
            finished = _finished(rank, head.comm)
            if finished is not None:
                past += finished >= head.seq
                if 2 * past > len(log.communicator.ranks):
                    return True
                continue
            pending, known = first_pending(log)
            if pending is not None and not known:
                pending = log.call(log.first)
            if pending is None or pending.seq > head.seq:
                return True
        return False

    def _completed_by_most(self, call: Call) -> bool:
        comm = self._run.communicators[call.comm]
        logs = [rank.logs[call.comm] for rank in self._run.members(call.comm)]
        states = [log.call(call.seq).state for log in logs if log.first <= call.seq <= log.calls]
        return 2 * states.count(State.COMPLETED) > len(comm.ranks)

    def left_behind(self, comm: Communicator) -> tuple[Call, tuple[int, ...]] | None:
        """Return a call that some members are in and others have finished.

        Only where the devices of all members count calls, or where all wait in calls whose
        completion is reported, and no member is in another communicator's call.

        Returns:
            The call, and the ranks that are in it; None where there is no such call.
        """
        heads: dict[int, Call | None] = {}
        finished = []
        for member in comm.ranks:
            rank = self._ranks.get(member)
            known = None if rank is None else _finished(rank, comm.key)
            head = heads[member] = self.heads.get(member)
            if head is not None and head.comm != comm.key:
                return None
            if known is None and head is not None:
                known = head.seq - 1
            if known is None:
                return None
            finished.append(known)
        lowest = min(finished, default=0) + 1
        inside = tuple(m for m, head in heads.items() if head is not None and head.seq == lowest)
        call = heads[inside[0]] if inside and len(inside) < len(comm.ranks) else None
        if call is None or any(self._ranks[m].logs[comm.key].calls < lowest for m in comm.ranks):
            return None
        return call, inside

    def is_outside(self, number: int) -> bool:
        """Return whether a rank's device has not reached the rank's pending call.

        Only where calls that the device enters are counted. Earlier work blocks its stream.
        """
        head = self.heads.get(number)
        pending = None if head is None else self._ranks[number].device.get(head.comm)
        if head is None or pending is None:
            return False
        return pending.at == head.seq and pending.is_inside is False

    def _overtaken(self) -> bool:
        """Return whether a rank has completed a call that another member had not posted."""
        posted: dict[str, int] = {}
        for rank in self._run.ranks:
            for key, log in rank.logs.items():
                posted[key] = min(posted.get(key, log.calls), log.calls)
        for rank in self._run.ranks:
            for key, log in rank.logs.items():
                if log.calls == posted[key]:
                    continue
                pending, known = first_pending(log)
                done = log.calls if pending is None else pending.seq - 1
                beyond = log.span(max(posted[key] + 1, log.first), done + 1) if known else ()
                # A broadcast root, or a member of a reduce, may finish before its peers join.
                if any(call.op not in ROOTED_OPS for call in beyond):
                    return True
        return False

    def _open_calls(self, rank: Rank) -> list[Call]:
        """Return the first call of each communicator that is not known to have completed."""
        heads = []
        for key, log in rank.logs.items():
            finished = _finished(rank, key)
            if finished is not None:
                if max(finished + 1, log.first) <= log.calls:
                    heads.append(log.call(max(finished + 1, log.first)))
                continue
            pending, known = first_pending(log)
            if pending is not None and rank.details.get("tells"):
                if not known:
                    pending = log.call(log.first)  # all completed calls were overwritten
            elif pending is not None and not (
                known and reports_completion(log, pending) and not self._went_past(rank, pending)
            ):
                # The backend reports no completion: calls that all have posted count as completed.
                seq = max(self._posted_by_all(key) + 1, pending.seq if known else log.first)
                pending = log.call(seq) if seq <= log.calls else held_in(rank, log)
            elif pending is not None and pending.replay is not None:
                pending = self._unjoined(key, log, pending.seq)
            elif pending is not None:
                pending = self._past_all(key, log, pending)
            if pending is not None and not was_left(rank, pending):
                heads.append(pending)
        return heads

    def _went_past(self, rank: Rank, call: Call) -> bool:
        """Return whether a rank waited for a later call on NCCL, which completed.

        It did not wait for the one in question, or it would not have come to that.
        """
        if "nccl" not in self._run.communicators[call.comm].backend:
            return False
        for key, log in rank.logs.items():
            pending, known = first_pending(log)
            done = log.calls if pending is None else pending.seq - 1
            known = known and key != call.comm and done >= log.first
            if known and log.call(done).position > call.position:
                return True
        return False

    def _unjoined(self, key: str, log: CallLog, first: int) -> Call | None:
        """Return the first pending call, where the completion of eager calls is reported.

        The completion of replayed calls is not: those that all have posted count as completed.
        """
        seq = max(self._posted_by_all(key) + 1, first)
        for call in log.span(first, min(seq, log.calls + 1)):
            if call.replay is None:
                return call
        return log.call(seq) if seq <= log.calls else None

    def _past_all(self, key: str, log: CallLog, pending: Call) -> Call | None:
        """Return the first call that not all have posted, where ranks went on to such a call.

        They did not wait in the pending call that they went on from: its completion becomes known
        when the program asks for it. Nor did a member whose last call it is. Only on gloo, and
        where nothing tells which call runs: a GPU carries calls out in order, so that later ones
        are behind the one that is pending.
        """
        least = self._posted_by_all(key)
        if (
            "gloo" not in log.communicator.backend
            or pending.seq > least
            or not self._went_on(key, pending.seq, least)
        ):
            return pending
        return log.call(least + 1) if log.calls > least else None

    def _went_on(self, key: str, seq: int, least: int) -> bool:
        """Return whether members posted more than others, while the same call was pending."""
        if (key, seq) not in self._passed:
            logs = [rank.logs[key] for rank in self._run.members(key)]
            calls = [log.call(seq) for log in logs if log.first <= seq <= log.calls]
            alike = len({(call.op, call.dtype, call.redop, call.numel) for call in calls}) == 1
            alike = alike and all(call.state is not State.STARTED for call in calls)
            ahead = [log for log in logs if log.calls > least and log.first <= seq]
            self._passed[key, seq] = alike and any(
                log.call(seq).state is not State.COMPLETED
                and log.call(least + 1).state is not State.COMPLETED
                for log in ahead
            )
        return self._passed[key, seq]

    def _posted_by_all(self, key: str) -> int:
        """Return how many calls all members of a communicator have posted."""
        least = self._least.get(key)
        if least is None:
            comm = self._run.communicators[key]
            # What a rank posts that is not recorded may be what its peers posted.
            untraced = {one.rank for one in self._run.untraced}
            recorded = [member for member in comm.ranks if member not in untraced]
            members = recorded or self._ranks.keys()
            logs = [self._ranks[member].logs for member in members if member in self._ranks]
            known = [own[key].calls for own in logs if key in own]
            silent = len(known) < len(recorded) or comm.is_partial
            least = self._least[key] = 0 if silent else min(known, default=0)
        return least

    def _is_before(self, member: int, call: Call) -> bool:
        """Return whether a member is in a call that it had to complete before another one."""
        heads = self.heads_by_thread.get(member, ())
        if not heads or any((head.comm, head.seq) == (call.comm, call.seq) for head in heads):
            return False
        log = self._ranks[member].logs[call.comm]
        if call.seq < log.first:
            return False
        posted = log.call(call.seq)
        return posted.state is not State.COMPLETED and any(precedes(head, posted) for head in heads)


def _cycle(awaited: Mapping[Node, Sequence[Node]], ends: Iterable[Node]) -> tuple[Node, ...]:
    """Return one shortest cycle of threads from which no chain of waiting leads to an end."""
    reached_end = set(ends)
    changed = True
    while changed:
        changed = False
        for number, others in awaited.items():
            if number not in reached_end and any(r in reached_end for r in others):
                reached_end.add(number)
                changed = True
    paths = (_shortest_way_back(awaited, number) for number in awaited if number not in reached_end)
    return min(filter(None, paths), key=len, default=())


def _shortest_way_back(awaited: Mapping[Node, Sequence[Node]], start: Node) -> tuple[Node, ...]:
    frontier: deque[tuple[Node, ...]] = deque([(start,)])
    # A rank that waits for nobody leads nowhere, and a large job has many of them.
    unseen = awaited.keys() - {start}
    while frontier:
        path = frontier.popleft()
        others = awaited[path[-1]]
        if start in others:
            return path
        for member in [one for one in others if one in unseen]:
            unseen.discard(member)
            frontier.append((*path, member))
    return ()


def members_of(comm: Communicator, call: Call) -> tuple[int, ...]:
    """Return the ranks without which a call cannot complete.

    All ranks must create a group, except that a group created through the store needs only its
    own members.
    """
    if call.op in CREATION_OPS and comm.backend == "store" and call.sizes:
        return tuple(rank for rank in comm.ranks if rank in call.sizes)
    return comm.ranks


def _finished(rank: Rank, key: str) -> int | None:
    """Return the last call that finished on a rank's device; None where that is not known."""
    pending = rank.device.get(key)
    return None if pending is None else pending.finished


def _reports_completion(rank: Rank, key: str) -> bool:
    """Return whether a rank's input reports the completion of each call on a communicator."""
    return bool(rank.details.get("tells")) or _finished(rank, key) is not None


PENDING = 512
"""Calls at the end of a log whose states are read."""
NEAR = 8
"""Calls that are read first: in most logs they suffice, and each costs time."""


def first_pending(log: CallLog) -> tuple[Call | None, bool]:
    """Return the first call after the last completed one, and whether any completion is known."""
    lowest = max(log.first, log.calls - PENDING)
    stop, size = log.calls + 1, NEAR
    pending: Call | None = None
    while stop > lowest:
        start = max(lowest, stop - size)
        for call in reversed(log.span(start, stop)):
            if call.state is State.COMPLETED:
                return pending, True
            pending = call
        if size == NEAR and not any(
            log.call(seq).state is State.COMPLETED for seq in {lowest, (lowest + start) // 2}
        ):
            break  # then none of the many earlier calls is completed either
        stop, size = start, 4 * size
    return pending, False


def reports_completion(log: CallLog, call: Call) -> bool:
    """Return whether the log would show the completion of a call.

    On NCCL it shows barriers, which block their caller, and calls that the program waited on; the
    completion of other calls is unknown. On gloo it shows all calls but those that C++ waits for,
    as in the forward of a tensor-parallel layer: the same line then has pending calls before
    completed ones.

    Args:
        log: The log that holds the call.
        call: The first call after the last completed one.
    """
    if call.op in BARRIERS:
        return True
    alike = [
        one
        for one in log.span(max(log.first, call.seq - NEAR), call.seq)
        if (one.op, one.site) == (call.op, call.site) and one.replay is None and not one.captured
    ]
    known = bool(alike) or log.communicator.backend == "gloo"
    return known and all(one.state is State.COMPLETED for one in alike)


def held_in(rank: Rank, log: CallLog) -> Call | None:
    """Return the newest call of a log, where it blocks a thread of its rank: as barriers do."""
    call = log.call(log.calls) if log.first <= log.calls else None
    if call is None or call.state is State.COMPLETED or call.captured or call.replay is not None:
        return None
    if rank.went_on(call) or any(
        precedes(call, transfer) for transfer in rank.last_transfers().values()
    ):
        return None
    is_nccl = "nccl" in log.communicator.backend
    blocks = call.op in BARRIERS or (is_nccl and reports_completion(log, call))
    return call if blocks else None


def was_left(rank: Rank, call: Call) -> bool:
    """Return whether a rank has posted more calls after a group creation, which blocks its caller.

    A creation that raised an exception, which the program caught, ends like this.
    """
    if call.op not in CREATION_OPS:
        return False
    last = rank.last_call(transfers=True)
    return last is not None and last.position > call.position


def last_states(log: CallLog) -> list[Call]:
    """Return the calls that are read from a log to find its rank's pending call."""
    recorder = _ReadRecorder(log)
    pending, known = first_pending(recorder)
    if pending is not None and known:
        reports_completion(recorder, pending)
    if "nccl" in log.communicator.backend and log.first <= log.calls:
        reports_completion(recorder, recorder.call(log.calls))  # as held_in() asks
    return recorder.seen


class _ReadRecorder:
    """A log that records which of its calls are read."""

    def __init__(self, log: CallLog) -> None:
        self._log = log
        self.seen: list[Call] = []

    def span(self, start: int, stop: int) -> Sequence[Call]:
        found = self._log.span(start, stop)
        self.seen += found
        return found

    def call(self, seq: int) -> Call:
        self.seen.append(self._log.call(seq))
        return self.seen[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def is_in_transfer(rank: Rank) -> bool:
    """Return whether a rank's newest call is a send or receive that is not known to be complete."""
    last = rank.last_call(transfers=True)
    return last is not None and last.op in P2P_OPS and last.state is not State.COMPLETED


_INTERRUPTS = ("KeyboardInterrupt", "SignalException")
"""The exceptions that end a process when a signal is sent to the whole job."""
_OF_OTHERS = ("TimeoutError", "queue.Empty", "subprocess.TimeoutExpired")
"""Exceptions of sockets, queues and stores of the program."""
_LONGEST = 240
"""Characters of an exception's text that are shown."""
_AT_ONCE_NS = 2_000_000_000
_LOST = re.compile(
    r"closed by (?:remote )?peer|reset by peer|broken pipe|ncclRemoteError|remote process exited"
    r"|(?:got|sent) 0 bytes|connection was likely closed",
    re.IGNORECASE,
)
"""How gloo, NCCL and torch's store report that the process on the other side is gone."""
_OF_STORE = "DistNetworkError"
_TIMED_OUT = re.compile(r"timed out|timeout", re.IGNORECASE)
"""How they report that it did not come."""


def failed(rank: Rank) -> bool:
    """Return whether a process ended with an exception that no peer can have caused."""
    error = str(rank.details.get("ended_with") or "")
    caused = error.startswith(_INTERRUPTS) or ended_by_peers(rank) or _TIMED_OUT.search(error)
    return bool(error) and not caused


def timed_out(rank: Rank) -> bool:
    """Return whether a process ended because a call of torch's had timed out."""
    error = str(rank.details.get("ended_with") or "")
    return bool(_TIMED_OUT.search(error)) and not error.startswith(_OF_OTHERS)


def was_interrupted(rank: Rank) -> bool:
    """Return whether a process ended because a signal was sent to the job."""
    return str(rank.details.get("ended_with") or "").startswith(_INTERRUPTS)


def ended_by_peers(rank: Rank) -> bool:
    """Return whether a process ended because a connection to another one did."""
    return bool(_LOST.search(str(rank.details.get("ended_with") or "")))


def lost_store(rank: Rank) -> bool:
    """Return whether a process ended because the one that served its store did."""
    return ended_by_peers(rank) and str(rank.details["ended_with"]).startswith(_OF_STORE)


def store_host(records: Records, waits: Waits, rank: Rank) -> Rank | None:
    """Return the rank that took the store of another one with it as it ended.

    Args:
        records: The records.
        waits: Which rank waits for which. A rank that waits was ended with the whole job.
        rank: A process that ended because it lost its store.
    """
    place = rank.activities.get(STORE_PLACE)
    if place is None or not lost_store(rank):
        return None
    served, unknown = [], []
    for one in records.run.ranks:
        theirs, last = one.activities.get(STORE_PLACE), one.activities.get(STORE_WAIT)
        if one.alive is not False or one.rank in {rank.rank, *waits.pending_calls}:
            continue
        if theirs is None or theirs.detail != place.detail or ended_by_peers(one):
            continue
        if last is not None and last.detail == f"serve {place.detail}":
            served.append(one)
        elif not one.exited and not (last and (last.detail or "").startswith("connect ")):
            unknown.append(one)  # its note on the store is overwritten by a later wait
    found = served or unknown
    return found[0] if len(found) == 1 else None


def status_of(rank: Rank) -> str:
    """Return how the launcher saw a process end that recorded no end; empty where none saw it."""
    status = rank.details.get("exit_status")
    return "" if not status or rank.exited else status_text(status)


def without_note(rank: Rank) -> Ending:
    """Return how a process ended that recorded no end."""
    status = status_of(rank)
    return Ending(End.WITH, status) if status else Ending(End.NOT_NOTED)


def ended_by(call: Call, rank: Rank, how: Callable[[Rank], bool] = failed) -> bool:
    """Return whether a process ended with an exception that this call raised on its own line.

    The call is recorded before it is made, so that a rank that failed in it appears to be in it.

    Args:
        call: The last call of the process.
        rank: The process.
        how: What is to be true of its exception.
    """
    raised = rank.activities.get(RAISED)
    if call.state is State.COMPLETED or raised is None or not how(rank):
        return False
    place = (raised.detail or "").partition(" at ")[2]
    return bool(place) and place in (call.site, call.user_site, call.full_site)


def timed_out_in_transfer(rank: Rank) -> bool:
    """Return whether the timeout of a send or receive ended a process."""
    last = rank.last_call(transfers=True) if timed_out(rank) else None
    return last is not None and last.op in P2P_OPS and ended_by(last, rank, timed_out)


def given_up_after(rank: Rank, call: Call) -> float | None:
    """Return for how many seconds a rank was in a barrier before it went on without it.

    A barrier blocks its caller: if it is not completed and another call follows, it timed out.
    """
    last = rank.last_call(transfers=True)
    if call.op not in BARRIERS or call.state is State.COMPLETED or call.captured or last is None:
        return None
    log = rank.logs[call.comm]
    after = log.call(call.seq + 1) if log.first <= call.seq < log.calls else last
    if not precedes(call, after) or None in (after.time_ns, call.time_ns):
        return None
    return ((after.time_ns or 0) - (call.time_ns or 0)) / 1e9


def is_last(rank: Rank | None, call: Call) -> bool:
    """Return whether a rank is, as far as is known, in a call of its peer or in a later one."""
    last = None if rank is None else rank.last_call()
    return (
        last is not None
        and last.comm == call.comm
        and last.seq >= call.seq
        and last.state is not State.COMPLETED
    )


def interrupted_after(records: Records, waits: Waits, rank: Rank) -> float | None:
    """Return how long peers had waited when a signal to the job ended a rank.

    Ctrl-C reaches all ranks. It ends a rank that runs Python code; ranks that wait in a collective
    live on until they are killed. They do not wait because that rank ended. A launcher that is
    killed takes the store with it, and ends the ranks that ask it for keys.

    Args:
        records: The records.
        waits: Which rank waits for which.
        rank: The rank that ended.

    Returns:
        Seconds from the last call of the rank to its end; None where no signal ended it, or
        no rank had waited for it by then.
    """
    stopped = lost_store(rank) and store_host(records, waits, rank) is None
    if not (stopped or was_interrupted(rank)):
        return None
    quiet = records.quiet_seconds(rank)
    return quiet if quiet is not None and quiet >= records.stall_seconds else None


def lost_by_peers(
    records: Records,
    waits: Waits,
    rank: Rank,
    *,
    closers: Collection[int],
    explained: Collection[int],
) -> bool:
    """Return whether peers failed at once in a call that a process had not posted when it died.

    The kernel closes the connections of a process that is killed, so that its peers fail within
    milliseconds. Heartbeats are too far apart to show that it ended before them.

    Args:
        records: The records.
        waits: Which rank waits for which.
        rank: A process that recorded no end.
        closers: Ranks without a recorded end, each of which accounts for the lost connections.
        explained: Ranks whose lost connections recorded failures account for.
    """
    if rank.exited or rank.alive or rank.details.get("beating"):
        return False
    if {*closers} == {rank.rank}:
        return True
    errors, absent = [], {rank.rank}
    for number, pending in waits.pending_calls.items():
        peer = records.run.by_rank[number]
        raised = peer.activities.get(RAISED)
        # A peer that was killed while it handled the error has noted where it was raised.
        error = peer.details.get("ended_with") or (raised and raised.detail)
        at_once = raised and 0 <= raised.since_ns - (pending.call.time_ns or 0) < _AT_ONCE_NS
        if rank.rank not in pending.absent or not (error and at_once):
            continue
        if _LOST.search(str(error)) and number not in explained:
            return True
        errors.append(str(error))
        absent.update(pending.absent)
    # A call fails at once for other reasons, too: of one rank, and its peers are killed for it.
    return len(errors) > len(absent)


def noted_error(rank: Rank) -> str:
    """Return the newest exception that a process noted, and its line; empty without one."""
    noted = rank.activities.get(RAISED)
    return printable((noted and noted.detail) or "")


def failed_inside(case: Records, analyzer: str) -> Iterator[Finding]:
    """Yield ranks that failed in a call that all members have posted.

    Args:
        case: The case.
        analyzer: Name of the analyzer that reports them.
    """
    ranks = case.run.by_rank
    inside: dict[tuple[str, int], list[int]] = {}
    for rank in filter(failed, case.run.ranks):
        if (call := rank.last_call()) is not None and ended_by(call, rank):
            inside.setdefault((call.comm, call.seq), []).append(rank.rank)
    for (key, seq), failing in inside.items():
        comm, theirs = case.run.communicators[key], ranks[failing[0]].last_call()
        others = [number for number in comm.ranks if number not in failing]
        if theirs is None or len(others) < len(failing):
            continue
        if not all(is_last(ranks.get(number), theirs) for number in others):
            continue
        past = [n for n in others if (last := ranks[n].last_call()) and last.seq > seq]
        if comm.backend == "gloo" and len(past) == len(others):
            continue  # no rank waits in that call: they wait in the one that these ranks lack
        ended = [ranks[number] for number in failing]
        how = "; ".join(dict.fromkeys(str(rank.details["ended_with"]) for rank in ended))
        yield Finding(
            kind="dead_rank",
            summary=Ends.FAILED_IN.of(
                failing=failing,
                where=call_on(comm, theirs),
                how=printable(shorten(how, _LONGEST, placeholder=" ...")),
                others=others,
                later=Ends.OR_LATER if past else "",
            ),
            comm=comm,
            seq=seq,
            blame=Blame.on(failing),
            odd=theirs,
            peers=ranks[others[0]].last_call(),
            role="cause",
            analyzer=analyzer,
            evidence=(
                Fact.of_call(Ends.ALL_POSTED.of(comm.ranks, call_on(comm, theirs)), comm.ranks),
                *(
                    Fact.of_rank(one.rank, Ends.RAISED.of(one.rank, noted_error(one)))
                    for one in ended
                ),
            ),
            inferred=(str(Ends.FROM_LINE),),
        )


def have_gone_on(case: Records, rank: Rank, finding: Finding, waiting: Sequence[int]) -> bool:
    """Return whether all exited in order, and those that were in the call caught its failure."""
    peers = [case.run.by_rank[own] for own in waiting]
    blocks = finding.peers is not None and finding.peers.op in BARRIERS
    caught = blocks or all(RAISED in peer.activities for peer in peers)
    return caught and all(one.ended_well for one in (rank, *peers))


def given_up(finding: Finding, waiting: Sequence[int]) -> Finding:
    """Describe a call that nobody waits in: its ranks gave it up, went on, and exited in order."""
    (number,) = finding.diverging_ranks
    where = numbered(finding.comm, finding.seq, finding.peers)
    summary = Ends.GIVEN_UP.of(rank=number, where=where, waiting=waiting)
    return replace(finding, summary=summary, role="latent")
