"""Verify the proof of a verdict by playing the records, call by call, without the engine.

Each thread of a rank carries its calls out in the order of its program, those of an NCCL group
together. A collective completes when all members are at it with parameters that fit, a transfer
when its other end is, a receive from any source when any sender is. A thread that waits without
the repair, and comes to the end of its records with it, goes on: it comes to what peers expect.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ncclscope.model import Call, Rank, Run, State
from ncclscope.model.call import DamagedCall
from ncclscope.model.signature import VECTOR_OPS

__all__ = ["Unclear", "check"]

_ANY, _SEVERAL = 0, 63
"""Numbers of threads: of one that is not known, and of those past the 62nd."""
_GONE_NS = 5 * 10**9
_TRANSFERS = {"send": "recv", "recv": "send"}
_LOST = re.compile(r"peer|broken pipe|remote ?(error|process)|0 bytes|likely closed", re.I)
_OF_OTHERS = re.compile(_LOST.pattern + "|time(d )?out|^(KeyboardInterrupt|SignalException)", re.I)
"""Errors with which a process ends because of another one, or of a signal to the job."""
_BYTES = {"float64": 8, "int64": 8, "bfloat16": 2, "float16": 2, "int8": 1, "uint8": 1, "bool": 1}
Place = tuple[int, int, int]


class Unclear(Exception):
    """The records do not suffice to verify a proof."""


class _Impossible(Exception):
    """A repair drops or copies calls that nobody posted."""


@dataclass(eq=False)
class _Post:
    """A call of a rank, its place in the program, and what it is paired by."""

    call: Call
    place: Place
    key: tuple[str, str, int, int] = ("", "", 0, 0)
    done: bool = False


@dataclass(frozen=True)
class _Job:
    """What each rank posts, and what is known of it besides.

    Attributes:
        run: The records.
        posts: The calls of each rank.
        gone: Ranks that ended without a word.
        unseen: Ranks without a record.
        ended: Ranks whose process took the calls with it that it had on NCCL.
    """

    run: Run
    posts: Mapping[int, Sequence[_Post]]
    gone: frozenset[int]
    unseen: frozenset[int]
    ended: frozenset[int] = frozenset()

    @classmethod
    def of(cls, run: Run) -> _Job:
        """Return what the ranks of a run posted."""
        if run.window or any(not log.anchored for rank in run.ranks for log in rank.logs.values()):
            raise Unclear("calls without numbers")
        posts = {}
        for rank in run.ranks:
            calls = rank.kept_calls()
            if any(isinstance(call, DamagedCall) for call in calls):
                raise Unclear("damaged calls")
            if any(call.op in _TRANSFERS for call in calls) and rank.lost:
                raise Unclear("transfers without numbers")
            posts[rank.rank] = [_Post(call, (call.position, 0, 0)) for call in calls]
        members = (comm.ranks for comm in run.communicators.values())
        unseen = {*range(run.expected)}.union(*members) - posts.keys()
        return cls(run, posts, _gone(run) - _overrun(run), frozenset(unseen))


def check(run: Run, cause: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the proof of a cause, as JSON has both.

    Args:
        run: The records.
        cause: A finding of the verdict.

    Raises:
        Unclear: If the proof cannot be verified.
    """
    proof = cause["proof"]
    if proof is None:
        raise Unclear("no proof")
    job, wrong = _Job.of(run), list[str]()
    named, of = frozenset(proof["repair"]["ranks"]), proof["of"]
    if not named.issuperset(cause["diverging_ranks"]):
        wrong.append(f"ranks {cause['diverging_ranks']} are not among the repaired {sorted(named)}")
    play = _Play(job)
    waits = {rank for rank in job.posts if rank not in job.gone and play.at(rank)}
    if waits <= (ended := job.gone.union(_failed(run))):
        job = replace(job, ended=ended)
        play = _Play(job)
        waits |= {rank for rank in job.posts if rank not in ended and play.at(rank)}
    if len(waits) != of:
        wrong.append(f"ranks {sorted(waits)} wait, not {of}")
    changes, comes = proof["repair"]["calls"], frozenset(proof["repair"].get("comes", ()))
    changed = frozenset(one["rank"] for one in changes)
    try:
        repaired = [_repaired(job, changes, late=late) for late in (False, True)]
    except _Impossible as reason:
        return [*wrong, str(reason)]
    # What a rank left out has a range of places among its transfers.
    held = [
        min(
            (_held(one, play, named - changed, changed, comes, whole=whole) for one in repaired),
            key=len,
        )
        for whole in (True, False)
    ]
    least, most = (len(waits) - len(one) for one in held)
    if not least <= proof["releases"] <= most or (proof["releases"] == of and held[0]):
        wrong.append(f"it releases {least} to {most}, not {proof['releases']}; held: {held[0]}")
    rivals = {
        rank: len(waits) - len(_held(job, play, frozenset({rank}), whole=False))
        for rank in job.posts
        if rank not in named
    }
    whole = [rank for rank in rivals if not _held(job, play, frozenset({rank}), whole=True)]
    ends = {rank: _ended(run, play, rank) for rank in rivals}
    wrong += _against(proof, rivals, len(waits), ends)
    if cause["confidence"] == "certain":
        as_cheap = [rank for rank in whole if not ends[rank]]
        if held[0]:
            wrong.append(f"it is certain, and leaves {held[0]} waiting")
        if as_cheap and not proof["rival_against"]:
            wrong.append(f"it is certain, and a repair of any of {as_cheap} releases as much")
    return wrong


