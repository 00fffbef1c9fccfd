"""Rings -> ranks."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ncclscope import procfs
from ncclscope.errors import DamagedFileError
from ncclscope.model import Call, Communicator, Rank
from ncclscope.model.device import DeviceProgress
from ncclscope.model.metadata import DAMAGED, read_about
from ncclscope.model.signature import BASE
from ncclscope.model.sites import read as read_sites
from ncclscope.readers.ring.calls import decode, is_signable
from ncclscope.readers.ring.device import device_progress, with_states
from ncclscope.readers.ring.distinct import Distinct, distinct_records
from ncclscope.readers.ring.records import CommRecords
from ncclscope.readers.ring.replays import Expansion, RingGraphs
from ncclscope.readers.ring.trails import RingSteps, activities, transfers
from ncclscope.ring import layout
from ncclscope.ring.image import Records, joined
from ncclscope.ring.reader import RingFile, hash_before
from ncclscope.untrusted import MAX_RANKS, integer, integers, number, parse, text, texts

__all__ = ["RingLog", "communicators", "is_alive", "read_ring"]

_LIVELY_NS = 60_000_000_000
"""A process that was heard of less than a minute ago may still write."""

_MOST_PIDS = 1 << 22
_MOST_MEMBERS = 4 * MAX_RANKS
"""Members of all communicators of a ring together: a range of them takes no room in the file."""
_KEPT = 1 << 9


def read_ring(path: Path) -> Rank:
    """Read what a ring says of its process; its calls are read when they are asked for.

    Raises:
        DamagedFileError: The file is no ring or contradicts itself.
        OSError: It cannot be read.
    """
    ring = RingFile(path)
    about = ring.about
    host, pid = text(about.get("host")) or "", number(about.get("pid"), _MOST_PIDS)
    alive = is_alive(about, host, pid)
    exited = ring.exited_ns > 0
    age = abs(time.time_ns() - ring.heartbeat_ns)
    ring.live = alive is not False and not exited and age < _LIVELY_NS
    try:
        found = communicators(ring)
    except DamagedFileError:
        ring.close()
        raise
    device = device_progress(ring)
    details = _with_damage(read_about(about), ring, found)
    if alive and procfs.is_stopped(pid):
        details["stopped"] = True
    return Rank(
        rank=_rank(about.get("rank")),
        world_size=number(about.get("world_size")),
        host=host,
        pid=pid,
        gpu=integer(about.get("gpu")),
        labels=texts(about.get("labels")),
        logs={
            communicator.key: RingLog(ring, index, communicator, device.get(index))
            for index, communicator in found.items()
            if index in ring.states
        },
        p2p=transfers(ring, found),
        records=ring.head - ring.lost,
        lost=ring.lost,
        started_ns=integer(about.get("started_ns")) or None,
        last_seen_ns=ring.heartbeat_ns or None,
        exited=exited,
        alive=alive,
        steps=RingSteps(ring),
        activities=activities(ring),
        graphs=RingGraphs(ring, {index: comm.key for index, comm in found.items()}),
        device={found[index].key: pending for index, pending in device.items() if index in found},
        source=str(path),
        details=details,
    )


def _with_damage(
    details: dict[str, Any], ring: RingFile, found: Mapping[int, Communicator]
) -> dict[str, Any]:
    """Return details that say on how many communicators the calls cannot be read."""
    lost = sum(
        1 for index, state in ring.states.items() if index not in found and (state.seq or state.p2p)
    )
    if not lost:
        return details
    where = "1 communicator" if lost == 1 else f"{lost} communicators"
    said = f"the calls on {where} cannot be read, whose description is damaged"
    entry: dict[str, Any] = {"kind": DAMAGED, "text": said, "comms": [], "since_ns": None}
    return {**details, "unseen": [*(details.get("unseen") or ()), entry]}


class RingLog:
    """A :class:`~ncclscope.model.CallLog` that reads only what is asked for."""

    anchored = True
    rooted = True

    def __init__(
        self,
        ring: RingFile,
        number: int,
        communicator: Communicator,
        device: DeviceProgress | None = None,
    ) -> None:
        self.communicator = communicator
        self._device = device
        self._ring = ring
        self._number = number
        self._strand = CommRecords(ring, number)
        self._state = ring.states[number]
        self._beginning: tuple[int, int] | None = None

    @property
    def ops(self) -> frozenset[str]:
        """Operations that the process has posted, on any communicator."""
        return frozenset(self._ring.texts.get(layout.KIND_OP, ()))

    @property
    def calls(self) -> int:
        """Calls made, kept or not."""
        return self._state.seq

    @property
    def first(self) -> int:
        """Sequence number of the first call that is kept; ``calls + 1`` when none is."""
        return self._begin()[0]

    def fingerprint(self, seq: int) -> int:
        """Return running hash after ``seq`` calls."""
        if seq == self._state.seq:
            return self._state.hash
        if seq == 0:
            return 0
        marked = self._strand.mark(seq)
        if marked is not None:
            return marked
        first, before = self._begin()
        if seq == first - 1:
            return before
        record = self._records(seq, seq + 1)
        after, last = int(record["hash"][0]), int(record["seq"][0])
        return after if seq == last else self._inside(record, seq)

    def call(self, seq: int) -> Call:
        """Return the call number ``seq``."""
        if not self.first <= seq <= self.calls:
            raise IndexError(f"call {seq} on {self.communicator.label} is not kept")
        return self.span(seq, seq + 1)[0]

    def span(self, start: int, stop: int) -> Sequence[Call]:
        """Calls ``start`` to ``stop - 1``, as far as they are kept."""
        records = self._records(start, stop)
        # Not from the fields: what was signed may have been overwritten since, the hash was not.
        signatures = self._signatures(records)
        if self._ring.scale > 1:
            return self._expanded(records, start, stop).calls(signatures)
        records = with_states(self._device, records)
        return decode(self._ring, records, self.communicator.key, signatures)

    def signatures(self, start: int, stop: int) -> Sequence[int]:
        """Return signatures of calls ``start`` to ``stop - 1``, from the hashes at both ends."""
        records = self._records(start, stop)
        signatures = self._signatures(records)
        if self._ring.scale > 1:
            return self._expanded(records, start, stop).signatures(signatures)
        return signatures

    def distinct(self, start: int, stop: int) -> Distinct:
        """Calls ``start`` to ``stop - 1``, as far as they are kept, by what sets them apart."""
        key = self.communicator.key
        found = self._records(start, stop)
        if self._ring.scale > 1:
            return self._expanded(found, start, stop).distinct()
        found = with_states(self._device, found)
        return distinct_records(found, lambda records: decode(self._ring, records, key))

    def sites(self, start: int, stop: int) -> Sequence[str | None]:
        """Return where calls ``start`` to ``stop - 1`` came from."""
        records = self._records(start, stop)
        if self._ring.scale > 1:
            return self._expanded(records, start, stop).sites()
        numbers, places = np.unique(records["site"], return_inverse=True)
        texts = [self._ring.text(layout.KIND_SITE, number) for number in numbers.tolist()]
        short = [read_sites(text).site for text in texts]
        return [short[place] for place in places.tolist()]

    def positions(self, start: int, stop: int) -> Sequence[int]:
        """Return numbers of calls ``start`` to ``stop - 1`` in the rank's stream."""
        records = self._records(start, stop)
        if self._ring.scale > 1:
            return self._expanded(records, start, stop).positions()
        begins: list[int] = (records["begin"] - np.uint64(1)).tolist()
        return begins

    def _expanded(self, records: Records, start: int, stop: int) -> Expansion:
        start, stop = max(start, self.first), min(stop, self._end)
        key = self.communicator.key
        stop = max(start, stop)
        return Expansion(self._ring, self._number, key, records, start, stop, self._device)

    def _inside(self, record: Records, seq: int) -> int:
        """Return running hash after a call in the middle of a replay, or before the first of it."""
        table = self._ring.graphs.table(self._number)
        (row,) = table.rows(record).tolist()
        done = seq + 1 - int(self._strand.firsts(record)[0])
        return table.inside(row, int(record["hash"][0]), done)

    def _signatures(self, records: Records) -> list[int]:
        if not len(records):
            return []
        hashes = records["hash"]
        before = np.empty_like(hashes)
        before[1:] = hashes[:-1]
        before[0] = self.fingerprint(int(self._strand.firsts(records[:1])[0]) - 1)
        signatures: list[int] = (hashes - before * np.uint64(BASE)).tolist()
        return signatures

    def _begin(self) -> tuple[int, int]:
        """Return the number of the first call that is kept, and the running hash before it."""
        if self._beginning is None:
            # Of a ring that is full to the last slot, the first may be torn.
            ring = self._ring
            untouched = ring.oldest == 0 and ring.head < ring.geometry.capacity
            self._beginning = (1, 0) if untouched else self._find_first()
        return self._beginning

    def _find_first(self) -> tuple[int, int]:
        """Find the oldest call that is kept and whose signature is known.

        A signature follows from the hashes before and after a call. Of the oldest that is
        kept, the hash before it has been overwritten: if it cannot be signed again either,
        it serves the one after it.
        """
        oldest = self._strand.oldest()
        if not len(oldest) or oldest["seq"][0] > self.calls:
            return self._end, self._state.hash
        seq, running = int(oldest["seq"][0]), int(oldest["hash"][0])
        first = int(self._strand.firsts(oldest)[0])
        if first == 1:
            return 1, 0
        if oldest["fixed"][0] & layout.FIXED_REPLAY:
            known = first <= seq and self._ring.graphs.table(self._number).rows(oldest)[0] >= 0
            return (first, self._inside(oldest, first - 1)) if known else (seq + 1, running)
        if is_signable(self._ring, oldest):
            return seq, hash_before(running, decode(self._ring, oldest, "")[0].sign())
        return seq + 1, running

    @property
    def _end(self) -> int:
        return self._state.seq + 1

    def _records(self, start: int, stop: int) -> Records:
        """Return the raw records of calls that are kept.

        Raises:
            DamagedFileError: One of them is not where it should be.
        """
        start, stop = max(start, self.first), min(stop, self._end)
        parts = []
        seq = start
        while seq < stop:
            found = self._strand.around(seq, self.first, self.calls)
            lasts, firsts = found["seq"], self._strand.firsts(found)
            low = int(np.searchsorted(lasts, np.uint64(seq)))
            high = int(np.searchsorted(firsts, np.uint64(stop)))
            # One goes on where the other ends, and the first is not too far on.
            if (
                high <= low
                or firsts[low] > seq
                or np.any(firsts[low + 1 : high] != lasts[low : high - 1] + np.uint64(1))
            ):
                raise DamagedFileError(
                    f"{self._ring.path} is damaged: call {seq} of "
                    f"{self.communicator.label or self.communicator.key} is not in its place",
                    path=str(self._ring.path),
                )
            parts.append(found[low:high])
            seq = int(lasts[high - 1]) + 1
        return joined(parts)


