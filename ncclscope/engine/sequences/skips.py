"""Calls deleted or inserted among equal ones: differences that no signature shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from ncclscope.engine.processes.judgement import HANG_SECONDS
from ncclscope.engine.processes.motion import read_motions
from ncclscope.engine.sequences.align import LOOKAHEAD, Edit, side_by_side
from ncclscope.engine.sequences.align import edits as fewest_edits
from ncclscope.engine.sequences.difference import Difference
from ncclscope.engine.sequences.shifts import (
    Shift,
    expected,
    find_shift,
    first_other_line,
    first_unlike,
    shifted_replays,
    tracks_of,
)
from ncclscope.engine.sequences.step_rhythm import broke_rhythm, steps_apart
from ncclscope.model import Communicator, Rank
from ncclscope.model.log import CallLog
from ncclscope.wording.differences import Item

if TYPE_CHECKING:
    from ncclscope.engine.records import Records

MOST_COUNTS = 16
"""Different numbers of calls on a communicator, beyond which its members are merely running."""
MOST_COMMS = 1 << 10
"""Communicators with different numbers of calls, beyond which nothing is inferred: a ring holds
fewer of them."""
MOST_REPLICAS = 8
"""Replicas with which a pair is compared."""
MOST_RANKS = 64
"""Ranks with the same number of calls that are compared one by one."""


def find_skips(records: Records, keys: Iterable[str], singled: set[int]) -> Iterator[Difference]:
    """Find ranks that skipped or inserted a call which equals those around it.

    Args:
        records: The records.
        keys: Keys of communicators on which all signatures agree.
        singled: Ranks that diverged on other communicators.
    """
    if records.run.window:
        return  # call numbers of a window do not count all calls
    diverging = set(singled)
    members = []
    for key in sorted(keys):
        logs = records.logs(key)
        if len({log.calls for log in logs.values()}) > 1:
            members.append(_Members(records, records.run.communicators[key], logs))
    if len(members) > MOST_COMMS:
        return
    for each in members:
        for difference in each.decided():
            diverging.update(difference.odd)
            yield difference
    for each in members:
        yield from each.undecided(diverging)


def trace_back(records: Records, difference: Difference, odd: CallLog, peer: CallLog) -> Difference:
    """Move a difference back to the call at which the two sequences actually diverged.

    A call skipped among equal ones shows as a difference only where the last of them is missing.

    Args:
        records: The records.
        difference: The first difference in signatures.
        odd: The diverging rank's calls.
        peer: A peer's calls.

    Returns:
        The difference at its actual start, or unchanged.
    """
    first, run = difference.first, records.run
    alone = (
        len(difference.edits) == 1 and first.inserted == first.deleted == 1 and not first.matched
    )
    if not difference.odd or (first.inserted and first.deleted and not alone):
        return difference
    stops = (
        difference.seq + first.inserted + first.matched,
        difference.seq + first.deleted + first.matched,
    )
    if alone:
        stops = difference.seq, difference.seq + 1
    one, other = run.by_rank[difference.odd[0]], run.by_rank[difference.peers[0]]
    peers = [records.logs(difference.comm.key)[number] for number in difference.peers]

    def shifted(stops: tuple[int, int]) -> Shift | None:
        found = _shift(records, difference.comm, (one, odd), (other, peer), stops)
        if found is None or found.seq >= difference.seq or not _have_one_line(peers, found):
            return None
        # Earlier differences may be in the order inside a group, which is harmless.
        back = found.seq, difference.seq
        return found if odd.signatures(*back) == peer.signatures(*back) else None

    found = shifted(stops)
    if found is not None and not alone:
        same = (found.deleted, found.inserted) == (first.deleted, first.inserted)
        has_left = difference.rounds is not None and difference.rounds.left
        fewer = has_left and not found.inserted and found.deleted < first.deleted
        found = found if same or fewer else None
    if found is None and len(difference.edits) == 1:
        # All ranks stopped here. Extra calls may equal those that should have come instead.
        extra = shifted((odd.calls + 1, peer.calls + 1))
        if extra is not None and extra.inserted and extra.matched >= first.matched:
            found = extra
    if found is None and len(difference.edits) > 1:
        return _by_lines(difference, odd, peer) or difference
    if found is None:
        return _from_other_lines(records, difference, odd, peer) if alone else difference
    back = range(found.seq, difference.seq)
    edit = Edit(0, found.inserted, 0, found.deleted, found.matched)
    rest = () if alone else difference.edits[1:]
    edits = (
        edit,
        *(
            later._replace(start=later.start + len(back), peer_start=later.peer_start + len(back))
            for later in rest
        ),
        *found.later,
    )
    return replace(
        difference,
        seq=found.seq,
        exact=found.exact,
        odd_call=odd.call(found.seq),
        peer_call=peer.call(found.seq),
        edits=edits,
        aligned=tuple(side_by_side(odd, peer, found.seq, edits)),
        item=found.item,
        noticed=difference.seq,
        rounds=None,
        equal=found.equal,
    )


def _by_lines(difference: Difference, odd: CallLog, peer: CallLog) -> Difference | None:
    """Return a difference as one that lines explain in fewer edits; None where they do not.

    The first of the calls in question equal those of the peers, but for their lines.
    """
    seq = first_other_line(odd, peer, difference.seq)
    if seq is None:
        return None
    found = fewest_edits(*(_with_lines(log, seq) for log in (odd, peer)))
    fewer = 0 < len(found) < len(difference.edits)
    if not fewer or bool(found[0].inserted) == bool(found[0].deleted) or found[0].start:
        return None
    return replace(
        difference,
        seq=seq,
        odd_call=odd.call(seq),
        peer_call=peer.call(seq),
        edits=tuple(found),
        aligned=tuple(side_by_side(odd, peer, seq, found)),
        order=None,
        other=None,
        rounds=None,
        item=Item.LINES,
        noticed=difference.seq,
    )


def _with_lines(log: CallLog, seq: int) -> list[int]:
    stop = min(log.calls + 1, seq + LOOKAHEAD)
    pairs = zip(log.signatures(seq, stop), log.sites(seq, stop), strict=True)
    return [hash((int(signature), site)) for signature, site in pairs]


def _from_other_lines(
    records: Records, difference: Difference, odd: CallLog, peer: CallLog
) -> Difference:
    """Move a difference back to the first call of a diverging rank that came from another line.

    The rank has been in another branch since then, whose first calls equal those of its peers.
    """
    seq = first_other_line(odd, peer, difference.seq)
    if seq is None:
        return difference
    peers = [records.logs(difference.comm.key)[number] for number in difference.peers]
    if len(_lines_at(peers, seq)) != 1:
        return difference  # the peers' calls come from different lines, too
    back = difference.seq - seq
    edits = tuple(
        edit._replace(start=edit.start + back, peer_start=edit.peer_start + back)
        for edit in difference.edits
    )
    return replace(
        difference,
        seq=seq,
        odd_call=odd.call(seq),
        peer_call=peer.call(seq),
        differing_calls=(difference.odd_call, difference.peer_call),
        edits=edits,
        aligned=tuple(side_by_side(odd, peer, seq, edits)),
        item=Item.LINES,
        noticed=difference.seq,
    )


class _Members:
    """The members of a communicator whose calls agree, but whose numbers of calls differ."""

    def __init__(self, records: Records, comm: Communicator, logs: Mapping[int, CallLog]) -> None:
        self._records = records
        self._comm = comm
        self._logs = logs

    def decided(self) -> Iterator[Difference]:
        """Yield the ranks that are shifted against a majority."""
        reference, shifts = self._off
        off = [rank for ranks in shifts.values() for rank in ranks]
        with_it = len(self._logs) - len(off)
        if not off:
            return
        if with_it > len(off):
            yield from self._against(reference, shifts)
        elif len(shifts) == 1 and len(off) > with_it:
            others = [[rank for rank in self._logs if rank not in off]]
            yield from self._odd(off[0], self._shifts(off[0], others), "majority")

    def _against(
        self, reference: int, shifts: Mapping[Shift, Sequence[int]]
    ) -> Iterator[Difference]:
        """Yield the ranks shifted against a majority, or both sides if that broke the pattern."""
        found = self._odd(reference, shifts, "majority")
        if len(shifts) != 1:
            yield from found
            return
        ((shift, off),) = shifts.items()
        kept = self._by_habit(reference, off[0], shift.seq) == [True, False]
        for difference in found:
            if not kept:
                yield difference
                continue
            suspect = difference.peers
            turned = self._odd(off[0], self._shifts(off[0], [suspect]), "pattern")
            for one in turned:
                yield one.undecided([*self._logs], suspect)

    def undecided(self, singled: set[int]) -> Iterator[Difference]:
        """Yield differences between two sides of equal size, decided by other communicators."""
        reference, shifts = self._off
        if len(shifts) != 1:
            return
        ((shift, off),) = shifts.items()
        on = [rank for rank in sorted(self._logs) if rank not in off]
        if len(on) != len(off):
            return
        touched = [bool(singled & set(side)) for side in (on, off)]
        if touched == [False, True]:
            yield from self._odd(reference, shifts, "other_communicators")
            return
        if touched == [True, False]:
            yield from self._odd(off[0], self._shifts(off[0], [on]), "other_communicators")
            return
        like = [self._is_like_replicas(side[0], shift) for side in (on, off)]
        if like == [True, False]:
            yield from self._odd(reference, shifts, "same_kind")
            return
        if like == [False, True]:
            yield from self._odd(off[0], self._shifts(off[0], [on]), "same_kind")
            return
        if not self._is_stuck:
            return  # while both go on, one may use its communicators in another order
        broke, basis = self._by_habit(on[0], off[0], shift.seq), "habit"
        if broke[0] == broke[1]:
            broke, basis = self._by_steps(on[0], off[0], shift.seq), "steps"
        suspect = () if broke[0] == broke[1] or len(off) > 1 else tuple(off if broke[1] else on)
        found = self._odd(reference, shifts, basis if suspect else "")
        if suspect and broke[0]:
            found = self._odd(off[0], self._shifts(off[0], [on]), basis)
        for difference in found:
            yield difference.undecided([*self._logs], suspect)

    def _is_like_replicas(self, number: int, shift: Shift) -> bool | None:
        """Return whether a rank posted what the member at its place did in other replicas.

        Returns:
            None where no replica has come past the shift, or they do not agree.
        """
        run, own, place = self._records.run, self._logs[number], self._comm.ranks.index(number)
        found = set()
        for comm in islice(self._replicas(), MOST_REPLICAS):
            log = self._records.logs(comm.key)[comm.ranks[place]]
            if min(own.calls, log.calls) < shift.seq:
                continue
            one, other = (run.by_rank[number], own), (run.by_rank[comm.ranks[place]], log)
            firsts = [
                first_unlike(*tracks)
                for tracks in tracks_of(run, self._comm, one, other, shapes=False)
            ]
            found.add(all(first is None or first > shift.seq for first in firsts))
        return found.pop() if len(found) == 1 else None

    def _replicas(self) -> Iterator[Communicator]:
        """Yield communicators with the same role and other members, whose calls agree."""
        own = self._comm
        for key, comm in self._records.run.communicators.items():
            if not comm.kind or comm.kind != own.kind or len(comm.ranks) != len(own.ranks):
                continue
            logs = self._records.logs(key)
            agree = len({log.calls for log in logs.values()}) == 1
            if agree and len(logs) == len(comm.ranks) and not {*comm.ranks} & {*own.ranks}:
                yield comm

    @cached_property
    def _is_stuck(self) -> bool:
        """Whether no member moves, by the records or the process snapshot."""
        records = self._records
        if records.timeless or records.longest_common_quiet(self._logs) is not None:
            return True
        snapshot = records.run.snapshot
        if snapshot is None or snapshot.gap < HANG_SECONDS:
            return False
        motions = read_motions(snapshot)
        return all(rank in motions and motions[rank].condition != "moving" for rank in self._logs)

    @cached_property
    def _off(self) -> tuple[int, dict[Shift, list[int]]]:
        """A rank with the most frequent number of calls, and the others' shifts against it."""
        counts: dict[int, list[int]] = {}
        for rank, log in sorted(self._logs.items()):
            counts.setdefault(log.calls, []).append(rank)
        sides = sorted(counts.values(), key=lambda ranks: (-len(ranks), ranks))
        if not 1 < len(counts) <= MOST_COUNTS:
            return -1, {}
        return sides[0][0], self._shifts(sides[0][0], sides[1:])

    def _by_habit(self, one: int, other: int, seq: int) -> list[bool]:
        """Return for each of two ranks whether it broke their common pattern of lines."""
        logs = [self._logs[rank] for rank in (one, other)]
        lines = [log.sites(seq, seq + 1)[0] for log in logs]
        by_past = {expected(log, seq, lines[0], lines[1]) for log in logs}
        return [by_past == {lines[1]} != {None}, by_past == {lines[0]} != {None}]

    def _by_steps(self, one: int, other: int, seq: int) -> list[bool]:
        """Return for each of two ranks whether its step has another number of calls than before."""
        by_rank = self._records.run.by_rank
        sides = [(by_rank[rank], self._logs[rank]) for rank in (one, other)]
        return broke_rhythm(sides[0], sides[1], seq)

    def _shifts(self, reference: int, sides: Sequence[Sequence[int]]) -> dict[Shift, list[int]]:
        """Return the ranks that are shifted against a reference, by their shift."""
        found: dict[Shift, list[int]] = {}
        for ranks in sides:
            for rank in ranks[:MOST_RANKS]:
                shift = self._shift(rank, reference)
                if shift is not None:
                    found.setdefault(shift, []).append(rank)
                elif rank == ranks[0]:
                    break
        return found

    def _shift(self, rank: int, reference: int) -> Shift | None:
        by_rank, logs = self._records.run.by_rank, self._logs
        one, other = (by_rank[rank], logs[rank]), (by_rank[reference], logs[reference])
        return _shift(self._records, self._comm, one, other)

    def _are_in_step(self, reference: int, peers: Sequence[int]) -> bool:
        """Return whether groups of one kind have made as many calls on all peers.

        Groups whose work is uneven make as many calls as others by chance.
        """
        by_rank, logs = self._records.run.by_rank, self._logs
        one = by_rank[reference], logs[reference]
        return all(
            first_unlike(own, theirs) is None
            for rank in peers[:MOST_RANKS]
            if rank != reference
            for own, theirs in tracks_of(
                self._records.run, self._comm, one, (by_rank[rank], logs[rank]), shapes=False
            )
            if own.item is Item.LIKE_CALLS
        )

    def _odd(
        self, reference: int, shifts: Mapping[Shift, Sequence[int]], basis: str
    ) -> Iterator[Difference]:
        off = {rank for ranks in shifts.values() for rank in ranks}
        peer = self._logs[reference]
        for shift, ranks in shifts.items():
            odd = self._logs[ranks[0]]
            peers = tuple(rank for rank in sorted(self._logs) if rank not in off)
            if not _have_one_line([self._logs[rank] for rank in peers], shift):
                continue
            if shift.item is Item.LIKE_CALLS and not self._are_in_step(reference, peers):
                continue
            edits = (Edit(0, shift.inserted, 0, shift.deleted, shift.matched), *shift.later)
            yield Difference(
                comm=self._comm,
                seq=shift.seq,
                exact=shift.exact,
                odd=tuple(ranks),
                peers=peers,
                odd_call=odd.call(shift.seq),
                peer_call=peer.call(shift.seq),
                edits=edits,
                aligned=tuple(side_by_side(odd, peer, shift.seq, edits)),
                basis=basis,
                item=shift.item,
                equal=shift.equal,
            )


