"""Follow the progress of a live process through its ring, without decoding its calls.

A cursor holds the number of records and, for each communicator, the sequence number and running
hash of the newest call. A poll of an unchanged ring costs two short reads. New records are read
once, and the last 4096 hashes of a communicator are kept. So the hash at a lagging peer's call
needs no search.
"""

from __future__ import annotations

import contextlib
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ncclscope.errors import DamagedFileError
from ncclscope.model import Call, Communicator, Rank, State
from ncclscope.model.activities import AGAIN_NS
from ncclscope.model.metadata import SERVICE
from ncclscope.model.signature import BARRIERS, MASK
from ncclscope.readers.ring.calls import decode
from ncclscope.readers.ring.device import known_states, read_progress
from ncclscope.readers.ring.ranks import communicators, is_alive, log_of, read_ring
from ncclscope.ring import layout
from ncclscope.ring.image import Records, RingImage, whole
from ncclscope.ring.reader import ChannelState, RingFile, sinces
from ncclscope.untrusted import integer, number, printable_document, rank_number, text

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEPT = 4096
"""Running hashes kept per communicator, a power of two."""
TAIL = 16
"""Newest records that are searched for a pending call."""
_FIRST_READ, _LONGEST_READ = 64, 8192
_MOST_PIDS = 1 << 22
_PLACE = np.uint64(KEPT - 1)
_TEXTS_CHANGED = (layout.HEADER_STRINGS_USED, layout.HEADER_ABOUTS, layout.HEADER_REUSED)
"""Words that change with the texts of a ring."""


@dataclass(frozen=True, slots=True)
class LastCall:
    """The newest call of a process on a communicator.

    Attributes:
        op: The operation.
        shape: Shape of the input; None if unknown.
        time_ns: Host clock in ns since 1970 when the call was enqueued.
        state: Its last known state.
    """

    op: str
    shape: tuple[int, ...] | None
    time_ns: int
    state: State


@dataclass
class CommCursor:
    """Progress of one process on one communicator.

    Attributes:
        comm: The communicator.
        seq: Number of calls made.
        hash: Running hash after them.
        p2p: Number of sends and receives made.
        tells: Whether the backend reports completion: a call on it was seen to complete.
            Barriers do not count, since they complete on the host with every backend.
        last: The newest record; None if it was not seen.
    """

    comm: Communicator
    seq: int = 0
    hash: int = 0
    p2p: int = 0
    tells: bool = False
    last: Any = None
    _hashes: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    _seqs: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    """Sequence numbers of the kept hashes; a graph replay leaves some out."""
    _from: int = 0
    """Sequence number of the first kept hash."""

    def extend(self, seqs: NDArray[np.uint64], hashes: NDArray[np.uint64]) -> None:
        """Add sequence numbers and running hashes of new collectives, `[calls]`, oldest first."""
        if not len(self._hashes):
            self._hashes, self._seqs = np.zeros(KEPT, np.uint64), np.zeros(KEPT, np.uint64)
            self._hashes[self.seq & (KEPT - 1)] = self.hash
            self._seqs[self.seq & (KEPT - 1)] = self.seq
            first = int(seqs[0])
            self._from = self.seq if first == self.seq + 1 else first
        places = seqs[-KEPT:] & _PLACE
        self._hashes[places], self._seqs[places] = hashes[-KEPT:], seqs[-KEPT:]
        self.seq, self.hash = int(seqs[-1]), int(hashes[-1])

    @property
    def in_group(self) -> bool:
        """Whether the newest call is part of an NCCL group, which may have more calls."""
        return self.last is not None and bool(self.last["group"])

    def jump(self, state: ChannelState) -> None:
        """Go to a state without reading the calls in between."""
        self.seq, self.hash, self.p2p = state.seq, state.hash, state.p2p
        self._hashes = np.zeros(0, np.uint64)

    def kept(self, seq: int) -> int | None:
        """Return the running hash after call `seq` if it is kept, else None."""
        if seq == self.seq:
            return self.hash
        if seq == 0:
            return 0
        if max(self._from, self.seq - KEPT + 1) <= seq < self.seq and len(self._hashes):
            place = seq & (KEPT - 1)
            return int(self._hashes[place]) & MASK if self._seqs[place] == seq else None
        return None


