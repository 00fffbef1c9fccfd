"""Bytes of a ring file, version 3. This page is the whole format.

Its end says how versions 1 and 2 differ.

A ring is one file per process, written through a shared memory map and readable
by itself on another machine. All numbers are little-endian. Its parts follow each
other in the order given here, each starting on a multiple of 4096 bytes. The file is sparse: its
writer reserves the first pages of each part, and further pages before it stores to them.

========== ============================= ==================================================
part       size                          contents
========== ============================= ==================================================
header     4096                          see HEADER and WORDS; activities
about      2 x ``about_size``            self-description, JSON, two copies used in turn
mirror     4096                          copy of the header, except for COUNT; at MIRROR
strings    2 x ``strings_size``          interned text, appended to; see Text; then a copy of all
heap       ``heap_size``                 interned sizes lists, a circular buffer
table      2 x ``comms`` x 32            state of each communicator, two copies in turn
marks      ``marks`` x 32                running hash at each 1024th call, a circular buffer
carried    ``comms`` x 8                 calls on each communicator that NCCL reported
records    ``capacity`` x 96             the calls, circular: record n is in slot n % capacity
graphs     2 x ``graphs_size``           calls of CUDA graphs, appended to; then a copy of all
device     ``device_size``               progress of each communicator on the GPU, written by
                                         the GPU; present only if requested
transfers  ``transfers_size``            transfers between engines, a table; added to the end of
                                         the file with the first of them
========== ============================= ==================================================

A reader checks every length against the size of the file. Everything that a verdict rests on is
covered by a check of its own, so that a changed byte reads as damage and never as another call.

**Header**: HEADER is written once, with the CRC of its 88 bytes behind it. ``clock`` is what
the process adds to CLOCK_MONOTONIC in each time that it stores, so that a host whose clock is set
does not change durations. ``comms`` is the number of entries of one table.

**Words** (WORDS): u64 that change and only grow. Each is stored with its complement, COMPLEMENTS
bytes behind it, and both in the mirror first. The larger of two whole copies counts. COUNT and its
complement lie side by side in the header: they state the number of records a second time, and are
stored after the record. ``WRAP`` is zero as long as each record has its slot. If the file system
has no more room for further slots, it becomes the number of slots that are used, before any slot
is used twice.

**Copies**: what is needed to read anything else is stored twice, in different pages, and the copy
first: header, words, activities, description, texts and graphs. One damaged copy is harmless.

**Check** (CHECK): the sum of the u64 of an entry, each multiplied by a constant of :data:`FACTORS`,
modulo 2**64; its upper 32 bits are stored. A change of any one byte changes them. The bytes of the
check itself count as zero, and so does a record's ``state``.

**Record**, 96 bytes. It is complete if ``begin`` and ``end`` agree with the slot. The writer
clears the slot and then stores the fields in this order, in one call that no other thread can
interrupt. If the process is killed in between, ``begin`` and ``end`` differ. Such a record is the
newest of the ring.

====== ====== ===== ===========================================================
offset field  type  meaning
====== ====== ===== ===========================================================
0      begin  u64   position in the process's stream, plus one; 0 in a fresh slot
8      time   u64   CLOCK_MONOTONIC plus ``clock``: nanoseconds since 1970
16     hash   u64   running hash of the communicator, this call included
24     seq    u64   number on the communicator, from 1 (point-to-point: their own); see MOST
32     numel  u64   elements of the input
40     shape  4xu32 dimensions of the input; a dimension of 2**32 or more reads 2**32 - 1
56     comm   u16   communicator, a number of the strings part; 0: it found no room
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
86     flags  u8    flags of the moment: see FLAG_*; from THREAD_SHIFT on a thread
87     state  u8    one of STATES, for scheduled, started, completed; changed later
88     end    u32   the lower 32 bits of ``begin``
92     check  u32   the check of the other fields, without ``state``
====== ====== ===== ===========================================================

NCCL's profiler plugin learns the peer of a send or receive when NCCL launches it, and stores it
into ``root`` then, with a new check. Two of STATES differ in four bits, so that no changed bit
makes one state of another.

**Replay**: a record with FIXED_REPLAY in ``fixed``. It covers all calls of a CUDA graph on one
communicator. ``seq`` and ``hash`` are those of the last of them, ``numel`` is the number of
replays of the graph so far, ``graph`` its number. The other fields are those of its last call
there. A graph with calls on several communicators writes consecutive records, one for each, in
the order of their first calls. A record with FLAG_REPLAYED and without FIXED_REPLAY is a single
call of a replay: a send, a receive, or a call of a graph that found no room.

**Unsent call**: a record with FIXED_STEP and FIXED_UNSENT in ``fixed``. The call raised an
exception before it was sent. The next call on its communicator has its number, and follows on the
same hash.

**Entry** (strings and graphs): u32 length, of which the upper 8 bits are its kind, u32 CRC, then
data, padded to 8 bytes. The CRC is that of :func:`checksum`; it covers kind and number, too, so
that a damaged length cannot renumber later entries. Entries of a kind count from 1, in order of
appearance. An entry exists when ``STRINGS_USED`` or ``GRAPHS_USED`` covers it.

**Graph entry** (graphs). Nothing here is overwritten when the records wrap around. The kinds are

- GRAPH_CALL: the 48 bytes of FIXED with ``sizes`` zero, u64 signature (0 for a send or receive),
  then the sizes list as i64, if the call has one.
- GRAPH_LIST: for each call of a graph u32 number of its GRAPH_CALL, u16 NCCL group, u16 zero.
- GRAPH: u32 number of the graph, u32 number of its GRAPH_LIST.

**Text** (strings): UTF-8. Number 0 also means that there was no room. Output shapes, of which a
program may have any number, take at most MOST_SHAPES bytes. Call sites take at most MOST_SITES, and
are shortened once two thirds of these are used. A call site is ``/path/file.py:120 function``. If
that is in an installed package, the first frame of the user's own program follows after a line
feed. A communicator's text is a JSON object with ``key``, ``label``, ``ranks``, ``backend`` and, if
known, ``created_at``, the line that created it, and ``timeout``, the seconds after which a call on
it is given up. More than LONGEST_LIST equidistant ranks are written as ``range``: first, end, step.
It is padded with blanks to a multiple of COMM_ROOM bytes. Later entries of kind COMM_UPDATE carry
``comm`` (the number) and what has changed. NCCL's profiler plugin adds ``comm_hash`` (as RAS spells
it), ``comm_rank`` and ``size``; ``joined_late`` if calls were made before it was armed, and
``made_before``, their number by operation; ``replays_unseen`` at the first captured call;
``closed_ns`` when NCCL destroys the communicator.

**Reuse**: once there are REUSED_FROM communicators, a new one takes the number of the one that was
destroyed first whose text has room for its own. Its text is overwritten, with ``since``: the number
of records made before. Earlier records, table entries and marks of that number belong to a
communicator that is gone. Updates of the old text are overwritten with an empty object.

**Heap entry**: u64 offset in the unwrapped heap (in bytes, plus one), u32 length, u32 CRC of
the numbers, seeded with that offset, then ``length`` times i64. The CRC reveals an overwritten
entry. A list that begins with BOTH_WAYS holds ``sizes`` and then equally many ``out_sizes``. At
HEAP_END, rounded down to a multiple of the heap's size, offsets restart at 0.

**Table entry** (one per communicator, 32 bytes): u64 begin, u64 seq, u64 hash, u32
point-to-point calls, u32 check. ``begin`` is the number of records made when the entry was
written, plus one. Written for all communicators every TABLE_EVERY records, more often in a small
ring. So the counts of a communicator survive when all its records have been overwritten.

**Carried** (u64 for each communicator, by its number): u32 calls that NCCL's plugin reported, and
their complement, in one store; zero without the plugin.

**Activity** (48 bytes, in the header): what the process does besides its calls, such as waiting for
work. u64 begin, u64 time it began, u64 time it ended (0 while it lasts), u64 number, u32 name and
u32 detail (numbers of the strings part), u32 end, u32 check. ``begin`` counts how often it began,
and ``end`` is its lower half. There is one for each name, which holds only the newest.

**Slot** (device, 128 bytes, one for each of the first DEVICE_COMMS communicators, by its number).
The GPU writes the first 32: u64 calls finished, u64 its clock then, u64 calls entered, u64 its
clock then; each pair in one store. The process writes u64 at 64, the newest call followed by a
marker; u32 at 72, a SLOT_* (0: not counted); u32 at 76, an index into LOST; u64 at 80, the call at
which that happened; i64 at 88, host clock minus GPU clock, 0 if unknown; u32 at 96, 1 if calls
entered are counted, too. These counters show which ``scheduled`` records have completed; a lost
slot shows nothing. A GPU stores no check; a count that exceeds the calls is damage.

**Transfer** (transfers, 512 bytes): the fields of TRANSFER, then six texts of a fixed size in
UTF-8, padded with zeros: see TRANSFER_TEXTS. ``crc`` is that of all other bytes of the entry, so
that a torn store never reads as a transfer. ``turn`` counts the changes in the process, from 1; an
entry that was never used is zero. The entry of an ended transfer is reused, the oldest first.
Only the writer in Python knows this section.

**Mark** (32 bytes): u64 begin, u64 seq, u64 hash, u32 comm, u32 check. ``begin`` is the position of
the record with that seq, plus one. A communicator has marks at multiples of MARK_EVERY calls on
every rank. So ranks can be compared by marks, which narrow down the first difference before any
record is read.

**Versions 1 and 2** (2 from the first CUDA graph on) have neither mirror nor carried part, room for
512 communicators, and no check in records, table entries, marks and activities: there ``end`` is
the whole of ``begin`` or its lower 32 bits. ``state`` is 0, 1 or 2. An entry is u32 length, u8
kind, u8 zero, u16 checksum (zero in files of 0.1's first releases). HEADER ends after ``marks``;
the sizes of graphs and device part are words. A verdict on such a ring is never certain.
"""