def _against(
    proof: Mapping[str, Any], rivals: Mapping[int, int], of: int, ends: Mapping[int, list[int]]
) -> Iterator[str]:
    """Yield what is wrong with what a proof says of the nearest rival."""
    most, claimed = max(rivals.values(), default=0), proof["rival"]
    if claimed is None:
        if most:
            yield f"it has no rival, and the repair of another rank releases {most}"
        return
    (rank,), against = claimed["ranks"], proof["rival_against"]
    own = rivals.get(rank, -1)
    if own != claimed["releases"]:
        yield f"rival {rank} releases {own}, not {claimed['releases']}"
    elif own != most:
        yield f"rival {rank} releases {own}, and another one {most}"
    if any(text.startswith("releases") for text in against) != (own < of):
        yield f"rival {rank} releases {own} of {of}, and against it speaks {against}"
    if any(text.startswith("leaves the end") for text in against) != bool(ends.get(rank)):
        yield f"rival {rank} leaves the end of {ends.get(rank)} open, and it says {against}"


# --- how processes ended ----------------------------------------------------------------------


def _is_silent(rank: Rank) -> bool:
    return not (rank.exited or rank.alive or rank.details.get("ended_with"))


def _gone(run: Run) -> frozenset[int]:
    """Return the ranks that ended without a word: their heartbeat ends long before others'.

    Or they alone recorded no end, and all others lost a connection.
    """
    silent = [rank.rank for rank in run.ranks if _is_silent(rank)]
    seen = {rank.rank: rank.last_seen_ns for rank in run.ranks if rank.last_seen_ns is not None}
    newest = max(seen.values(), default=0)
    others = [str(rank.details.get("ended_with")) for rank in run.ranks if rank.rank not in silent]
    whole = len(run.ranks) == run.expected
    if whole and len(silent) == 1 and others and all(map(_LOST.search, others)):
        return frozenset(silent)
    return frozenset(one for one in silent if newest - seen.get(one, newest) >= _GONE_NS)


def _overrun(run: Run) -> set[int]:
    """Return the ranks in a call on gloo that meets a larger one: gloo ends such a process."""
    found = set()
    for rank in run.ranks:
        for log in rank.logs.values():
            if run.communicators[log.communicator.key].backend != "gloo" or log.calls < log.first:
                continue
            last = log.call(log.calls)
            met = (peer.logs[last.comm] for peer in run.members(last.comm))
            calls = [one.call(last.seq) for one in met if one.first <= last.seq <= one.calls]
            larger = (_load(one)[0] == _load(last)[0] and _load(one) > _load(last) for one in calls)
            if last.state is not State.COMPLETED and any(larger):
                found.add(rank.rank)
    return found


