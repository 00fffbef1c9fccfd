"""Bytes of a ring file, versions 1 and 2. This page is the whole format.

A ring has version 1 until the first CUDA graph with a call is captured, and version 2 from then
on: a reader that does not know replays must not read them as single calls.

A ring is one file per process, written through a shared memory map and readable
by itself on another machine. All numbers are little-endian. Its parts follow each
other in the order given here, each starting on a multiple of 4096 bytes.

========== ============================= ==================================================
part       size                          contents
========== ============================= ==================================================
header     4096                          see HEADER; written once, but for the heartbeat
                                         and the activities
about      2 x ``about_size``            self-description, JSON, two copies used in turn
strings    ``strings_size``              interned text, appended to, never changed
heap       ``heap_size``                 interned sizes lists, a circular buffer
table      2 x ``MAX_COMMS`` x 32        state of each communicator, two copies in turn
marks      ``marks`` x 32                running hash at each 1024th call, a circular buffer
records    ``capacity`` x 96             the calls, circular: record n is in slot n % capacity
graphs     ``graphs_size``               calls of CUDA graphs, appended to, never changed;
                                         absent in files of older releases
device     ``device_size``               progress of each communicator on the GPU, written by
                                         the GPU; present only if requested
transfers  ``transfers_size``            transfers between engines, a table; added to the end of
                                         the file with the first of them
========== ============================= ==================================================

A reader checks every length against the size of the file.

**Record**, 96 bytes. It is complete if ``begin`` and ``end`` agree with the slot. The writer
clears the slot and then stores the fields in this order, in one call that no other thread can
interrupt. If the process is killed in between, ``begin`` and ``end`` differ. Such a record is the
newest of the ring.

====== ====== ===== ===========================================================
offset field  type  meaning
====== ====== ===== ===========================================================
0      begin  u64   position in the process's stream, plus one; 0 in a fresh slot
8      time   u64   host clock, nanoseconds since 1970
16     hash   u64   running hash of the communicator, this call included
24     seq    u64   number on the communicator, from 1 (point-to-point: their own); see MOST
32     numel  u64   elements of the input
40     shape  4xu32 dimensions of the input; a dimension of 2**32 or more reads 2**32 - 1
56     comm   u16   communicator, a number of the strings part
58     op     u16   operation, a number of the strings part
60     dtype  u8    element type, a number of the strings part; 0: none, 255: no room for it
61     redop  u8    reduction, a number of the strings part; 0: none, 255: no room for it
62     ndim   u8    dimensions used in ``shape``; 255 when the shape is not known
63     fixed  u8    flags that come with the call: see FIXED_*
64     root   i32   root or peer as a rank of the communicator; -1 for none; see below
68     sizes  u32   sizes list: place in the heap in units of 8 bytes, plus one; 0 for none
72     site   u32   call site, a number of the strings part; 0 for none
76     out    u32   output shape, a number of the strings part; 0 for not recorded
80     graph  u32   CUDA graph that it was captured into, or replayed from; 0 for none
84     group  u16   number of the NCCL group it was posted in, from 1 to 65,535; 0 outside
86     flags  u8    flags of the moment: see FLAG_*
87     state  u8    0 scheduled, 1 started, 2 completed; changed later
88     end    u64   the same as ``begin``
====== ====== ===== ===========================================================

NCCL's profiler plugin learns the peer of a send or receive when NCCL launches it, and stores it
into ``root`` then. No other field changes.

**Replay**: a record with FIXED_REPLAY in ``fixed``. It covers all calls of a CUDA graph on one
communicator. ``seq`` and ``hash`` are those of the last of them, ``numel`` is the number of
replays of the graph so far, ``graph`` its number. The other fields are those of its last call
there. A graph with calls on several communicators writes consecutive records, one for each, in
the order of their first calls. A record with FLAG_REPLAYED and without FIXED_REPLAY is a single
call of a replay: a send, a receive, or a call of a graph that found no room.

**Unsent call**: a record with FIXED_STEP and FIXED_UNSENT in ``fixed``. The call raised an
exception before it was sent. The next call on its communicator has its number, and follows on the
same hash. Readers of older releases take it for a step.

**Graph entry** (graphs): u32 length, u8 kind, u8 zero, u16 checksum, then data, padded to 8 bytes.
An entry exists when ``graphs_used`` in the header covers it. Entries of a kind count from 1, in
order of appearance. Nothing here is overwritten when the records wrap around. The kinds are

- GRAPH_CALL: the 48 bytes of FIXED with ``sizes`` zero, u64 signature (0 for a send or receive),
  then the sizes list as i64, if the call has one.
- GRAPH_LIST: for each call of a graph u32 number of its GRAPH_CALL, u16 NCCL group, u16 zero.
- GRAPH: u32 number of the graph, u32 number of its GRAPH_LIST.

**Text** (strings): u32 length, u8 kind, u8 zero, u16 checksum, then UTF-8, padded to 8 bytes. An
entry exists when ``strings_used`` in the header covers it. Numbers count from 1 within
a kind, in order of appearance; 0 also means that there was no room. The checksum is that of
:func:`checksum`; it covers the number, too, so that a damaged length cannot renumber later texts.
It is zero in files of older versions. Output shapes, of which a program may have any number, take
at most half of the section. Call sites take at most three quarters, and are shortened once half
is used. A call site is ``/path/file.py:120 function``. If that is in an installed package, the
first frame of the user's own program follows after a line feed. A communicator's text is a JSON
object with ``key``, ``label``, ``ranks``, ``backend`` and, if known, ``created_at``, the line that
created it, and ``timeout``, the seconds after which a call on it is given up. More than
LONGEST_LIST equidistant ranks are written as ``range``: first, end, step.
Later entries of kind COMM_UPDATE carry ``comm`` (the number) and what has changed. NCCL's
profiler plugin adds ``comm_hash`` (as RAS spells it), ``comm_rank`` and ``size``; ``joined_late``
if calls were made before it was armed, and ``made_before``, their number by operation;
``replays_unseen`` at the first captured call; ``closed_ns`` when NCCL destroys the communicator.

**Heap entry**: u64 offset in the unwrapped heap (in bytes, plus one), u32 length, u32 CRC of
the numbers, seeded with that offset, then ``length`` times i64. The CRC reveals an overwritten
entry. A list that begins with BOTH_WAYS holds ``sizes`` and then equally many ``out_sizes``. At
HEAP_END, rounded down to a multiple of the heap's size, offsets restart at 0.

**Table entry** (one per communicator, 32 bytes): u64 begin, u64 seq, u64 hash, u32
point-to-point calls, u32 end. ``begin`` is the number of records made when the entry was
written, plus one, and ``end`` its low 32 bits. Written for all communicators every
TABLE_EVERY records, more often in a small ring. So the counts of a communicator survive when all
its records have been overwritten.

**Activity** (48 bytes, in the header): what the process does besides its calls, such as waiting
for work. u64 begin, u64 time it began, u64 time it ended (0 while it lasts), u64 number, u32 name
and u32 detail (numbers of the strings part), u64 end. ``begin`` counts how often it began, and
``end`` equals it. There is one for each name, which holds only the newest.

**Slot** (device, 128 bytes, one for each communicator, by its number). The GPU writes the
first 32: u64 calls finished, u64 its clock then, u64 calls entered, u64 its clock then; each
pair in one store. The process writes u64 at 64, the newest call followed by a marker; u32 at 72,
a SLOT_* (0: not counted); u32 at 76, an index into LOST; u64 at 80, the call at which that
happened; i64 at 88, host clock minus GPU clock, 0 if unknown; u32 at 96, 1 if calls entered are
counted, too. These counters show which ``scheduled`` records have completed; a lost slot shows
nothing. A reader that does not know this section can read the rest unchanged.

**Transfer** (transfers, 512 bytes): the fields of TRANSFER, then six texts of a fixed size in
UTF-8, padded with zeros: see TRANSFER_TEXTS. ``crc`` is that of all other bytes of the entry, so
that a torn store never reads as a transfer. ``turn`` counts the changes in the process, from 1; an
entry that was never used is zero. The entry of an ended transfer is reused, the oldest first.
Only the writer in Python knows this section.

**Mark** (32 bytes): u64 begin, u64 seq, u64 hash, u32 comm, u32 end. ``begin`` is the position of
the record with that seq, plus one, ``end`` its low 32 bits. A communicator has marks at multiples
of MARK_EVERY calls on every rank. So ranks can be compared by marks, which narrow down the first
difference before any record is read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

MAGIC = b"ncclring"
VERSION = 1
VERSION_WITH_GRAPHS = 2
SUFFIX = ".ring"
MOVED_SUFFIX = ".moved"
"""A text file of one line in the requested directory: the path of a ring that moved to disk."""

PAGE = 4096
DEFAULT_CAPACITY = 65_536
MAX_COMMS = 512
MIN_CAPACITY = 1024
MOST = (1 << 62) - 1
"""Largest position, seq or step, so that sums and differences of two of them fit in 64 bits."""
TABLE_EVERY = 1024
MARK_EVERY = 1024

# magic, version, record size, capacity, about size, strings size, heap size, marks
HEADER = struct.Struct("<8sIIQQQQQ")
HEADER_STRINGS_USED = 128
"""u64: bytes of the strings part that are valid."""
HEADER_HEARTBEAT = 136
"""u64: host clock at the last heartbeat."""
HEARTBEAT_SECONDS = 1.0
"""Seconds between two heartbeats."""
HEADER_EXITED = 144
"""u64: host clock at a normal exit; 0 while the process runs or if it was killed."""
HEADER_GRAPHS_SIZE = 152
"""u64: bytes of the graphs part; zero in files of older releases."""
HEADER_GRAPHS_USED = 160
"""u64: bytes of the graphs part that are valid."""
HEADER_DEVICE_SIZE = 168
"""u64: bytes of the device part; zero if there is none."""
HEADER_TRANSFERS_SIZE = 176
"""u64: bytes of the transfers part; zero without transfers, and in files of older releases."""
HEADER_TRANSFERS_LOST = 184
"""u64: transfers that found no entry, because all entries held unfinished ones."""
HEADER_CARRIED = 1024
"""MAX_COMMS u32: calls on each communicator that NCCL reported; zero without its plugin."""
HEADER_ACTIVITIES = 256
"""MAX_ACTIVITIES entries; those that an older release does not know are zero in its files."""
MAX_ACTIVITIES = 16

# generation, length, crc32 of the JSON that starts from the generation, zero
ABOUT = struct.Struct("<QIII")

RECORD = struct.Struct("<QQQQ48s8sQ")
"""begin, time, hash, seq, the 48 bytes of FIXED, the 8 of MOMENT, end"""
FIXED = struct.Struct("<Q4IHHBBBBiIII")
"""numel, shape, comm, op, dtype, redop, ndim, fixed, root, sizes, site, out"""
FIXED_FLAGS, FIXED_SIZES = 31, slice(36, 40)
"""Offsets of ``fixed`` and ``sizes`` in it."""
MOMENT = struct.Struct("<IHBB")
"""graph, group, flags, state"""
STATE_OFFSET = 87

FIXED_P2P = 1
FIXED_STEP = 2
"""Not a call but a step of the engine: ``seq`` is its number, ``numel`` its tokens plus one."""
FIXED_DUMMY = 4
FIXED_REPLAY = 8
"""All calls of a CUDA graph on one communicator; ``numel`` is the number of the replay."""
FIXED_UNSENT = 16
"""Beside FIXED_STEP: no step, but a call that was refused; its number belongs to the next call."""

FLAG_CAPTURED = 1
FLAG_REPLAYED = 2

BOTH_WAYS = -(1 << 63)
"""Not a size; begins a sizes list with sizes to each member, then sizes from each member."""

NO_SHAPE = 255
NO_ROOM = 255
"""Number of an element type or a reduction that could not be interned."""

LONGEST_LIST = 1024
"""Up to this number of members, a communicator lists each one."""

TEXT_ENTRY = struct.Struct("<IBBH")
KIND_COMM, KIND_OP, KIND_DTYPE, KIND_REDOP, KIND_SITE, KIND_SHAPE, KIND_COMM_UPDATE = range(1, 8)
KIND_ACTIVITY = 8

SLOT = struct.Struct("<4Q32xQIIQqI28x")
"""finished, its time, entered, its time; launched, state, reason, since, clock, enters"""
SLOT_LAUNCHED, SLOT_STATE, SLOT_CLOCK, SLOT_ENTERS = 64, 72, 88, 96
SLOT_FATE = struct.Struct("<IIQ")
"""state, reason, since"""
SLOT_COUNTED, SLOT_UNSETTLED, SLOT_LOST = 1, 2, 3
"""State of a count: valid; valid once all calls have finished; lost."""
LOST = (
    "",
    "calls were recorded before it was counted",
    "its first call was captured into a CUDA graph",
    "a call ran on a stream of NCCL's own (async_op=True, or torch before 2.8)",
    "a call went to another device",
    "a call was recorded that has no marker: it failed, or several threads posted at once",
    "a CUDA graph holds calls without markers",
    "a CUDA graph was captured on several streams",
    "a graph was captured past torch, whose replays are not seen",
    "a call was posted inside of a group of torch's",
    "the driver refused a marker",
    "calls were posted on two streams at once",
    "a call was of a kind that has no marker (a functional collective, a scatter)",
    "its stream is not known",
    "counting has ended in this process",
)
"""Why a count is lost."""

GRAPH_CALL, GRAPH_LIST, GRAPH = range(1, 4)
GRAPH_SIGNATURE = struct.Struct("<Q")
GRAPH_ITEM = struct.Struct("<IHH")
GRAPH_HEAD = struct.Struct("<II")
MOST_GRAPH_CALLS = 1 << 16
"""Most calls of one graph; a longer one is recorded call by call at each replay."""

HEAP_ENTRY = struct.Struct("<QII")
HEAP_END = 8 << 32
"""Bytes that the 32 bits of a record can address, in units of 8."""
TABLE_ENTRY = struct.Struct("<QQQII")
MARK = struct.Struct("<QQQII")
ACTIVITY = struct.Struct("<QQQQIIQ")
TRANSFER = struct.Struct("<IBBHQQQQQII")
"""crc, state, direction, port, turn, begun, changed, deadline (0 for none), bytes, blocks, zero"""
TRANSFER_TEXTS = (112, 112, 64, 64, 40, 64)
"""Bytes of id, request, engine, peer, host and phase."""
TRANSFER_ENTRY = struct.Struct(TRANSFER.format + "".join(f"{size}s" for size in TRANSFER_TEXTS))
MAX_TRANSFERS = 1024


def checksum(kind: int, number: int, data: bytes) -> int:
    """Return the checksum of a text or a graph entry, from 1 to 65,535.

    Args:
        kind: Of the entry.
        number: Its number within the kind.
        data: Without the head and the padding.
    """
    return zlib.crc32(data, kind << 24 ^ number & 0xFFFFFF) % 0xFFFF + 1


def join_sizes(
    sizes: Sequence[int] | None, out_sizes: Sequence[int] | None
) -> Sequence[int] | None:
    """Join the sizes to and from each member into one list for the heap."""
    if sizes is None or out_sizes is None or len(sizes) != len(out_sizes):
        return sizes
    return (BOTH_WAYS, *sizes, *out_sizes)


def part_sizes(
    joined: tuple[int, ...] | None,
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Split a list from the heap into ``sizes`` and ``out_sizes``."""
    if not joined or joined[0] != BOTH_WAYS:
        return joined, None
    half = len(joined) // 2
    return joined[1 : half + 1], joined[half + 1 :]