from __future__ import annotations

import mmap
import operator
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

MAGIC = b"ncclring"
VERSION = 3
VERSIONS = (1, 2, 3)
"""Versions that a reader knows; 1 and 2 have no checks."""
SUFFIX = ".ring"
MOVED_SUFFIX = ".moved"
"""A text file of one line in the requested directory: the path of a ring that moved to disk."""

PAGE = 4096
DEFAULT_CAPACITY = 65_536
MAX_COMMS = 8192
"""Most communicators of a ring at one time; later ones are not recorded."""
OLD_COMMS = 512
"""Communicators of a ring of version 1 or 2."""
DEVICE_COMMS = 512
"""Communicators that the device part counts."""
REUSED_FROM = 512
"""Number of communicators from which on those that were destroyed give their number back."""
COMM_ROOM = 64
"""The text of a communicator is padded to a multiple of so many bytes, for its successor."""
MIN_CAPACITY = 1024
MOST = (1 << 62) - 1
"""Largest position, seq or step, so that sums and differences of two of them fit in 64 bits."""
TABLE_EVERY = 1024
MARK_EVERY = 1024

# magic, version, record size, capacity, about size, strings size, heap size, marks
OLD_HEADER = struct.Struct("<8sIIQQQQQ")
HEADER = struct.Struct("<8sIIQQQQQQQQQ")
"""As OLD_HEADER, then comms, graphs size, device size, clock."""
HEADER_CHECK = 88
"""u32: CRC of the header."""