def _load(call: Call) -> tuple[str, int]:
    """Return as what operation gloo runs a call, and the bytes of its input."""
    op = "all_reduce" if call.op == "reduce_scatter" else call.op
    return op, (call.numel or 0) * _BYTES.get(str(call.dtype), 4)


def _failed(run: Run) -> set[int]:
    """Return the ranks that ended with an error of their own."""
    errors = {rank.rank: str(rank.details.get("ended_with") or "") for rank in run.ranks}
    return {rank for rank, error in errors.items() if error and not _OF_OTHERS.search(error)}


def _ended(run: Run, play: _Play, rival: int) -> list[int]:
    """Return the ranks that ended, or were stopped, of themselves, other than a rival."""
    unfit, failed, found = play.unfit(), _failed(run), []
    for rank in run.ranks:
        of_itself = rank.rank in failed
        # gloo ends the process of a rank that posted another call than its peers.
        gone = rank.rank in play.job.gone and rank.rank not in unfit
        if rank.rank != rival and (of_itself or gone or rank.details.get("stopped")):
            found.append(rank.rank)
    return found


# --- the repair -------------------------------------------------------------------------------


def _repaired(job: _Job, changes: Sequence[Mapping[str, Any]], *, late: bool) -> _Job:
    """Return a job with the calls dropped and added that a repair names.

    Args:
        job: The job.
        changes: The changes of calls.
        late: Whether what is added comes after the transfers that are next, or before them.
    """
    posts = {rank: list(own) for rank, own in job.posts.items()}
    added = []
    for change in changes:
        rank, key, seq = change["rank"], change["comm"], change["seq"]
        own = _on(job, rank, key)
        after = [post for post in own if post.call.seq >= seq]
        dropped, rest = after[: change["drop"]], after[change["drop"] :]
        wanted = range(change["start"], change["start"] + change["add"])
        theirs = [post for post in _on(job, change["like"], key) if post.call.seq in wanted]
        if (len(dropped), len(theirs)) != (change["drop"], change["add"]):
            lost = min(
                seq - _first(job, rank, key), change["start"] - _first(job, change["like"], key)
            )
            if lost < 0:
                raise Unclear("a repair of calls that are overwritten")
            raise _Impossible(f"rank {rank} or {change['like']} has no such calls: {change}")
        posts[rank] = [post for post in posts[rank] if post not in dropped]
        before = [post for post in own if post.call.seq < seq]
        ends = (None, *before)[-1], (*rest, None)[0]
        added += [(change, number, post, dropped, ends) for number, post in enumerate(theirs, 1)]
    # What they come behind is counted as with the repair.
    for change, number, post, dropped, (low, high) in added:
        mine = sorted(posts[change["rank"]], key=lambda one: one.place)
        near = dropped[min(number, len(dropped)) - 1] if dropped else low or high
        place = near.place if dropped and near else _as_far_as(job, mine, change, post)
        for one in mine if late and not dropped else ():
            if one.place > place and one.call.op not in _TRANSFERS:
                break
            place = max(place, one.place)
        place = place if low is None else max(place, low.place)
        place = place if high is None else min(place, (high.place[0], -1, 0))
        thread = near.call.thread if near else _ANY
        group = near.call.group if near and dropped else None
        call = replace(post.call, state=State.SCHEDULED, thread=thread, group=group)
        posts[change["rank"]].append(_Post(call, (place[0], place[1] or 1, number)))
    return replace(job, posts=posts)


def _first(job: _Job, rank: int, key: str) -> int:
    """Return the number of the first call of a rank on a communicator that is kept."""
    log = job.run.by_rank[rank].logs.get(key)
    return 1 if log is None else log.first


def _on(job: _Job, rank: int, key: str) -> list[_Post]:
    """Return the collectives of a rank on a communicator, in order."""
    own = (post for post in job.posts[rank] if post.call.op not in _TRANSFERS)
    return [post for post in own if post.call.comm == key]


