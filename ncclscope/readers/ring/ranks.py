"""Read a ring into a rank."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ncclscope import procfs
from ncclscope.errors import DamagedFileError
from ncclscope.model import Call, Communicator, Rank
from ncclscope.model.device import DeviceProgress
from ncclscope.model.metadata import DAMAGED, UNCHECKED, read_about
from ncclscope.model.signature import BASE
from ncclscope.model.text import plural
from ncclscope.readers.ring.calls import decode, is_signable, short_sites
from ncclscope.readers.ring.device import device_progress, with_states
from ncclscope.readers.ring.distinct import Distinct, distinct_records
from ncclscope.readers.ring.profiler import profiler_notes
from ncclscope.readers.ring.records import CommRecords
from ncclscope.readers.ring.replays import Expansion, RingGraphs
from ncclscope.readers.ring.trails import RingSteps, activities, transfers
from ncclscope.readers.ring.transfers import engine_transfers, lost_transfers
from ncclscope.ring import layout
from ncclscope.ring.image import Records, joined
from ncclscope.ring.reader import RingFile, hash_before
from ncclscope.untrusted import (
    MAX_RANKS,
    integer,
    integers,
    number,
    parse_object,
    printable,
    rank_number,
    text,
    texts,
)

_LIVELY_NS = 60_000_000_000
"""A process with a heartbeat in the last minute may still write."""

_MOST_PIDS = 1 << 22
_MOST_MEMBERS = 4 * MAX_RANKS
"""Limit on all communicators' members together: a range of them takes few bytes in the file."""
_KEPT = 1 << 9


def read_ring(path: Path) -> Rank:
    """Read a ring into a rank, whose calls are decoded on demand.

    Raises:
        DamagedFileError: The file is not a ring or contradicts itself.
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
    # How many calls were made there is not known, so no count of them may be compared.
    known = {index: comm for index, comm in found.items() if index not in ring.uncertain}
    device = device_progress(ring)
    notes = profiler_notes(ring, found)
    unseen = [
        *_damage(ring, found),
        *_without_room(about),
        *notes.unseen,
        *lost_transfers(ring),
    ]
    details = _with_unseen(read_about(about), unseen)
    if not ring.geometry.checked:
        details[UNCHECKED] = True
    if alive and procfs.is_stopped(pid):
        details["stopped"] = True
    if alive and procfs.waits_for_input(pid):
        details["waits_for_input"] = True
    return Rank(
        rank=rank_number(about.get("rank")),
        world_size=number(about.get("world_size")),
        host=host,
        pid=pid,
        gpu=integer(about.get("gpu")),
        labels=texts(about.get("labels")),
        logs={
            communicator.key: RingLog(
                ring, index, communicator, device.get(index), late=index in notes.late
            )
            for index, communicator in known.items()
            if index in ring.states
        },
        p2p=transfers(ring, known),
        records=ring.head - ring.lost,
        lost=ring.lost,
        started_ns=ring.started_ns(about) or None,
        last_seen_ns=ring.heartbeat_ns or None,
        exited=exited,
        alive=alive,
        steps=RingSteps(ring),
        activities=activities(ring),
        graphs=RingGraphs(ring, {index: comm.key for index, comm in found.items()}),
        device={found[index].key: pending for index, pending in device.items() if index in found},
        carried=notes.carried,
        places=notes.places,
        before=notes.before,
        transfers=engine_transfers(ring),
        source=str(path),
        details=details,
        again=partial(read_ring, path) if ring.live else None,
    )


def _with_unseen(details: dict[str, Any], entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return details with further entries of what is not recorded."""
    if not entries:
        return details
    return {**details, "unseen": [*(details.get("unseen") or ()), *entries]}


def _damage(ring: RingFile, found: Mapping[int, Communicator]) -> list[dict[str, Any]]:
    """Return entries for what does not fit its check, and for communicators without description.

    A process that exited normally was not killed while it wrote a record.
    """
    lost = sum(
        1 for index, state in ring.states.items() if index not in found and (state.seq or state.p2p)
    )
    damage = []
    if lost:
        where = plural(lost, "communicator")
        damage.append(f"the calls on {where} cannot be read: the description is damaged")
    if ring.exited_ns and ring.is_torn:
        damage.append("the record of its last call is damaged")
    if ring.graphs_used:
        _ = ring.graphs  # reading them finds their damage
    if ring.damage:
        parts = ", ".join(sorted(ring.damage))
        damage.append(f"its ring is damaged: {parts} do not fit their checks")
    return [{"kind": DAMAGED, "text": text, "comms": [], "since_ns": None} for text in damage]