MIRROR = 5 * PAGE
"""Offset of the mirror, for a reader of a ring whose header is damaged."""

# Words: what changes. Each has its complement behind it, and both have a copy in the mirror.
WORDS = 128
"""Offset of the first word."""
COMPLEMENTS = 1024
"""Bytes from a word to its complement."""
HEADER_STRINGS_USED = 128
"""u64: bytes of the strings part that are valid."""
HEADER_HEARTBEAT = 136
"""u64: time of the last heartbeat."""
HEARTBEAT_SECONDS = 1.0
"""Seconds between two heartbeats."""
HEADER_EXITED = 144
"""u64: time of a normal exit; 0 while the process runs or if it was killed."""
OLD_GRAPHS_SIZE = 152
"""u64: bytes of the graphs part, in files of version 1 or 2."""
HEADER_ABOUTS = 152
"""u64: generation of the newest process description."""
HEADER_GRAPHS_USED = 160
"""u64: bytes of the graphs part that are valid."""
OLD_DEVICE_SIZE = 168
"""u64: bytes of the device part, in files of version 1 or 2."""
HEADER_WRAP = 168
"""u64: number of slots that are used, if it is not the capacity; otherwise 0."""
HEADER_TRANSFERS_SIZE = 176
"""u64: bytes of the transfers part; zero without transfers."""
HEADER_TRANSFERS_LOST = 184
"""u64: transfers that found no entry, because all entries held unfinished ones."""
WORDS_END = 192

