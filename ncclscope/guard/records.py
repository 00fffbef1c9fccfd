"""Compare the recorded calls of two ranks where their guard cursors differ.

This is the only part of tracing that reads rings. It is loaded with the guard, which is optional,
and runs when a rank is about to post a call that its peers have not posted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ncclscope.engine.sequences.groups import part_outside_groups
from ncclscope.engine.sequences.mixed_records import lacks_reduction, reduced_logs
from ncclscope.errors import DamagedFileError
from ncclscope.model import Call, Communicator
from ncclscope.model.sites import read as read_sites
from ncclscope.readers.ring.ranks import RingLog, log_of
from ncclscope.ring import layout
from ncclscope.ring.image import RingImage
from ncclscope.ring.reader import RingFile
from ncclscope.untrusted import integer
from ncclscope.wording.names import call_text, ranks_text, site_text

if TYPE_CHECKING:
    from ncclscope.tracing.tracer import Comm

NEAR = 256
"""Newest records of a ring that are searched for a call first."""


class RecordedComm(NamedTuple):
    """Location of a rank's records of a communicator.

    Attributes:
        path: The rank's ring.
        inode: Device and inode of that file: its path may name another file by now.
        number: The communicator's number in it.
        rank: The rank.
    """

    path: Path
    inode: tuple[int, int]
    number: int
    rank: int


@dataclass(frozen=True)
class RecordedDivergence:
    """The divergence of a communicator's sequences, as one of its ranks sees it.

    Attributes:
        label: The communicator's name.
        seq: First call that differs.
        posted: Each rank's call there with its call site, as text.
        text: The divergence in one or two lines.
    """

    label: str
    seq: int
    posted: dict[int, str]
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return the divergence in a form for JSON."""
        posted = {str(rank): text for rank, text in self.posted.items()}
        return {"comm": self.label, "seq": self.seq, "posted": posted}


def judge(
    own: RecordedComm,
    other: RecordedComm,
    key: str,
    seq: int,
    hashes_at: Callable[[int], Mapping[int, int]],
) -> RecordedDivergence | None:
    """Compare the calls of a rank that is about to post one with those of a peer.

    Reading two rings takes a few milliseconds, and each further ring adds to them while the
    program waits. The other peers' positions are therefore taken from their cursors.

    Args:
        own: The records of the rank that is about to post.
        other: The records of a peer.
        key: The communicator's key.
        seq: Number of the call.
        hashes_at: Return the running hashes after a call, by rank, of the ranks known to have
            posted it.

    Returns:
        None where the same calls were posted, perhaps in another order inside a group, or where
        the required records have been overwritten.
    """
    found = [_read(place, key) for place in (own, other)]
    if found[0] is None or found[1] is None:
        return None
    (here, mine), (there, theirs) = found[0], found[1]
    if here == there:
        there = -2  # neither ring names its rank
    comm = mine.communicator
    logs = reduced_logs(comm, {here: mine, there: theirs})
    if logs is None:
        return None
    divergence, _ = part_outside_groups(comm, logs)
    if (
        divergence is None
        or divergence.seq > seq
        or not divergence.exact
        or len(divergence.groups) < 2
    ):
        return None
    number = divergence.seq
    sides = [(here, log.fingerprint(number), log.call(number)) for here, log in logs.items()]
    return _divergence(comm, number, sides, hashes_at(number))


def judge_newest(
    own: RecordedComm,
    other: RecordedComm,
    comm: Comm,
    seq: int,
    hashes_at: Callable[[int], Mapping[int, int]],
) -> RecordedDivergence | None:
    """Compare two ranks where all calls before this one are known to agree.

    The differing call is then this one, and its two records are among the newest of their rings.

    Args:
        own: The records of the rank that is about to post.
        other: The records of the peer.
        comm: The communicator.
        seq: Number of the call.
        hashes_at: As for :func:`judge`.

    Returns:
        None where :func:`judge` has to decide: inside of a group, far from the newest record, or
        where only NCCL's profiler plugin recorded a call.
    """
    sides = []
    for place in (own, other):
        found = _newest(place, seq)
        if found is None or found[1].group or lacks_reduction(found[1]):
            return None
        running, call = found
        sides.append((place.rank, running, call))
    if sides[0][1] == sides[1][1]:
        return None
    return _divergence(comm, seq, sides, hashes_at(seq))


