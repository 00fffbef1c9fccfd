"""A rendezvous, store or communicator that not all ranks have come to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from textwrap import shorten

from ncclscope.engine.case import Case
from ncclscope.engine.processes.motion import read_motions
from ncclscope.engine.waits.meeting import disagreements, world_sizes
from ncclscope.engine.waits.noted import (
    Noted,
    given_up,
    key_of,
    lasting,
    note_lines,
    polled,
    raised,
    timeout_text,
)
from ncclscope.engine.waits.noted import doing as doing_now
from ncclscope.engine.waits.waits import failed
from ncclscope.model import Blame, Finding, Rank
from ncclscope.model.activities import COMM_INIT, INIT, STORE_WAIT
from ncclscope.untrusted import printable
from ncclscope.wording.names import plural, sentence, who_text
from ncclscope.wording.not_joined import Join
from ncclscope.wording.startup import Startup, Waiting, missing_server

_SHOWN = 4
_LONGEST = 200
"""Characters of an exception's text in a summary; the evidence has all of it."""
_Waiting = dict[int, Noted]


class InitStalled:
    """Ranks wait for a store, in init_process_group or in ncclCommInitRank, and others do not."""

    name = "init_stalled"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield who has not come to where ranks wait before their calls, or between them."""
        if case.differences or not _is_quiet(case):
            return
        if case.waits.pending_calls:
            yield from self._sizes(case)
            return  # the records of the calls show who is missing, or the job moves
        for name, judge in (
            (INIT, self._rendezvous),
            (STORE_WAIT, self._at_store),
            (COMM_INIT, self._connecting),
        ):
            waiting = {
                rank.rank: one
                for rank in case.run.ranks
                if (one := _wait(case, rank, name)) is not None
            }
            if not waiting and name == STORE_WAIT:
                waiting = _polling(case)
            if waiting:
                if all(_is_long(case, number, one) for number, one in waiting.items()):
                    yield from judge(case, waiting)
                return

    def _rendezvous(self, case: Case, inside: _Waiting) -> Iterable[Finding]:
        """Yield the ranks that have not come to ``init_process_group``, which all must."""
        found = self._settings(case, inside)
        over = {number: one for number, one in inside.items() if one.activity.until_ns is not None}
        broken = tuple(number for number in over if failed(case.run.by_rank[number]))
        if found is None and 0 < len(broken) < len(inside):
            found = self._broken(case, inside, broken)
        if found is None:
            ended = () if len(over) == len(inside) else tuple(over)
            still = {number: one for number, one in inside.items() if number not in ended}
            found = self._not_come(case, still, ended)
        yield found

    def _settings(self, case: Case, inside: _Waiting) -> Finding | None:
        """Describe ranks that meet elsewhere, or with a rank that another process has."""
        wait = _slots(inside)
        for found in disagreements(case.run.ranks):
            rest = _rest(case, [n for n in found.few if n not in inside])
            summary = Startup.DISAGREE.of(text=found.text, wait=wait, rest=rest)
            return self._finding(case, inside, found.few, summary, blames=not found.is_tie)
        doubles = {r.rank: r for r in case.run.ranks if r.details.get("doubles")}
        if not doubles:
            return None
        pids = {n: (r.pid, *r.details["doubles"]) for n, r in doubles.items()}
        texts = [
            Startup.PROCESSES.of(len(own), n, " ".join(map(str, own))) for n, own in pids.items()
        ]
        since = _begun(inside)
        absent = [
            n
            for n in range(case.run.expected)
            if n not in inside and not _has_joined(case, n, since)
        ]
        none = Startup.NONE_HAS.of(absent) if absent else ""
        summary = Startup.DOUBLED.of(doubles="; ".join(texts), none=none, wait=wait)
        return self._finding(case, inside, tuple(doubles), summary, blames=True)

    def _sizes(self, case: Case) -> Iterable[Finding]:
        """Yield ranks with another world size than a rank that waits for them in a call."""
        pending = case.waits.pending_calls
        inside = {
            rank.rank: one
            for rank in case.run.ranks
            if (one := _wait(case, rank, INIT)) is not None
        }
        for found in world_sizes(case.run.ranks):
            calls = {
                number: one
                for number, one in pending.items()
                if {*one.absent} & {*found.few} or number in found.few
            }
            if not calls or not any({*found.few} <= {*one.comm.ranks} for one in calls.values()):
                continue  # jobs of their own
            where = [
                Startup.WAITS_IN.of([number], one.call.seq, one.comm)
                for number, one in calls.items()
            ]
            where += [str(_slots(inside))] if inside else []
            yield Finding(
                kind=self.name,
                summary=f"{sentence(found.text)}: {'; '.join(where[:_SHOWN])}.",
                blame=Blame.among(found.few) if found.is_tie else Blame.on(found.few),
                role="cause",
                evidence=(
                    Startup.RECORDED.of(found.text),
                    *(f"rank {number} {one.clause}" for number, one in inside.items()),
                )[:_SHOWN],
                accounts_for=tuple((one.comm.key, one.call.seq) for one in pending.values()),
            )

    def _not_come(self, case: Case, inside: _Waiting, over: Sequence[int]) -> Finding:
        """Describe the ranks that have not come to it, or say that no record shows whose they are.

        Args:
            case: The case.
            inside: The ranks in it.
            over: Ranks that could not connect in it, and have ended.
        """
        wait, since = _slots(inside), _begun(inside)
        expected = [number for number in range(case.run.expected) if number not in over]
        absent = tuple(n for n in expected if n not in inside and not _has_joined(case, n, since))
        past = tuple(n for n in expected if n not in inside and n not in absent)
        ended_inside = [n for n in absent if _ended_in(case, n, INIT)]
        if len(ended_inside) < len(absent):  # these had come, and cannot be why others wait
            absent = tuple(n for n in absent if n not in ended_inside)
        if absent:
            code, who = Startup.NOT_COME, who_text(case.run, absent)
            if {*absent} <= case.run.unrecorded:
                code = Startup.MAY_NOT_COME
            rest = _rest(case, absent[:_SHOWN])
            summary = code.of(who=who, absent=absent, wait=wait, rest=rest)
            blames = 2 * len(absent) <= case.run.expected
            return self._finding(case, inside, absent, summary, blames=blames)
        ended = [*over, *(n for n in past if _has_ended(case, n))]
        went_on = [n for n in past if n not in ended]
        rest = f"; {Startup.WENT_ON.of(went_on)}" if went_on else ""
        rest += _rest(case, ended[:_SHOWN])
        everyone = [*inside] if past or over else Startup.ALL
        summary = Startup.NOBODY.of(who=everyone, wait=wait, rest=rest)
        if wait.over:
            # By their clocks; the errors of later ones often come from the end of the first.
            first = min(inside, key=lambda number: inside[number].activity.until_ns or 0)
            error = printable(str(case.run.by_rank[first].details.get("ended_with"))).rstrip(": ")
            how = Startup.GAVE_UP.of(
                inside[first].text,
                f"{wait.seconds:.0f} s" if wait.seconds >= 1 else Startup.AT_ONCE,
                first,
                shorten(error, _LONGEST, placeholder=" ..."),
            )
            summary = Startup.NO_REASON.of(who=everyone, how=how, rest=rest)
        return self._finding(case, inside, (), summary, blames=False)

    def _broken(self, case: Case, inside: _Waiting, broken: Sequence[int]) -> Finding:
        """Describe ranks that failed in ``init_process_group``, in which the others wait."""
        waiting = {number: one for number, one in inside.items() if number not in broken}
        summary = Startup.FAILED_IN.of(
            who=who_text(case.run, broken),
            text=inside[broken[0]].text,
            wait=_slots(waiting),
            rest=_rest(case, broken[:_SHOWN]),
        )
        return self._finding(case, waiting, tuple(broken), summary, blames=True)

    def _at_store(self, case: Case, waiting: _Waiting) -> Iterable[Finding]:
        """Yield who does not wait for the key that most of the waiting ranks wait for."""
        groups: dict[tuple[str, str, int], _Waiting] = {}
        for number, one in waiting.items():
            groups.setdefault(one.what, {})[number] = one
        first = max(groups.values(), key=len)
        asked = first[min(first)]
        others = tuple(n for n in range(case.run.expected) if n not in waiting)
        connects = asked.method == "connect"
        if not others:
            others_too = [_slots(group) for group in groups.values() if group is not first]
            rest = "".join(f"; {Startup.OTHERS_AT_STORE.of(one)}" for one in others_too)
            end = Startup.NONE_SERVES if connects else Startup.NONE_SETS
            if _slots(waiting).over:
                end = Startup.NONE_SERVED if connects else Startup.NONE_SET
            summary = Startup.ALL_AT_STORE.of(wait=_slots(first), rest=rest, end=end)
            yield self._finding(case, waiting, (), summary, blames=False)
            return
        # A barrier needs every rank; any other key needs one, and nothing says which.
        needs_all = asked.is_barrier
        named = len(others) == 1 or (needs_all and len(others) < len(first))
        missing = (Startup.NOT_AT_BARRIER if needs_all else Startup.NOT_SET).of(others)
        if connects:
            missing = missing_server(others)
        summary = Startup.AT_STORE.of(
            wait=_slots(first), missing=missing, rest=_rest(case, others[:_SHOWN])
        )
        found = self._finding(case, first, others, summary, blames=named)
        # A thread of an idle job may wait for a key that nobody is to set yet.
        few = len(first) < len(others) and all(
            one.activity.until_ns is None for one in first.values()
        )
        yield replace(found, role="latent") if few else found

    def _connecting(self, case: Case, waiting: _Waiting) -> Iterable[Finding]:
        """Yield the ranks that are not in ``ncclCommInitRank`` with the others."""
        others = tuple(n for n in range(case.run.expected) if n not in waiting)
        # Only the size of the communicator is known: with others outside, who is missing is not.
        is_all = waiting[min(waiting)].activity.number == case.run.expected
        missing = others if is_all else ()
        named = is_all and 0 < 2 * len(others) <= case.run.expected
        wait, rest = _slots(waiting), _rest(case, missing[:_SHOWN])
        summary = Startup.NOT_BEGUN.of(wait=wait, others=missing, rest=rest)
        if not missing:
            summary = Startup.NOBODY.of(who=waiting, wait=wait, rest="")
        yield self._finding(case, waiting, missing, summary, blames=named)

    def _finding(
        self, case: Case, waiting: _Waiting, absent: Sequence[int], summary: str, *, blames: bool
    ) -> Finding:
        """Return a finding; `blames` says whether the records single out the absent ranks."""
        run = case.run
        first = min(waiting)
        evidence = []
        for number, one in [*waiting.items()][:_SHOWN]:
            evidence.append(f"rank {number} {one.clause}")
            if (how := case.how_it_ended(run.by_rank[number])) is not None:
                evidence.append(f"rank {number}: {how}")
        for number in absent[:_SHOWN]:
            rank = run.by_rank.get(number)
            if rank is None:
                known = number in run.unrecorded
                evidence.append(_doing(case, number) if known else Join.NO_RECORD.of(number))
                continue
            evidence += note_lines(case, rank)
            if (how := case.how_it_ended(rank)) is not None:
                evidence.append(f"rank {number}: {how}")
        store = lasting(run.by_rank[first], STORE_WAIT)
        if store is not None and waiting[first].name != STORE_WAIT:
            evidence.append(f"rank {first} {store.clause}")
        if limit := timeout_text(run.by_rank[first], waiting[first]):
            evidence.append(limit)
        inferred = []
        if any(n not in run.by_rank and n not in run.unrecorded for n in absent):
            inferred.append(Startup.NOT_STARTED.of())
        asked = waiting[first] if waiting[first].name == STORE_WAIT else store
        ended = [
            number
            for number in absent
            if number not in waiting
            and (rank := run.by_rank.get(number)) is not None
            and case.how_it_ended(rank) is not None
        ]
        return Finding(
            kind="dead_rank" if blames and len(ended) == len(absent) else self.name,
            summary=summary,
            blame=Blame.on(absent) if blames else Blame.among(absent or range(run.expected)),
            role="cause",
            evidence=tuple(dict.fromkeys(evidence)),
            inferred=tuple(inferred),
            awaited=key_of(asked.activity) if asked is not None else "",
        )


def _wait(case: Case, rank: Rank, name: str) -> Noted | None:
    """Return a wait that a process is in, or that ended it with an exception."""
    if case.how_it_ended(rank) is None:
        return lasting(rank, name)
    return given_up(rank, name)


def _polling(case: Case) -> _Waiting:
    """Return the ranks that ask a store for the same again and again, where most ranks do.

    A thread of an idle program may ask so, too: on all ranks, or on few.
    """
    found = {
        rank.rank: one
        for rank in case.run.ranks
        if case.how_it_ended(rank) is None and (one := polled(rank)) is not None
    }
    alike = len({one.what for one in found.values()}) == 1
    return found if alike and case.run.expected < 2 * len(found) < 2 * case.run.expected else {}


def _slots(waiting: _Waiting) -> Waiting:
    """Return who waits in what, for how long, and whether exceptions ended all of it."""
    every = waiting.values()
    over = all(one.activity.until_ns is not None for one in every)
    seconds = min(one.seconds for one in every)
    return Waiting([*waiting], waiting[min(waiting)].text, seconds, over)


def _is_quiet(case: Case) -> bool:
    """Return whether no rank has posted a call for so long that a wait would be a hang."""
    for rank in case.run.ranks:
        if case.how_it_ended(rank) is not None:
            continue
        quiet = case.quiet_seconds(rank) if rank.records or rank.lost else None
        limit = case.live_stall_seconds if rank.alive else case.stall_seconds
        if quiet is not None and quiet < limit:
            return False
    return True


def _is_long(case: Case, number: int, noted: Noted) -> bool:
    rank = case.run.by_rank[number]
    if noted.activity.until_ns is not None:
        return True  # too long for the program, which gave up
    return noted.seconds >= (case.live_stall_seconds if rank.alive else case.stall_seconds)


def _ended_in(case: Case, number: int, name: str) -> bool:
    """Return whether a process was killed in a wait."""
    rank = case.run.by_rank.get(number)
    if rank is None or rank.exited or rank.alive is not False:
        return False
    return lasting(rank, name) is not None


def _begun(inside: _Waiting) -> int:
    """Return when the first of the waiting ranks began to wait, nanoseconds since 1970."""
    return min(one.activity.since_ns for one in inside.values())


def _has_joined(case: Case, number: int, since: int) -> bool:
    """Return whether a rank has been through the ``init_process_group`` that others are in.

    Args:
        case: The case.
        number: The rank.
        since: When the first of the others began, nanoseconds since 1970. An earlier one is over.
    """
    rank = case.run.by_rank.get(number)
    if rank is None or not rank.logs:
        return False
    last = rank.activities.get(INIT)
    return last is None or last.until_ns is None or last.until_ns > since


def _has_ended(case: Case, number: int) -> bool:
    rank = case.run.by_rank.get(number)
    return rank is not None and case.how_it_ended(rank) is not None


def _rest(case: Case, numbers: Iterable[int]) -> str:
    return "".join(f"; {_doing(case, number)}" for number in numbers)


def _doing(case: Case, number: int) -> str:
    """Return what a rank does instead, as far as it is recorded."""
    rank: Rank | None = case.run.by_rank.get(number)
    if rank is None and number in case.run.unrecorded:
        return Startup.NOT_RECORDED.of(number)
    if rank is None:
        return Startup.LEFT_NONE.of(number)
    if (how := case.how_it_ended(rank)) is not None:
        return f"rank {number}: {how}"
    if (error := raised(case, rank)) is not None:
        return Startup.RAISED.of(number, error[0], error[1])
    if (now := doing_now(rank)) is not None:
        return f"rank {number} {now.clause}"
    seen = {} if case.run.snapshot is None else read_motions(case.run.snapshot)
    if number in seen and seen[number].frames:
        return f"rank {number} is {'in' if seen[number].work else 'at'} {seen[number].text}"
    if made := rank.records + rank.lost:
        return Startup.ELSEWHERE_AFTER.of(number, plural(made, "call"))
    return Startup.ELSEWHERE.of(number)