def _as_far_as(job: _Job, own: Sequence[_Post], change: Mapping[str, Any], added: _Post) -> Place:
    """Return the place of the last call of a rank that a peer posted before a call."""
    rank, peer = change["rank"], change["like"]
    before = [post for post in job.posts[peer] if post.place < added.place]
    seen, numbered = _numbered(job, peer, before), _numbered(job, rank, own)
    return max((post.place for key, post in numbered.items() if key in seen), default=(-1, 0, 0))


def _numbered(
    job: _Job, rank: int, posts: Sequence[_Post]
) -> dict[tuple[str, tuple[int, int], int], _Post]:
    """Return calls by their number; of transfers by that among those of a sender to a receiver."""
    made: Counter[tuple[str, tuple[int, int]]] = Counter()
    found = {}
    for post in posts:
        call, members = post.call, job.run.communicators[post.call.comm].ranks
        ends, lost = (-1, -1), 0
        if call.op in _TRANSFERS:
            other = -1 if call.peer is None else members[call.peer]
            ends = (rank, other) if call.op == "send" else (other, rank)
        else:
            lost = _first(job, rank, call.comm) - 1
        made[call.comm, ends] += 1
        found[call.comm, ends, made[call.comm, ends] + lost] = post
    return found


# --- the play ---------------------------------------------------------------------------------


def _held(
    job: _Job,
    before: _Play,
    free: frozenset[int],
    changed: frozenset[int] = frozenset(),
    comes: frozenset[int] = frozenset(),
    *,
    whole: bool,
) -> list[int]:
    """Return the ranks that wait without a repair and with it.

    Args:
        job: The repaired job.
        before: The job as recorded.
        free: Ranks that behave as their peers expect.
        changed: Ranks whose calls are repaired.
        comes: Ranks that come to what their peers expect, and wait in their own calls.
        whole: Whether all recorded calls are to complete, or those in which ranks wait.
    """
    going: dict[int, set[int]] = {}
    unfit = before.unfit()
    for rank in job.run.ranks:
        number, ended = rank.rank, rank.exited or rank.details.get("ended_with")
        inside = before.at(number)
        if number in changed or (number in unfit and number in job.gone) or (inside and ended):
            going[number] = {_ANY}
        elif number not in job.gone:
            going[number] = {post.call.thread for post in inside}
    play = _Play(job, free | job.unseen, comes, going)
    found = []
    for number in job.posts.keys() - job.gone - free:
        inside = before.at(number)
        places = {post.place for post in inside}
        if inside and any(whole or post.place in places for post in play.pending[number]):
            found.append(number)
    return sorted(found)