def communicators(ring: RingFile) -> dict[int, Communicator]:
    """By their number in the file; what cannot be understood is left out.

    Raises:
        DamagedFileError: They have more members together than any job's.
    """
    changes: dict[int, list[str]] = {}
    for spelled in ring.texts.get(layout.KIND_COMM_UPDATE, []):
        changes.setdefault(number(_object(spelled).get("comm")), []).append(spelled)
    found: dict[int, Communicator] = {}
    members = 0
    for index, spelled in enumerate(ring.texts.get(layout.KIND_COMM, []), 1):
        comm = _communicator(spelled, *changes.get(index, ()))
        if comm is None:
            continue
        members += len(comm.ranks)
        if members > _MOST_MEMBERS:
            raise DamagedFileError(
                f"{ring.path} is too large, read so far: {len(found)} communicators, of which the "
                f"next one would make {members} members; its rank is left out"
            )
        found[index] = comm
    return found


@lru_cache(maxsize=_KEPT)
def _communicator(spelled: str, *changes: str) -> Communicator | None:
    """Return what its members describe in the same words, hence once for all of them."""
    about = _object(spelled)
    key = text(about.get("key"))
    if key is None:
        return None
    for change in changes:
        changed = _object(change)
        about.update({name: changed[name] for name in changed if name not in ("comm", "key")})
    return Communicator(
        key=key,
        label=text(about.get("label")) or "",
        ranks=integers(about.get("ranks"), MAX_RANKS) or _range(about.get("range")),
        backend=text(about.get("backend")) or "",
        created_at=text(about.get("created_at")),
    )


def _range(value: Any) -> tuple[int, ...]:
    """Return the ranks of a communicator whose members are at equal distances."""
    ends = integers(value)
    if ends is None or len(ends) != 3 or not ends[2]:
        return ()
    try:
        ranks = range(*ends)
        return tuple(ranks) if len(ranks) <= MAX_RANKS else ()
    except OverflowError:
        return ()


def _object(spelled: str) -> dict[str, Any]:
    try:
        value = parse(spelled)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _rank(value: Any) -> int:
    found = integer(value)
    return found if found is not None and 0 <= found < MAX_RANKS else -1


def is_alive(about: Mapping[str, Any], host: str, pid: int) -> bool | None:
    """Return whether the process runs, where this machine can tell."""
    if not about.get("boot_id") or host != socket.gethostname():
        return None
    if about["boot_id"] != procfs.boot_id():
        return False
    if about.get("pid_namespace") not in (None, procfs.pid_namespace()):
        return None  # a container of its own, in which its pid means another process
    ticks = procfs.start_ticks(pid)
    return bool(ticks) and ticks == about.get("start_ticks")