def _without_room(about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return an entry for communicators that found no room in the ring."""
    found = texts(about.get("unrecorded"))
    if not found:
        return []
    names = ", ".join(label or key for key, label in found.items())
    text = f"the ring has no room for all communicators; among those left out: {names}"
    return [{"kind": "communicators", "text": text, "comms": [], "since_ns": None}]


class RingLog:
    """A :class:`~ncclscope.model.CallLog` of a ring, decoded on demand.

    Args:
        ring: The ring.
        number: Number of the communicator in it.
        communicator: The communicator.
        device: Progress on the GPU, if it was counted.
        late: Whether earlier calls were made before recording began.
    """

    def __init__(
        self,
        ring: RingFile,
        number: int,
        communicator: Communicator,
        device: DeviceProgress | None = None,
        *,
        late: bool = False,
    ) -> None:
        self.communicator = communicator
        self.anchored = self.rooted = not late
        self._device = device
        self._ring = ring
        self._number = number
        self._own = CommRecords(ring, number)
        self._state = ring.states[number]
        self._beginning: tuple[int, int] | None = None
        self._newest: Call | None = None

    @property
    def ops(self) -> frozenset[str]:
        """Operations that the process has enqueued, on any communicator."""
        return frozenset(map(printable, self._ring.texts.get(layout.KIND_OP, ())))

    @property
    def calls(self) -> int:
        """Calls made, kept or not."""
        return self._state.seq

    @property
    def first(self) -> int:
        """Sequence number of the first kept call; ``calls + 1`` if none is kept."""
        return self._begin()[0]

    def fingerprint(self, seq: int) -> int:
        """Return the running hash after ``seq`` calls."""
        if seq == self._state.seq:
            return self._state.hash
        if seq == 0:
            return 0
        marked = self._own.mark(seq)
        if marked is not None:
            return marked
        first, before = self._begin()
        if seq == first - 1:
            return before
        record = self._records(seq, seq + 1)
        after, last = int(record["hash"][0]), int(record["seq"][0])
        return after if seq == last else self._inside(record, seq)

    def call(self, seq: int) -> Call:
        """Return call number ``seq``; the newest is kept, since it is asked for again and again."""
        if seq == self.calls and self._newest is not None:
            return self._newest
        if not self.first <= seq <= self.calls:
            raise IndexError(f"call {seq} on {self.communicator.label} has been overwritten")
        found = self.span(seq, seq + 1)[0]
        if seq == self.calls:
            self._newest = found
        return found

    def span(self, start: int, stop: int) -> Sequence[Call]:
        """Return those of calls ``start`` to ``stop - 1`` that are kept."""
        records = self._records(start, stop)
        # From the hashes, not the fields: the fields may have changed after the call was signed.
        signatures = self._signatures(records)
        if self._ring.scale > 1:
            return self._expanded(records, start, stop).calls(signatures)
        records = with_states(self._device, records)
        return decode(self._ring, records, self.communicator.key, signatures)

    def signatures(self, start: int, stop: int) -> Sequence[int]:
        """Return the signatures of calls ``start`` to ``stop - 1``, derived from their hashes."""
        records = self._records(start, stop)
        signatures = self._signatures(records)
        if self._ring.scale > 1:
            return self._expanded(records, start, stop).signatures(signatures)
        return signatures

    def distinct(self, start: int, stop: int) -> Distinct:
        """Group those of calls ``start`` to ``stop - 1`` that are kept into kinds."""
        key = self.communicator.key
        found = self._records(start, stop)
        if self._ring.scale > 1:
            return self._expanded(found, start, stop).distinct()
        found = with_states(self._device, found)
        return distinct_records(found, lambda records: decode(self._ring, records, key))

    def sites(self, start: int, stop: int) -> Sequence[str | None]:
        """Return the call sites of calls ``start`` to ``stop - 1``."""
        records = self._records(start, stop)
        if self._ring.scale > 1:
            return self._expanded(records, start, stop).sites()
        return short_sites(self._ring, records["site"])

    def positions(self, start: int, stop: int) -> Sequence[int]:
        """Return the positions of calls ``start`` to ``stop - 1`` in the rank's stream."""
        records = self._records(start, stop)
        if self._ring.scale > 1:
            return self._expanded(records, start, stop).positions()
        begins: list[int] = (records["begin"] - np.uint64(1)).tolist()
        return begins

    def threads(self, start: int, stop: int) -> Sequence[int]:
        """Return the threads that posted calls ``start`` to ``stop - 1``; 0: not known."""
        records = self._records(start, stop)
        if self._ring.scale > 1:
            return self._expanded(records, start, stop).threads()
        threads: list[int] = (records["flags"] >> layout.THREAD_SHIFT).tolist()
        return threads

    def _expanded(self, records: Records, start: int, stop: int) -> Expansion:
        start, stop = max(start, self.first), min(stop, self.calls + 1)
        key = self.communicator.key
        stop = max(start, stop)
        return Expansion(self._ring, self._number, key, records, start, stop, self._device)

    def _inside(self, record: Records, seq: int) -> int:
        """Return the running hash after a call inside a replay, or before its first call."""
        table = self._ring.graphs.table(self._number)
        (row,) = table.rows(record).tolist()
        done = seq + 1 - int(self._own.firsts(record)[0])
        return table.inside(row, int(record["hash"][0]), done)

    def _signatures(self, records: Records) -> list[int]:
        if not len(records):
            return []
        hashes = records["hash"]
        before = np.empty_like(hashes)
        before[1:] = hashes[:-1]
        before[0] = self.fingerprint(int(self._own.firsts(records[:1])[0]) - 1)
        signatures: list[int] = (hashes - before * np.uint64(BASE)).tolist()
        return signatures

    def _begin(self) -> tuple[int, int]:
        """Return the sequence number of the first kept call, and the running hash before it."""
        if self._beginning is None:
            # In a ring that is exactly full, the writer may be overwriting the first record.
            ring = self._ring
            untouched = (
                ring.oldest == 0 and ring.head < ring.capacity and self._number not in ring.since
            )
            self._beginning = (1, 0) if untouched else self._find_first()
        return self._beginning

    def _find_first(self) -> tuple[int, int]:
        """Find the oldest kept call with a known signature, and the running hash before it.

        A signature follows from the hashes before and after a call. The hash before the oldest
        kept call has been overwritten, so its signature is computed from its fields. If they are
        incomplete, the next call is the first.
        """
        oldest = self._own.oldest()
        if not len(oldest) or oldest["seq"][0] > self.calls:
            return self.calls + 1, self._state.hash
        seq, running = int(oldest["seq"][0]), int(oldest["hash"][0])
        first = int(self._own.firsts(oldest)[0])
        if first == 1:
            return 1, 0
        if oldest["fixed"][0] & layout.FIXED_REPLAY:
            known = first <= seq and self._ring.graphs.table(self._number).rows(oldest)[0] >= 0
            return (first, self._inside(oldest, first - 1)) if known else (seq + 1, running)
        if is_signable(self._ring, oldest):
            return seq, hash_before(running, decode(self._ring, oldest, "")[0].sign())
        return seq + 1, running

    def _records(self, start: int, stop: int) -> Records:
        """Return the raw records of those of calls ``start`` to ``stop - 1`` that are kept.

        Raises:
            DamagedFileError: A record is missing in the file.
        """
        start, stop = max(start, self.first), min(stop, self.calls + 1)
        parts = []
        seq = start
        while seq < stop:
            found = self._own.around(seq, self.first, self.calls)
            lasts, firsts = found["seq"], self._own.firsts(found)
            low = int(np.searchsorted(lasts, np.uint64(seq)))
            high = int(np.searchsorted(firsts, np.uint64(stop)))
            # Records must be consecutive, and the first must not be later than asked for.
            if (
                high <= low
                or firsts[low] > seq
                or np.any(firsts[low + 1 : high] != lasts[low : high - 1] + np.uint64(1))
            ):
                raise DamagedFileError(
                    f"{self._ring.path} is damaged: call {seq} of "
                    f"{self.communicator.label or self.communicator.key} is missing",
                    path=str(self._ring.path),
                )
            parts.append(found[low:high])
            seq = int(lasts[high - 1]) + 1
        return self._hashed(joined(parts))

    def _hashed(self, records: Records) -> Records:
        """Return records with the running hash of blank ones, which follows from the next record.

        Raises:
            DamagedFileError: The next record does not show it.
        """
        blank = np.flatnonzero((records["op"] == 0) & (records["hash"] == 0))
        if not len(blank):
            return records
        records = records.copy()
        for place in blank.tolist():
            seq = int(records["seq"][place]) + 1
            found = self._own.around(seq, self.first, self.calls)
            following = found[found["seq"] == seq]
            if not len(following) or not is_signable(self._ring, following):
                raise DamagedFileError(
                    f"{self._ring.path} is damaged: call {seq - 1} of "
                    f"{self.communicator.label or self.communicator.key} is missing",
                    path=str(self._ring.path),
                )
            (call,) = decode(self._ring, following, "")
            records["hash"][place] = hash_before(int(following["hash"][0]), call.sign())
        return records


def log_of(ring: RingFile, key: str) -> RingLog | None:
    """Return the log of a communicator; None if the ring has none."""
    for index, comm in communicators(ring).items():
        if comm.key == key and index in ring.states:
            return RingLog(ring, index, comm)
    return None


def communicators(ring: RingFile) -> dict[int, Communicator]:
    """Return the communicators by their number in the ring, without damaged ones.

    Raises:
        DamagedFileError: They have more members together than is plausible.
    """
    changes: dict[int, list[str]] = {}
    for spelled in ring.texts.get(layout.KIND_COMM_UPDATE, []):
        changes.setdefault(number(parse_object(spelled).get("comm")), []).append(spelled)
    found: dict[int, Communicator] = {}
    members = 0
    for index, spelled in enumerate(ring.texts.get(layout.KIND_COMM, []), 1):
        comm = _communicator(spelled, *changes.get(index, ()))
        if comm is None:
            continue
        members += len(comm.ranks)
        if members > _MOST_MEMBERS:
            raise DamagedFileError(
                f"{ring.path} is too large, read so far: {len(found)} communicators, with the "
                f"next one {members} members; its rank is left out"
            )
        found[index] = comm
    return found


@lru_cache(maxsize=_KEPT)
def _communicator(spelled: str, *changes: str) -> Communicator | None:
    """Parse a communicator; cached, since all its members write the same description."""
    about = parse_object(spelled)
    key = text(about.get("key"))
    if key is None:
        return None
    for change in changes:
        changed = parse_object(change)
        about.update({name: changed[name] for name in changed if name not in ("comm", "key")})
    return Communicator(
        key=key,
        label=text(about.get("label")) or "",
        ranks=integers(about.get("ranks"), MAX_RANKS) or _range(about.get("range")),
        backend=text(about.get("backend")) or "",
        created_at=text(about.get("created_at")),
        timeout=number(about.get("timeout")),
        hash=text(about.get("comm_hash")) or "",
        size=number(about.get("size")),
    )


def _range(value: Any) -> tuple[int, ...]:
    """Return the ranks of a communicator written as [start, stop, step]; empty if invalid."""
    ends = integers(value)
    if ends is None or len(ends) != 3 or not ends[2]:
        return ()
    try:
        ranks = range(*ends)
        return tuple(ranks) if len(ranks) <= MAX_RANKS else ()
    except OverflowError:
        return ()


def is_alive(about: Mapping[str, Any], host: str, pid: int) -> bool | None:
    """Return whether a process runs; None if this machine cannot know.

    Args:
        about: Process description of the ring: boot id, pid namespace, start time.
        host: Host name in that description.
        pid: Pid in that description.
    """
    if not about.get("boot_id") or host != socket.gethostname():
        return None
    if about["boot_id"] != procfs.boot_id():
        return False
    if about.get("pid_namespace") not in (None, procfs.pid_namespace()):
        return None  # in another container, where this pid is another process
    ticks = procfs.start_ticks(pid)
    return bool(ticks) and ticks == about.get("start_ticks")