class _Play:
    """A job whose calls are carried out until nothing moves.

    Args:
        job: The job.
        free: Ranks that come to every call, and wait in none.
        comes: Ranks that come to every call.
        going: Threads that go on past the end of their records, by rank.
    """

    def __init__(
        self,
        job: _Job,
        free: Collection[int] = (),
        comes: Collection[int] = (),
        going: Mapping[int, Collection[int]] | None = None,
    ) -> None:
        self.job, self._free, self._comes, self._going = job, free, comes, going or {}
        self.pending: dict[int, list[_Post]] = {}
        self._found: dict[tuple[int, str, str, int, int], _Post] = {}
        self._threads: dict[tuple[int, str], set[int]] = {}
        self._threads_of = {
            rank: {post.call.thread for post in posts} for rank, posts in job.posts.items()
        }
        for rank in job.posts:
            self._number(rank)
        moved = True
        while moved:
            moved = False
            for rank, pending in self.pending.items():
                for post in self.at(rank):
                    if rank in free or self._completes(rank, post):
                        post.done = moved = True
                        pending.remove(post)

    def at(self, rank: int) -> list[_Post]:
        """Return the calls in which a rank's threads are; those of an NCCL group are one."""
        found: list[_Post] = []
        held: set[int] = set()
        for post in self.pending.get(rank, ()):
            before = [one for one in found if _is_one(one.call.thread, post.call.thread)]
            group = post.call.group
            if all(group is not None and one.call.group == group for one in before):
                found.append(post)
            else:
                held.add(post.call.thread)
            if held >= self._threads_of[rank]:
                break
        return found

    def unfit(self) -> set[int]:
        """Return the ranks in a call that does not fit that of a peer."""
        return {
            rank
            for rank in self.pending
            for post in self.at(rank)
            for member in self.job.run.communicators[post.call.comm].ranks
            if (theirs := self._found.get((member, *post.key)))
            and not _fits(post.call, theirs.call)
        }

    def _number(self, rank: int) -> None:
        run, made = self.job.run, Counter[tuple[str, str, int]]()
        own = [replace(post) for post in self.job.posts[rank]]
        own.sort(key=lambda post: post.place)
        for post in own:
            call, members = post.call, run.communicators[post.call.comm].ranks
            is_transfer = call.op in _TRANSFERS
            other = members[call.peer] if is_transfer and call.peer is not None else -1
            kind = (call.comm, call.op if is_transfer else "", other)
            made[kind] += 1
            lost = 0 if is_transfer else run.by_rank[rank].logs[call.comm].first - 1
            post.key, post.done = (*kind, made[kind] + lost), call.state is State.COMPLETED
            self._found[(rank, *post.key)] = post
            self._threads.setdefault((rank, call.comm), set()).add(call.thread)
        passed: set[tuple[str, int]] = set()
        for post in reversed(own):  # NCCL carries out the calls on a communicator in order
            where = post.call.comm, post.call.thread
            post.done |= where in passed
            if post.done and "nccl" in run.communicators[post.call.comm].backend:
                passed.add(where)
        self.pending[rank] = [post for post in own if not post.done]

    def _completes(self, rank: int, post: _Post) -> bool:
        comm, kind, other, number = post.key
        if self._ended_with(rank, post):
            return False
        members = self.job.run.communicators[comm].ranks
        if not kind:
            return all(self._meets(one, post, post.key) for one in members if one != rank)
        if other >= 0:
            return self._meets(other, post, (comm, _TRANSFERS[kind], rank, number))
        return any(
            self._meets(one, post, (comm, _TRANSFERS[kind], rank, each))
            for one in members
            for each in range(1, number + 1)
            if one != rank
        )

    def _ended_with(self, rank: int, post: _Post) -> bool:
        """Return whether a call ended with the process of its rank: on NCCL, kernels do."""
        backend = self.job.run.communicators[post.call.comm].backend
        return rank in self.job.ended and "nccl" in backend

    def _meets(self, rank: int, post: _Post, key: tuple[str, str, int, int]) -> bool:
        """Return whether a rank comes to a call, or to the other end of a transfer."""
        theirs = self._found.get((rank, *key))
        if rank in self._free or (rank in self._comes and theirs is None):
            return True
        if theirs is not None:
            came = theirs.done or theirs in self.at(rank) or rank in self._comes
            came = came and (theirs.done or not self._ended_with(rank, theirs))
            return came and _fits(post.call, theirs.call)
        known = self.job.run.by_rank.get(rank)
        log = None if known is None or key[1] else known.logs.get(key[0])
        if log is not None and key[3] < log.first:
            return True  # it came, and what it posted is overwritten
        due = self._threads.get((rank, key[0]), {_ANY})
        able = [one for one in self._going.get(rank, ()) if any(_is_one(one, two) for two in due)]
        inside = [front.call.thread for front in self.at(rank)]
        return bool(able) and not any(_is_one(one, two) for one in able for two in inside)


def _is_one(one: int, other: int) -> bool:
    """Return whether two numbers may be of one thread."""
    return _SEVERAL not in (one, other) and (one == other or _ANY in (one, other))


def _fits(one: Call, other: Call) -> bool:
    """Return whether calls of two ranks complete each other."""
    if one.op in _TRANSFERS:
        pairs = [(one.dtype, other.dtype), (one.numel, other.numel)]
    else:
        names = ("op", "root", "captured", *(("sizes",) if one.op in VECTOR_OPS else ()))
        pairs = [(getattr(one, name), getattr(other, name)) for name in names]
        pairs.append((_size(one), _size(other)))
    return all(left == right or None in (left, right) for left, right in pairs)


def _size(call: Call) -> int | None:
    """Return the bytes in which members have to agree; None where they need not."""
    if call.numel is None or call.sizes is not None:
        return None
    return call.numel * _BYTES.get(call.dtype or "", 4)