def table_every(capacity: int) -> int:
    """Return the number of records between two tables, a power of two.

    A thread about to write a table can be preempted while others record. The records since the
    previous table must still exist then, so a table is written four times per capacity.
    """
    return min(TABLE_EVERY, 1 << max(capacity // 4, 1).bit_length() - 1)


def spell_members(ranks: Sequence[int]) -> dict[str, Sequence[int]]:
    """Return a communicator's members as JSON fields: ``ranks``, or ``range`` if there are many.

    A list of a hundred thousand ranks would not fit into the strings section.
    """
    if len(ranks) > LONGEST_LIST:
        step = ranks[1] - ranks[0]
        if step and all(there - here == step for here, there in pairwise(ranks)):
            return {"range": (ranks[0], ranks[-1] + step, step)}
    return {"ranks": list(ranks)}


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


@dataclass(frozen=True)
class Geometry:
    """Sizes of the sections of one ring in bytes, except ``capacity`` and ``marks`` (counts)."""

    capacity: int
    about_size: int
    strings_size: int
    heap_size: int
    marks: int
    graphs_size: int = 0
    device_size: int = 0

    @classmethod
    def for_capacity(cls, capacity: int, *, device: bool = False) -> Geometry:
        """Return the sizes that a writer chooses.

        Args:
            capacity: Number of records.
            device: Whether GPUs write their progress.
        """
        return cls(
            capacity=capacity,
            about_size=2 * PAGE,
            strings_size=_pages(max(16 * PAGE, min(64 * PAGE, capacity * 8))),
            heap_size=_pages(max(4 * PAGE, min(256 * PAGE, capacity * 8))),
            marks=max(128, capacity // MARK_EVERY * 2),
            graphs_size=_pages(max(16 * PAGE, min(128 * PAGE, capacity * 8))),
            device_size=_pages(MAX_COMMS * SLOT.size) if device else 0,
        )

    @property
    def about(self) -> int:
        """Offset of the process description."""
        return PAGE

    @property
    def strings(self) -> int:
        """Offset of the interned text."""
        return self.about + _pages(2 * self.about_size)

    @property
    def heap(self) -> int:
        """Offset of the sizes lists."""
        return self.strings + _pages(self.strings_size)

    @property
    def table(self) -> int:
        """Offset of the communicator table."""
        return self.heap + _pages(self.heap_size)

    @property
    def mark_area(self) -> int:
        """Offset of the marks."""
        return self.table + _pages(2 * MAX_COMMS * TABLE_ENTRY.size)

    @property
    def records(self) -> int:
        """Offset of the records."""
        return self.mark_area + _pages(self.marks * MARK.size)

    @property
    def graphs(self) -> int:
        """Offset of the graphs section."""
        return self.records + _pages(self.capacity * RECORD.size)

    @property
    def device(self) -> int:
        """Offset of the device section."""
        return self.graphs + _pages(self.graphs_size)

    @property
    def total(self) -> int:
        """Size of the file."""
        return self.device + _pages(self.device_size)
