"""Calls that a rank posted on another communicator than its peers, while all wait in them.

A rank that goes on shows such calls by its numbers: more on one communicator, fewer on another.
Where it waits in the call, as its peers wait in theirs, only one thing shows it: the call, from the
same line, in which its peers wait for it on a communicator on which it has not come to that number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ncclscope.engine.sequences.habit import PAST, known_by
from ncclscope.engine.sequences.swaps import Swap
from ncclscope.model import Call
from ncclscope.model.log import CallLog

if TYPE_CHECKING:
    from ncclscope.engine.records import Records
    from ncclscope.engine.sequences.difference import Difference


def find_strayed(
    records: Records, differences: Sequence[Difference], *, stalled: bool
) -> list[Swap]:
    """Return calls that were posted on another communicator, at most one for each rank.

    Args:
        records: The records.
        differences: The differences that the job has not survived.
        stalled: Whether ranks are stuck, so that who is ahead shows something.
    """
    if records.run.window:
        return []
    by_comm = {each.comm.key: each for each in reversed(differences)}
    suspects: dict[int, list[str]] = {}
    for each in by_comm.values():
        for number in each.odd or each.peers:
            suspects.setdefault(number, []).append(each.comm.key)
    if stalled:
        for key in records.run.communicators.keys() - by_comm.keys():
            rank = _only_one_ahead(records.logs(key))
            if rank is not None:
                suspects.setdefault(rank, []).append(key)
    found = []
    for rank, keys in sorted(suspects.items()):
        strayed = [one for key in sorted(keys) for one in _strayed(records, rank, key, by_comm)]
        found += strayed[:1]
    return found


def _only_one_ahead(logs: Mapping[int, CallLog]) -> int | None:
    """Return the only member that posted a call to which no other has come."""
    counts = Counter({rank: log.calls for rank, log in logs.items()}).most_common()
    if not counts:
        return None
    (first, most), *others = counts
    return first if most and all(count == most - 1 for _, count in others) else None


def _strayed(
    records: Records, rank: int, key: str, by_comm: Mapping[str, Difference]
) -> Iterator[Swap]:
    """Yield the call of a rank on a communicator, if its peers posted it on another one."""
    log = records.logs(key)[rank]
    seq = by_comm[key].seq if key in by_comm else log.calls
    if not log.first <= seq <= log.calls:
        return
    call = log.call(seq)
    if call.site is None:
        return
    others = [one for number, one in records.logs(key).items() if number != rank]
    here = next((one.call(seq) for one in others if one.first <= seq <= one.calls), None)
    if any(_is_usual(one, seq, call) for one in (log, *others)):
        return  # it may belong here, though earlier or later
    if seq == 1 and here is None and len(records.run.communicators[key].ranks) == 2:
        return  # the first call of a pair, which the other member may have left out
    for other in records.run.by_rank[rank].logs.keys() - {key}:
        own = records.logs(other)[rank]
        number = by_comm[other].seq if other in by_comm else own.calls + 1
        if not _stands_between(own, number, call):
            continue
        posted = {
            member: each.call(number)
            for member, each in records.logs(other).items()
            if member != rank and each.first <= number <= each.calls
        }
        if not posted or any(
            (known_by(one), one.shape, one.numel) != (known_by(call), call.shape, call.numel)
            for one in posted.values()
        ):
            continue
        usual = _is_usual(own, number, call)
        decided = key in by_comm and by_comm[key].odd == (rank,)
        if usual or decided:
            yield Swap(
                rank=rank,
                comm=records.run.communicators[key],
                seq=seq,
                odd_call=call,
                peer_call=here,
                peers=tuple(member for member in sorted(records.logs(key)) if member != rank),
                fewer=records.run.communicators[other],
                missed=next(iter(posted.values())),
                count=1,
                difference=by_comm.get(key),
                other=by_comm.get(other),
                confidence="certain" if usual and (decided or len(posted) > 1) else "likely",
            )


def _stands_between(log: CallLog, number: int, call: Call) -> bool:
    """Return whether a rank posted a call between two neighbouring ones of another communicator."""
    before = log.first <= number - 1 <= log.calls
    if before and log.call(number - 1).position > call.position:
        return False
    return not log.first <= number <= log.calls or log.call(number).position > call.position


def _is_usual(log: CallLog, seq: int, call: Call) -> bool:
    """Return whether such a call was posted from its line on a communicator before ``seq``.

    Calls after it count as well, except for itself.
    """
    near = log.span(max(log.first, seq - PAST), min(log.calls + 1, seq + PAST))
    return any(known_by(one) == known_by(call) for one in near if one.seq != seq)