def _have_one_line(logs: Sequence[CallLog], shift: Shift) -> bool:
    """Return whether all peers made the first differing call from one line, where lines count.

    Ranks that take turns in a branch differ from each other, and shifted by their turn they agree.
    Where no call before agreed, a single peer is no evidence.
    """
    if shift.item is not Item.LINES:
        return True
    if shift.seq == 1 and len(logs) < 2:
        return False
    return len(_lines_at(logs[:MOST_RANKS], shift.seq) - {None}) < 2


def _lines_at(logs: Sequence[CallLog], seq: int) -> set[str | None]:
    return {log.sites(seq, seq + 1)[0] for log in logs if log.first <= seq <= log.calls}


def _shift(
    records: Records,
    comm: Communicator,
    one: tuple[Rank, CallLog],
    other: tuple[Rank, CallLog],
    stops: tuple[int, int] | None = None,
) -> Shift | None:
    """Return the earliest shift that any detail shows."""
    found: list[Shift] = []
    for odd, peer in tracks_of(records.run, comm, one, other, shapes=stops is not None):
        shift = find_shift(odd, peer, stops)
        if shift is not None:
            found.append(shift)
    last = min(one[1].calls, other[1].calls) + 1 if stops is None else min(stops)
    if (shift := shifted_replays(one, other, last)) is not None:
        return shift  # recorded, where the others are inferred
    if not found and stops is None:
        return steps_apart(one, other)
    return min(found, key=lambda shift: shift.seq, default=None)