HEADER_COUNT = 192
"""u64: number of records made, then its complement; see COUNT_SLACK."""
COUNT = struct.Struct("<QQ")
COUNT_SLACK = 64
"""Records by which the count may lag behind them: it is stored after each, without a lock."""
HEADER_REUSED = 208
"""u64: communicators whose text has been overwritten by that of another; a word like the others."""
OLD_CARRIED = 1024
"""OLD_COMMS u32: calls on each communicator that NCCL reported, in versions 1 and 2."""
HEADER_ACTIVITIES = 256
"""MAX_ACTIVITIES entries."""
MAX_ACTIVITIES = 16

# generation, length, crc32 of the JSON that starts from the generation, zero
ABOUT = struct.Struct("<QIII")

RECORD = struct.Struct("<QQQQ48s8sII")
"""begin, time, hash, seq, the 48 bytes of FIXED, the 8 of MOMENT, end, check"""
FIXED = struct.Struct("<Q4IHHBBBBiIII")
"""numel, shape, comm, op, dtype, redop, ndim, fixed, root, sizes, site, out"""
FIXED_FLAGS, FIXED_SIZES = 31, slice(36, 40)
"""Offsets of ``fixed`` and ``sizes`` in it."""
MOMENT = struct.Struct("<IHBB")
"""graph, group, flags, state"""
STATE_OFFSET, CHECK_OFFSET = 87, 92
STATES = (0x0F, 0x33, 0x55)
"""How a record spells the states 0 to 2."""

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
THREAD_SHIFT = 2
"""The other bits of the flags: a number of the thread that posted the call. From 1 to 62 that of a
living thread, 63 that of all further ones; 0 in replays, and if it is not known."""

BOTH_WAYS = -(1 << 63)
"""Not a size; begins a sizes list with sizes to each member, then sizes from each member."""

NO_SHAPE = 255
NO_ROOM = 255
"""Number of an element type or a reduction that could not be interned."""

LONGEST_LIST = 1024
"""Up to this number of members, a communicator lists each one."""

MOST_SHAPES = 32 * PAGE
"""Bytes of the strings part for output shapes."""
MOST_SITES = 48 * PAGE
"""Bytes of the strings part for call sites."""
ENTRY = struct.Struct("<II")
"""length and kind, CRC"""
LONGEST_ENTRY = (1 << 24) - 1
OLD_ENTRY = struct.Struct("<IBBH")
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
ACTIVITY = struct.Struct("<QQQQIIII")
CARRIED = struct.Struct("<Q")
TRANSFER = struct.Struct("<IBBHQQQQQII")
"""crc, state, direction, port, turn, begun, changed, deadline (0 for none), bytes, blocks, zero"""
TRANSFER_TEXTS = (112, 112, 64, 64, 40, 64)
"""Bytes of id, request, engine, peer, host and phase."""
TRANSFER_ENTRY = struct.Struct(TRANSFER.format + "".join(f"{size}s" for size in TRANSFER_TEXTS))
MAX_TRANSFERS = 1024


FACTORS = (
    0xF4B0BF2BEC31C3C5,
    0x20CB422372699E39,
    0x97589B0FE3B7FF85,
    0xCDA49E49041F8DA3,
    0x114F6E4CDC478947,
    0xDCD330BEF31A7C39,
    0xB458B3A40CC8F329,
    0xF330002EC698E72F,
    0xDE498A165B23033D,
    0x51E6CF165F5883A1,
    0x8FCB3C68960D9AE3,
    0x2FEADF1E1DE92951,
)
"""Odd, and chosen so that the change of any one byte changes the upper half of the sum."""
_MASK = (1 << 64) - 1
_WORD = struct.Struct("<Q")
_WORDS: dict[int, struct.Struct] = {}


def check(entry: bytes) -> int:
    """Return the check of an entry, u32.

    Args:
        entry: A record, or an entry of the table, the marks or the activities, in which the bytes
            of the check itself are zero, and so is a record's state.
    """
    words = _WORDS.get(len(entry))
    if words is None:
        words = _WORDS[len(entry)] = struct.Struct(f"<{len(entry) // 8}Q")
    total: int = sum(map(operator.mul, words.unpack(entry), FACTORS))
    return (total & _MASK) >> 32