class RingCursor:
    """A cursor that follows one ring.

    Args:
        path: The ring.
        now: Seconds by the caller's monotonic clock.
        wall_ns: Nanoseconds since 1970 at the same moment.

    Attributes:
        head: Number of records made.
        comm_cursors: Progress on each communicator, by its key.
        rank: Global rank; -1 if the process has none or has not recorded it yet.
        moved_at: Time of the last change, in seconds by the caller's clock.
        exited: Whether the process recorded a normal exit.
        alive: Whether the process runs; None if this machine cannot know.

    Raises:
        DamagedFileError: The file is not a ring, or not yet.
        OSError: It cannot be opened.
    """

    is_local = True
    """Whether ``path`` and ``pid`` are those of this machine."""

    def __init__(self, path: Path, now: float = 0.0, wall_ns: int = 0) -> None:
        self.path = path
        self.head = 0
        self.comm_cursors: dict[str, CommCursor] = {}
        self._states = b""
        self._tail_at = -1
        self._pending: dict[str, bool] = {}
        self._expected = _FIRST_READ
        self.exited = False
        self.alive: bool | None = None
        self._asked_at = -1.0
        self._open()
        # Progress before the first poll is dated by the newest record.
        newest = int(self._tail["time"][-1]) if len(self._tail) else wall_ns
        self.moved_at = now - max(0.0, (wall_ns - newest) / 1e9)

    def _open(self) -> None:
        """Read the whole state: at the start, or when the writer has lapped this cursor."""
        ring = RingFile(self.path)
        self._ring = ring
        self._base = ring.geometry.records
        self.head = ring.head
        self._used: tuple[int, ...] = ()
        self._names: dict[int, str] = {}
        self._take_texts(ring)
        for index, state in ring.states.items():
            key = self._names.get(index)
            if key is not None:
                self.comm_cursors[key].jump(state)
        self._take_tail()

    # --- the process -------------------------------------------------------------------------

    def _take_about(self, about: dict[str, Any]) -> None:
        self.about = printable_document(about)
        self.rank = rank_number(about.get("rank"))
        self.host = text(about.get("host")) or ""
        self.pid = number(about.get("pid"), _MOST_PIDS)
        self.gpu = integer(about.get("gpu"))
        self.started_ns = self._ring.started_ns(about)

    def _take_texts(self, ring: RingFile) -> None:
        """Read new texts of the ring, such as names; they are rare."""
        used = tuple(self._ring.read_u64(at) for at in _TEXTS_CHANGED)
        if used == self._used:
            return
        self._used = used
        ring.texts = ring.read_texts()
        ring.since = sinces(ring.texts)
        ring.about = ring.read_about() or ring.about
        self._take_about(ring.about)
        for index, comm in communicators(ring).items():
            before = self._names.get(index)
            if before is not None and before != comm.key:
                self.comm_cursors.pop(before, None)  # its number was taken over
                self._pending.pop(before, None)
            self._names[index] = comm.key
            comm_cursor = self.comm_cursors.get(comm.key)
            if comm_cursor is None:
                self.comm_cursors[comm.key] = CommCursor(comm)
            else:
                comm_cursor.comm = comm

    @property
    def owner(self) -> int | None:
        """Uid of the only user who can write the ring; None if others can, too."""
        return self._ring.owner

    @property
    def is_member(self) -> bool:
        """Whether its calls are compared: those of an engine, which has no rank, are not."""
        return self.rank >= 0 or self.about.get("role") not in SERVICE

    @property
    def over(self) -> bool:
        """Whether the process has ended."""
        return self.exited or self.alive is False

    def ask(self, now: float, every: float = 1.0) -> None:
        """Check whether the process still runs, at most once in `every` seconds."""
        if self._asked_at >= 0 and now - self._asked_at < every:
            return
        self._asked_at = now
        self.exited = self._ring.exited_ns > 0
        self.alive = is_alive(self.about, self.host, self.pid)
        if self.rank < 0:  # a process may learn its rank after the ring was created
            self._take_about(self._ring.read_about() or self.about)

    # --- polling -----------------------------------------------------------------------------

    def poll(self, now: float) -> bool:
        """Read what is new.

        Returns:
            Whether anything changed since the last poll: the calls or their states.
        """
        changed = False
        self._ring.read_capacity()
        newest = self._begin_at(self.head)
        if newest > self.head + 1:
            self._open()  # the writer has lapped this cursor
            changed = True
        elif newest == self.head + 1:
            self._take_texts(self._ring)
            changed = self._follow()
        changed = self._take_tail() or changed
        if changed:
            self.moved_at = now
        return changed

    def _begin_at(self, position: int) -> int:
        offset = self._base + position % self._ring.capacity * layout.RECORD.size
        return self._ring.read_u64(offset)

    def _follow(self) -> bool:
        """Read to the end of the stream, or to a record that is still being written."""
        before, count = self.head, self._expected
        most = min(_LONGEST_READ, self._ring.capacity - 1)
        while True:
            records = self._ring.read_stable(self.head, self.head + min(count, most))
            if len(records) and int(records["begin"][-1]) != self.head + len(records):
                wanted = np.arange(self.head + 1, self.head + 1 + len(records), dtype=np.uint64)
                records = records[: np.flatnonzero(records["begin"] != wanted)[0]]
            if len(records):
                self._take(records)
            if len(records) < min(count, most):
                # The next poll will probably find as many new records; allow 25 % more.
                self._expected = max(_FIRST_READ, (self.head - before) * 5 // 4)
                return self.head > before
            count *= 4

    def _take(self, records: Records) -> None:
        self.head = int(records["begin"][-1])
        # Selecting from single columns is faster than from whole records.
        comms, seqs, hashes, fixed = (records[name] for name in ("comm", "seq", "hash", "fixed"))
        special = fixed & (layout.FIXED_P2P | layout.FIXED_STEP)
        is_mixed = bool(special.any())
        present = set(comms.tolist())
        for index in present:
            key = self._names.get(index)
            if key is None:
                continue
            comm_cursor = self.comm_cursors[key]
            own = comms == index if len(present) > 1 else np.ones(len(comms), np.bool_)
            if since := self._ring.since.get(index):
                own = own & (records["begin"] > since)
            mine = own & (special == 0) if is_mixed else own
            if mine.any():
                comm_cursor.extend(seqs[mine], hashes[mine])
            if is_mixed and (p2p := own & (special == layout.FIXED_P2P)).any():
                comm_cursor.p2p = int(seqs[p2p][-1])

    def _take_tail(self) -> bool:
        """Read the states of the newest calls; return whether any changed."""
        start = max(0, self.head - min(TAIL, self._ring.capacity))
        records, wanted = self._ring.read_slots(start, self.head)
        device = self._ring.read_device(max(self._names, default=0))
        states = b""
        if any(device):
            records = self._on_device(records, device)
            # A replay progresses on the device while its record stays the same.
            states = zlib.crc32(device).to_bytes(4, "little")
        states = records["state"].tobytes() + states
        if states == self._states and self._tail_at == self.head:
            return False
        self._states, self._tail_at = states, self.head
        is_whole = whole(records, wanted)
        self._tail = records if is_whole.all() else records[is_whole]
        columns = (self._tail[name].tolist() for name in ("comm", "fixed", "state", "begin"))
        self._pending = {}
        for place, (comm, fixed, state, begin) in enumerate(zip(*columns, strict=True)):
            key = self._names.get(comm)
            if key is None or fixed & layout.FIXED_STEP or begin <= self._ring.since.get(comm, 0):
                continue
            is_pending = state != State.COMPLETED
            self._pending[key] = is_pending
            if not fixed & layout.FIXED_P2P:
                comm_cursor = self.comm_cursors[key]
                comm_cursor.last = self._tail[place]
                if not (is_pending or comm_cursor.tells):
                    comm_cursor.tells = self._op(comm_cursor.last) not in BARRIERS
        return True

    def _on_device(self, records: Records, device: bytes) -> Records:
        """Return the newest records with their states updated from the GPU's counters."""
        self._ring.device = device
        updated = records.copy()
        special = updated["fixed"] & (layout.FIXED_P2P | layout.FIXED_STEP) != 0
        for index, key in self._names.items():
            enqueued = max(self.comm_cursors[key].seq, 0)
            progress = read_progress(self._ring, index, enqueued)
            if progress is not None and progress.unknown:
                self.comm_cursors[key].tells = False  # the GPU's count is lost
            elif progress is not None:
                own = (updated["comm"] == index) & ~special
                updated["state"][own] = known_states(
                    progress, updated["seq"][own], updated["state"][own]
                )
        return updated

    @property
    def signature(self) -> tuple[int, bytes]:
        """A value that changes whenever the ring does."""
        return self._tail_at, self._states

    def waits(self, wall_ns: int) -> tuple[tuple[int, int], ...]:
        """Return the activities that are under way, or were begun again and again until now.

        Args:
            wall_ns: Nanoseconds since 1970, now.

        Returns:
            For each, when it began in nanoseconds since 1970, and the number of its name.
        """
        with contextlib.suppress(DamagedFileError, OSError), RingImage(self.path) as ring:
            return tuple(
                (since, name)
                for _, since, until, _, name, _ in ring.read_activities()
                if not until or wall_ns - until < AGAIN_NS
            )
        return ()

    def pending(self) -> set[str]:
        """Return the keys of communicators whose newest call is pending."""
        return {key for key, is_pending in self._pending.items() if is_pending}

    def last(self, key: str) -> LastCall | None:
        """Return the newest collective on a communicator; None if it is unknown."""
        record = self.comm_cursors[key].last
        if record is None:
            return None
        ndim = int(record["ndim"])
        return LastCall(
            op=self._op(record),
            shape=tuple(record["shape"][:ndim].tolist()) if ndim <= 4 else None,
            time_ns=int(record["time"]),
            state=State(min(int(record["state"]), State.COMPLETED)),
        )

    def _op(self, record: Any) -> str:
        return text(self._ring.text(layout.KIND_OP, int(record["op"]))) or "?"

    def newest(self, count: int, key: str | None = None) -> list[Call]:
        """Read the newest calls from the ring, oldest first.

        Args:
            count: Maximum number of calls.
            key: Key of the communicator; None for all, including sends and receives.

        Returns:
            The calls found among the last 8192 records.
        """
        found: list[Call] = []
        stop, oldest = self.head, max(0, self.head - min(self._ring.capacity, _LONGEST_READ))
        while stop > oldest and len(found) < count:
            start = max(oldest, stop - max(_FIRST_READ, 2 * count))
            records = self._ring.read_stable(start, stop)
            keys = [self._names.get(index) for index in records["comm"].tolist()]
            is_call = (records["fixed"] & layout.FIXED_STEP == 0).tolist()
            calls = [
                decode(self._ring, records[place : place + 1], own)[0]
                for place, own in enumerate(keys)
                if own is not None and is_call[place] and key in (None, own)
            ]
            found = calls + found
            stop = start
        return found[max(0, len(found) - count) :]

    def hash_at(self, key: str, seq: int) -> int | None:
        """Return the running hash after call `seq` on a communicator.

        Returns:
            The hash; None if the call was not made yet or its record has been overwritten.
        """
        comm_cursor = self.comm_cursors[key]
        if seq > comm_cursor.seq:
            return None
        found = comm_cursor.kept(seq)
        return self._read_hash(key, seq) if found is None else found

    def _read_hash(self, key: str, seq: int) -> int | None:
        """Find the hash of one call through the marks, for calls before the first poll."""
        try:
            log = log_of(RingFile(self.path), key)
            return None if log is None or seq < log.first - 1 else log.fingerprint(seq)
        except (DamagedFileError, IndexError, OSError):
            return None

    def read(self) -> Rank | None:
        """Read the ring for a diagnosis; None if it cannot be read."""
        try:
            return read_ring(self.path)
        except (DamagedFileError, OSError):
            return None