def _divergence(
    comm: Comm | Communicator,
    seq: int,
    sides: Sequence[tuple[int, int, Call]],
    hashes: Mapping[int, int],
) -> RecordedDivergence:
    name = comm.label or comm.key
    posted, texts = {}, []
    for rank, running, call in sides:
        here = {rank, *(other for other, hash in hashes.items() if hash == running)}
        here = {other for other in here if other >= 0} or here
        what = call_text(call.with_root(comm.ranks)) + site_text(call)
        posted.update(dict.fromkeys(here, what))
        texts.append(f"{ranks_text(here)} posted {what}")
    text = f"the sequences on {name} diverge at call {seq}: {'; '.join(texts)}"
    return RecordedDivergence(name, seq, dict(sorted(posted.items())), text)


def _newest(place: RecordedComm, seq: int) -> tuple[int, Call] | None:
    """Return the running hash after a call, and the call, where it is among the newest."""
    try:
        ring = RingImage(place.path, owned=True)
    except (DamagedFileError, OSError):
        return None
    with ring:
        if ring.inode != place.inode:
            return None
        head = _head(ring)
        records = ring.read_stable(max(head - NEAR, 0), head)
        mine = records[
            (records["comm"] == place.number) & (records["seq"] == seq) & (records["fixed"] == 0)
        ]
        if len(mine) != 1:
            return None
        ring.texts = ring.read_texts()
        return int(mine[0]["hash"]), _call(ring, mine[0], seq)


def _head(ring: RingImage) -> int:
    """Find the end of a ring by bisection: records are stored in the order of their creation."""
    low, high = 0, ring.capacity
    first = _begin(ring, 0)
    if not first:
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        if _begin(ring, middle) == first + middle:
            low = middle
        else:
            high = middle
    return first + low


def _begin(ring: RingImage, slot: int) -> int:
    offset = ring.geometry.records + slot * layout.RECORD.size
    return ring.read_u64(offset)


def _call(ring: RingImage, record: Any, seq: int) -> Call:
    ndim, root = int(record["ndim"]), int(record["root"])
    places = read_sites(ring.text(layout.KIND_SITE, int(record["site"])))
    return Call(
        op=ring.text(layout.KIND_OP, int(record["op"])) or "?",
        comm="",
        seq=seq,
        position=int(record["begin"]) - 1,
        dtype=ring.text(layout.KIND_DTYPE, int(record["dtype"]) % layout.NO_ROOM),
        redop=ring.text(layout.KIND_REDOP, int(record["redop"]) % layout.NO_ROOM),
        root=root if root >= 0 else None,
        numel=int(record["numel"]) or None,
        shape=tuple(record["shape"][:ndim].tolist()) if ndim <= 4 else None,
        site=places.site,
        user_site=places.user,
        group=int(record["group"]) or None,
    )


def _read(place: RecordedComm, key: str) -> tuple[int, RingLog] | None:
    try:
        ring = RingFile(place.path, owned=True)
        log = log_of(ring, key) if ring.inode == place.inode else None
    except (DamagedFileError, OSError):
        return None
    rank = integer(ring.about.get("rank"))
    return None if log is None else (-1 if rank is None else rank, log)


def rehearse(own: RecordedComm, other: RecordedComm, comm: Comm) -> None:
    """Run both comparisons once, so that caches are warm when a real one is needed.

    Args:
        own: This rank's records of the communicator.
        other: Any records of it; this rank's serve as well.
        comm: The communicator.
    """
    judge(own, other, comm.key, 1, lambda _: {})
    judge_newest(own, other, comm, comm.channel.seq, lambda _: {})


def hashes(place: RecordedComm, key: str, seq: int, count: int) -> dict[int, int]:
    """Return the running hashes of kept calls in ``[seq, seq + count)``, by call number.

    Args:
        place: The records of a rank.
        key: The communicator's key.
        seq: Number of the first call.
        count: Number of calls.
    """
    try:
        ring = RingFile(place.path, owned=True)
        log = log_of(ring, key) if ring.inode == place.inode else None
        if log is None:
            return {}
        numbers = range(max(seq, log.first), min(seq + count, log.calls + 1))
        return {number: log.fingerprint(number) for number in numbers}
    except (DamagedFileError, OSError, IndexError):
        return {}