def sealed(entry: bytes) -> bytes:
    """Return an entry whose last four bytes are zero with its check in them."""
    return entry[:-4] + check(entry).to_bytes(4, "little")


def sealed_record(record: bytes) -> bytes:
    """Return a record with its check; its ``state`` stays as it is."""
    without = record[:STATE_OFFSET] + b"\0" + record[STATE_OFFSET + 1 : CHECK_OFFSET] + bytes(4)
    return record[:CHECK_OFFSET] + check(without).to_bytes(4, "little")


def checksum(kind: int, number: int, data: bytes) -> int:
    """Return the CRC of a text or a graph entry.

    Args:
        kind: Of the entry.
        number: Its number within the kind.
        data: Without the head and the padding.
    """
    return zlib.crc32(data, kind << 24 ^ number & 0xFFFFFF)


def old_checksum(kind: int, number: int, data: bytes) -> int:
    """Return the checksum of an entry in versions 1 and 2, from 1 to 65,535."""
    return checksum(kind, number, data) % 0xFFFF + 1


def put_word(buffer: mmap.mmap, offset: int, value: int) -> None:
    """Store a word of the header and its complement, in the mirror first.

    Args:
        buffer: The mapped file.
        offset: One of `HEADER_*` before `WORDS_END`.
        value: The number, u64.
    """
    for start in (MIRROR, 0):
        _WORD.pack_into(buffer, start + offset + COMPLEMENTS, value ^ _MASK)
        _WORD.pack_into(buffer, start + offset, value)


def prepare_words(buffer: mmap.mmap) -> None:
    """Store the complements of all words of a new file, which are zero."""
    for offset in (*range(WORDS, WORDS_END, _WORD.size), HEADER_REUSED):
        put_word(buffer, offset, 0)
    COUNT.pack_into(buffer, HEADER_COUNT, 0, _MASK)


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


def pages(size: int) -> int:
    """Return a size in bytes, rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


@dataclass(frozen=True)
class Geometry:
    """Sizes of the sections of one ring in bytes, except ``capacity``, ``marks`` and ``comms``.

    Attributes:
        comms: Entries of one table; the number of communicators.
        checked: Whether it is of version 3, with a check for each entry.
    """

    capacity: int
    about_size: int
    strings_size: int
    heap_size: int
    marks: int
    comms: int = MAX_COMMS
    graphs_size: int = 0
    device_size: int = 0
    checked: bool = True

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
            strings_size=pages(max(256 * PAGE, min(1024 * PAGE, capacity * 64))),
            heap_size=pages(max(4 * PAGE, min(256 * PAGE, capacity * 8))),
            marks=max(128, capacity // MARK_EVERY * 2),
            graphs_size=pages(max(16 * PAGE, min(128 * PAGE, capacity * 8))),
            device_size=pages(DEVICE_COMMS * SLOT.size) if device else 0,
        )

    @property
    def about(self) -> int:
        """Offset of the process description."""
        return PAGE

    @property
    def mirror(self) -> int:
        """Offset of the complements of the words."""
        return self.about + pages(2 * self.about_size)

    @property
    def strings(self) -> int:
        """Offset of the interned text."""
        return self.mirror + (PAGE if self.checked else 0)

    @property
    def heap(self) -> int:
        """Offset of the sizes lists."""
        return self.strings + pages(self.strings_size) * (2 if self.checked else 1)

    @property
    def table(self) -> int:
        """Offset of the communicator table."""
        return self.heap + pages(self.heap_size)

    @property
    def mark_area(self) -> int:
        """Offset of the marks."""
        return self.table + pages(2 * self.comms * TABLE_ENTRY.size)

    @property
    def carried(self) -> int:
        """Offset of the calls that NCCL reported."""
        return self.mark_area + pages(self.marks * MARK.size)

    @property
    def records(self) -> int:
        """Offset of the records."""
        return self.carried + (pages(self.comms * CARRIED.size) if self.checked else 0)

    @property
    def graphs(self) -> int:
        """Offset of the graphs section."""
        return self.records + pages(self.capacity * RECORD.size)

    @property
    def device(self) -> int:
        """Offset of the device section."""
        return self.graphs + pages(self.graphs_size) * (2 if self.checked else 1)

    @property
    def total(self) -> int:
        """Size of the file."""
        return self.device + pages(self.device_size)
