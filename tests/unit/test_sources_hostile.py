"""Rings that are cut short, damaged or made up: refused or noted, never worse."""

from __future__ import annotations

import os
import socket
import stat
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclscope import open_run
from ncclscope.errors import DamagedFileError, InputError, NothingFoundError
from ncclscope.readers.ring.ranks import read_ring
from ncclscope.ring import layout
from ncclscope.ring.writer import RingWriter
from ncclscope.untrusted import MAX_RANKS, open_regular
from tests.support.examples import examples
from tests.support.hostile import survive
from tests.support.programs import run_program
from tests.support.rings import SMALL, check_log, fill, seal, seal_header, set_word, tracer_in

bounded = settings(
    max_examples=examples(150),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


class Sound:
    """A ring as it should be."""

    def __init__(self, data: bytes, ring: RingWriter) -> None:
        self.data = data
        self.geometry = ring.geometry
        self.head = ring.position

    def __repr__(self) -> str:
        return "sound"


def make_ring(directory: Path) -> Sound:
    """Return a ring that has something of everything and has gone round once."""
    tracer = tracer_in(directory, labels={"tp": "0"}, details={"run": "one"})
    comm = tracer.communicator("k", "tp:0", [0, 1], "nccl")
    other = tracer.communicator("κ", "dp:0", [0], "gloo")
    for number in range(1, 1400):
        fill(tracer, comm, number, number + 1)
        if number % 3 == 0:
            tracer.record(other, "all_gatherv", shape=(3, 4), sizes=[number, 2], out_shape=(5,))
        if number % 7 == 0:
            tracer.record(comm, "send", shape=(number,), peer=1)
        if number % 50 == 0:
            tracer.step(number, tokens=number)
    tracer.relabel(other, "dp:1")
    tracer.describe(note="x")
    tracer.close()
    data = Path(tracer.path).read_bytes()
    Path(tracer.path).unlink()
    return Sound(data, tracer.ring)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    return make_ring(tmp_path_factory.mktemp("sound"))


def parts(geometry: layout.Geometry) -> dict[str, tuple[int, int]]:
    """Return the used bytes: offset and size."""
    return {
        "header": (0, layout.HEADER_ACTIVITIES),
        "about": (geometry.about, 2 * geometry.about_size),
        "mirror": (geometry.mirror, layout.HEADER_ACTIVITIES),
        "strings": (geometry.strings, 1500),
        "heap": (geometry.heap, geometry.heap_size),
        "table": (geometry.table, 64),
        "table 2": (geometry.table + layout.MAX_COMMS * 32, 64),
        "marks": (geometry.mark_area, 64),
        "carried": (geometry.carried, 64),
        "records": (geometry.records, geometry.capacity * 96),
    }


def seal_all(image: bytearray, sound: Sound) -> None:
    """Give all that has changed a check that fits, and words their complements."""
    sizes = image[: layout.HEADER_CHECK]
    image[: layout.HEADER_CHECK] = sound.data[: layout.HEADER_CHECK]
    seal(image)
    for word in (*range(layout.WORDS, layout.WORDS_END, 8), layout.HEADER_REUSED):
        set_word(image, word, int.from_bytes(image[word : word + 8], "little"))
    image[: layout.HEADER_CHECK] = sizes
    seal_header(image)


def put_entry(image: bytearray, offset: int, begin: int, seq: int, word: int) -> None:
    """Store an entry of the table, or a mark, with a check that fits."""
    entry = layout.TABLE_ENTRY.pack(begin, seq, 12345, word, 0)
    image[offset : offset + len(entry)] = layout.sealed(entry)


def test_the_sound_ring_is_read(tmp_path: Path, sound: Sound) -> None:
    path = tmp_path / "x.ring"
    path.write_bytes(sound.data)
    run = survive(path)
    assert run is not None
    check_log(run.ranks[0].logs["k"], run.ranks[0].logs["k"].first, 1399)
    assert run.communicators["κ"].label == "dp:1"
    assert run.ranks[0].lost > 0


def test_cut_short_at_any_place(tmp_path: Path, sound: Sound) -> None:
    data, geometry = sound.data, sound.geometry
    places = {0, 1, 7, 8, 20, 151, 152, 4095, 4096, 4097, len(data) - 1}
    for offset, size in parts(geometry).values():
        places |= {offset - 1, offset, offset + 1, offset + size // 2, offset + size}
    places |= set(range(4096, len(data), 8191))
    path = tmp_path / "x.ring"
    for place in sorted(place for place in places if 0 <= place < len(data)):
        path.write_bytes(data[:place])
        with pytest.raises(InputError):
            open_run(path)


def test_cut_short_while_it_is_read(tmp_path: Path, sound: Sound) -> None:
    data, geometry = sound.data, sound.geometry
    path = tmp_path / "x.ring"
    for place in (0, 100, geometry.strings, geometry.records + 1000, len(data) - 5000):
        path.write_bytes(data)
        rank = read_ring(path)
        os.truncate(path, place)
        log = rank.logs["k"]
        try:
            log.span(1, log.calls + 1)
            list(rank.p2p["k"])
            list(rank.steps)
        except DamagedFileError:
            continue


NASTY = [0, 1, 95, 1 << 16, (1 << 31) - 1, 1 << 32, 1 << 62, 1 << 63, (1 << 64) - 1]
PARTS = [
    *("header", "about", "mirror", "strings", "heap", "table", "table 2", "marks", "carried"),
    "records",
]


@bounded
@given(
    changes=st.lists(
        st.tuples(st.sampled_from(PARTS), st.integers(0, 1 << 20), st.integers(0, 255)),
        min_size=1,
        max_size=12,
    ),
    sealed=st.booleans(),
)
def test_bytes_that_have_changed(
    tmp_path: Path, sound: Sound, changes: list[tuple[str, int, int]], sealed: bool
) -> None:
    image = bytearray(sound.data)
    for part, where, value in changes:
        offset, size = parts(sound.geometry)[part]
        image[offset + where % size] = value
    if sealed:
        seal_all(image, sound)
    path = tmp_path / "x.ring"
    path.write_bytes(image)
    survive(path)


@bounded
@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from(PARTS), st.integers(0, 499), st.sampled_from(NASTY), st.booleans()
        ),
        min_size=1,
        max_size=6,
    ),
    sealed=st.booleans(),
)
def test_words_that_have_been_made_up(
    tmp_path: Path, sound: Sound, changes: list[tuple[str, int, int, bool]], sealed: bool
) -> None:
    image = bytearray(sound.data)
    for part, where, word, wide in changes:
        offset, size = parts(sound.geometry)[part]
        place = offset + where * 4 % size
        if wide:
            struct.pack_into("<Q", image, place, word)
        else:
            struct.pack_into("<I", image, place, word & 0xFFFFFFFF)
    if sealed:
        seal_all(image, sound)
    path = tmp_path / "x.ring"
    path.write_bytes(image)
    survive(path)


@bounded
@given(
    entries=st.lists(
        st.tuples(
            st.integers(0, 2 * layout.MAX_COMMS - 1),
            st.sampled_from([1, 2, 1025, 1900, 2000, 2048, 1 << 31, 1 << 40, 1 << 61, 1 << 63]),
            st.sampled_from([0, 1, 500, 1399, 1400, 1 << 31, 1 << 61, (1 << 64) - 1]),
        ),
        max_size=12,
    ),
    marks=st.lists(
        st.tuples(
            st.integers(0, 20),
            st.sampled_from([1, 2, 1024, 1399, 1500, 1 << 61]),
            st.sampled_from([0, 1, 700, 1024, 2048, 1 << 61]),
            st.integers(0, 3),
        ),
        max_size=12,
    ),
)
def test_tables_and_marks_that_are_whole_but_untrue(
    tmp_path: Path,
    sound: Sound,
    entries: list[tuple[int, int, int]],
    marks: list[tuple[int, int, int, int]],
) -> None:
    image = bytearray(sound.data)
    for place, begin, seq in entries:
        put_entry(image, sound.geometry.table + place * 32, begin, seq, 1)
    for place, begin, seq, comm in marks:
        put_entry(image, sound.geometry.mark_area + place * 32, begin, seq, comm)
    path = tmp_path / "x.ring"
    path.write_bytes(image)
    survive(path)


@pytest.mark.parametrize("begin", [1 << 40, (1 << 61) + 5, 5000, 1700])
@pytest.mark.parametrize("place", [0, 1, layout.MAX_COMMS])
def test_a_table_that_speaks_of_records_that_are_not_there_is_not_believed(
    tmp_path: Path, sound: Sound, place: int, begin: int
) -> None:
    image = bytearray(sound.data)
    put_entry(image, sound.geometry.table + place * 32, begin, 1 << 50, 1)
    path = tmp_path / "x.ring"
    path.write_bytes(image)

    (rank,) = open_run(path).ranks

    assert rank.records + rank.lost == sound.head
    check_log(rank.logs["k"], rank.logs["k"].first, 1399)


def test_marks_that_are_out_of_order_are_done_without(tmp_path: Path, sound: Sound) -> None:
    image = bytearray(sound.data)
    for place, (begin, seq) in enumerate([(1400, 1200), (1500, 1100), (1600, 1300), (1700, 2)]):
        put_entry(image, sound.geometry.mark_area + 32 * (place + 4), begin, seq, 1)
    path = tmp_path / "x.ring"
    path.write_bytes(image)

    (rank,) = open_run(path).ranks

    check_log(rank.logs["k"], rank.logs["k"].first, 1399)


SIZES = ("capacity", "about", "strings", "heap", "marks", "comms", "graphs", "device")


@pytest.mark.parametrize("field", SIZES)
@pytest.mark.parametrize(
    "value", [0, 1, 3, 1000, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 63, (1 << 64) - 1]
)
def test_sizes_in_the_header_are_held_against_the_file(
    tmp_path: Path, sound: Sound, field: str, value: int
) -> None:
    image = bytearray(sound.data)
    struct.pack_into("<Q", image, 16 + 8 * SIZES.index(field), value)
    path = tmp_path / "x.ring"
    path.write_bytes(image)
    assert survive(path) is not None  # by the mirror's copy of the header
    seal_header(image)
    path.write_bytes(image)
    run = survive(path)
    if value >= 1 << 31 or (value == 0 and field not in ("graphs", "device")):
        assert run is None


# A file may have any size and take no room. All of these are refused or read within bounds.
SPARSE = """
import os, resource, struct, sys
from pathlib import Path
sys.path.insert(0, ".")
from ncclscope.ring import layout
from tests.support.hostile import survive
from tests.support.rings import seal_header, set_word
import numpy

held = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (held + (600 << 20), resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
path = Path(sys.argv[1])
sound = path.read_bytes()
read = 0
for sizes in (
    (1 << 40, 8192, 65536, 16384, 128, 8192, 65536, 0),
    (1 << 22, 8192, 65536, 16384, 128, 8192, 65536, 0),
    (1024, 1 << 40, 65536, 16384, 128, 8192, 65536, 0),
    (1024, 8192, 1 << 40, 16384, 128, 8192, 65536, 0),
    (1024, 8192, 65536, 1 << 40, 128, 8192, 65536, 0),
    (1024, 8192, 65536, 16384, 1 << 35, 8192, 65536, 0),
    (1024, 8192, 65536, 16384, 128, 1 << 40, 65536, 0),
    (1024, 8192, 65536, 16384, 128, 8192, 1 << 40, 0),
    (1024, 8192, 65536, 16384, 128, 8192, 65536, 1 << 40),
    (1024, 1 << 20, 1 << 26, 1 << 26, 1 << 20, 65535, 1 << 26, 1 << 26),
):
    image = bytearray(sound)
    struct.pack_into("<8Q", image, 16, *sizes)
    seal_header(image)
    total = layout.Geometry(*sizes).total
    if total < 1 << 34:
        image += bytes(max(0, layout.Geometry(*sizes).strings - len(image)))
        for word in (*range(layout.WORDS, layout.WORDS_END, 8), layout.HEADER_REUSED):
            set_word(image, word, int.from_bytes(sound[word : word + 8], "little"))
        set_word(image, layout.HEADER_STRINGS_USED, sizes[2])
        set_word(image, layout.HEADER_GRAPHS_USED, sizes[6])
    path.write_bytes(image)
    os.truncate(path, min(total, 1 << 43))
    read += survive(path) is not None
print("survived", read)
"""


def test_files_that_are_larger_than_any_memory(tmp_path: Path, sound: Sound) -> None:
    path = tmp_path / "x.ring"
    path.write_bytes(sound.data)

    completed = run_program(SPARSE, path, timeout=60)

    assert completed.stdout == "survived 2\n", completed.stderr
    assert completed.returncode == 0


DEEP = "[" * 4000 + "]" * 4000
RUBBISH: list[Any] = [
    None, True, -1, 0, 3.5, float("nan"), 10**18, 10**30, -(10**30), "", "x", "\ud800", "7" * 4000,
    [], [1, "x"], [[]], [None], {}, {"a": {}}, [10**30], [-1], [1 << 62],
]  # fmt: skip


@pytest.mark.parametrize("value", RUBBISH, ids=repr)
@pytest.mark.parametrize(
    "name",
    ["rank", "world_size", "host", "pid", "gpu", "labels", "started_ns", "run", "boot_id"],
)
def test_what_a_process_says_of_itself_may_be_anything(
    tmp_path: Path, name: str, value: Any
) -> None:
    tracer = tracer_in(tmp_path, details={name: value})
    fill(tracer, tracer.communicator("k", "tp:0", [0, 1]), 1, 4)

    run = survive(tmp_path)

    assert run is not None
    (rank,) = (*run.ranks, *run.others)
    check_log(rank.logs["k"], 1, 3)


@pytest.mark.parametrize("value", RUBBISH, ids=repr)
@pytest.mark.parametrize("name", ["key", "label", "ranks", "backend", "comm"])
def test_the_description_of_a_communicator_may_be_anything(
    tmp_path: Path, name: str, value: Any
) -> None:
    ring = RingWriter(tmp_path, capacity=SMALL, about={"rank": 0})
    about = {"key": "k", "label": "tp:0", "ranks": [0, 1], "backend": "nccl"}
    channel = ring.channel(about | {name: value})
    ring.post(channel, ring.fixed(channel, "all_reduce"), 5)
    ring.update_channel(channel, {"label": "tp:1", name: value})

    survive(tmp_path)


@pytest.mark.parametrize(
    "text", [DEEP, '{"a":' * 3000, "{", "null", "[]", '"x"', "1" * 5000, '{"key": "k"', "\x00"]
)
@pytest.mark.parametrize("kind", [layout.KIND_COMM, layout.KIND_COMM_UPDATE, layout.KIND_SHAPE])
def test_texts_may_be_anything(tmp_path: Path, kind: int, text: str) -> None:
    ring = RingWriter(tmp_path, capacity=SMALL, about={"rank": 0})
    channel = ring.channel({"key": "k", "label": "tp:0", "ranks": [0], "backend": ""})
    ring._interner.text(kind, text)
    fixed = bytearray(ring.fixed(channel, "all_reduce", out_shape=(1,)))
    fixed[44:48] = (1).to_bytes(4, "little")
    ring.post(channel, bytes(fixed), 5)

    run = survive(tmp_path)

    assert run is not None
    assert run.ranks[0].logs["k"].calls == 1


def test_a_self_description_that_is_nested_too_deeply(tmp_path: Path) -> None:
    tracer = tracer_in(tmp_path)
    ring = tracer.ring
    image = bytearray(ring.path.read_bytes())
    data = DEEP[:4000].encode()
    for copy in (0, 1):
        offset = ring.geometry.about + copy * ring.geometry.about_size
        layout.ABOUT.pack_into(image, offset, 9, len(data), zlib.crc32(data, 9), 0)
        image[offset + 20 : offset + 20 + len(data)] = data
    ring.path.write_bytes(image)

    run = survive(tmp_path)

    assert run is not None
    assert run.others[0].host == ""


def test_a_self_description_that_is_too_long_keeps_what_fits(tmp_path: Path) -> None:
    details = {f"field{number}": "x" * 500 for number in range(40)}
    tracer = tracer_in(tmp_path, rank=3, world_size=4, details=details)
    tracer.describe(huge="y" * 100_000)

    (rank,) = open_run(tmp_path).ranks

    assert (rank.rank, rank.world_size, rank.pid) == (3, 4, os.getpid())
    assert sum(name in rank.details for name in details) > 5
    assert "huge" not in rank.details


def test_more_ranks_than_there_can_be(tmp_path: Path) -> None:
    tracer = tracer_in(tmp_path, rank=1, world_size=10**15)
    tracer.communicator("k", "tp:0", [0, 10**15])
    tracer.record(tracer.communicator("k"), "barrier")

    run = open_run(tmp_path)

    assert run.expected == 2
    assert run.missing == (0,)
    assert any("are implausible" in note for note in run.notes)
    assert MAX_RANKS < 10**15


# --- files that are none -------------------------------------------------------------------


@pytest.fixture
def among_others(tmp_path: Path) -> Iterator[Path]:
    """A directory with one sound ring, for something to be put beside it."""
    directory = tmp_path / "rings"
    directory.mkdir()
    tracer = tracer_in(directory)
    fill(tracer, tracer.communicator("k"), 1, 6)
    yield directory
    run = open_run(directory)
    check_log(run.ranks[0].logs["k"], 1, 5)


NAMES = ["x.ring", "x.jsonl", "x.jsonl.gz", "x.ring.moved"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(20)
def test_pipes_and_sockets_are_not_waited_for(among_others: Path, name: str) -> None:
    os.mkfifo(among_others / name)
    with socket.socket(socket.AF_UNIX) as server:
        place = os.getcwd()
        os.chdir(among_others)
        server.bind(f"socket.{name}")
        os.chdir(place)
    for path in (among_others / name, among_others / f"socket.{name}"):
        with pytest.raises(InputError):
            open_run(path)
    assert len(open_run(among_others).ranks) == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(20)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device files")
def test_devices_are_not_read(among_others: Path, name: str) -> None:
    path = among_others / name
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("devices cannot be made here")
    with pytest.raises(InputError):
        open_run(path)
    assert len(open_run(among_others).ranks) == 1


@pytest.mark.timeout(20)
def test_what_is_no_file_is_named(among_others: Path) -> None:
    os.mkfifo(among_others / "a.ring")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(among_others / "b.ring"))
    (among_others / "c.ring").symlink_to("nowhere")
    (among_others / "d.ring").mkdir()
    (among_others / "e.ring").symlink_to("/dev/null")

    notes = open_run(among_others).notes

    kinds = {"a": "a FIFO", "b": "a socket", "c": "a dangling link", "d": "a directory"}
    for name, kind in {**kinds, "e": "a device"}.items():
        assert f"{among_others / name}.ring is no ring: {kind}" in notes
    with pytest.raises(InputError, match="no ring: a FIFO"):
        open_run(among_others / "a.ring")


@pytest.mark.timeout(20)
def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        with pytest.raises(DamagedFileError, match="is not a regular file"):
            open_regular(path)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.close(open_regular(tmp_path / "link"))
    with pytest.raises(OSError, match="symbolic links"):
        open_regular(tmp_path / "link", follow=False)


def test_a_path_with_a_zero_byte_is_refused() -> None:
    with pytest.raises(DamagedFileError, match="cannot be opened"):
        open_regular("0:/dev/shm/a\0.ring")


@pytest.mark.parametrize("name", NAMES)
def test_directories_with_the_names_of_files(among_others: Path, name: str) -> None:
    (among_others / name).mkdir()
    with pytest.raises(NothingFoundError):
        open_run(among_others / name)
    tracer = tracer_in(among_others / name, rank=1)
    fill(tracer, tracer.communicator("k"), 1, 3)
    assert len(open_run(among_others).ranks) == 2


@pytest.mark.parametrize("name", NAMES)
def test_links(among_others: Path, name: str) -> None:
    (among_others / name).symlink_to(among_others / "nowhere")
    loop = among_others / f"loop-{name}"
    loop.symlink_to(loop)
    zero = among_others / f"zero-{name}"
    zero.symlink_to("/dev/zero")
    for path in (among_others / name, loop, zero):
        with pytest.raises(InputError):
            open_run(path)
    assert len(open_run(among_others).ranks) == 1


@pytest.mark.parametrize("name", NAMES)
def test_empty_files_and_rubbish(among_others: Path, name: str) -> None:
    (among_others / f"empty-{name}").touch()
    (among_others / name).write_bytes(os.urandom(10_000))
    run = open_run(among_others)
    assert len(run.ranks) == 1
    # An empty ring is one that could not be written.
    assert len(run.notes) == (0 if name.endswith(".moved") else 2 if name.endswith(".ring") else 1)


def test_names_that_are_no_text(among_others: Path) -> None:
    name = b"\xff\xfe\n.ring"
    with open(os.path.join(os.fsencode(among_others), name), "wb") as file:
        file.write(b"rubbish")
    (note,) = open_run(among_others).notes
    note.encode()
    assert "\n" not in note


@pytest.mark.parametrize("path", ["", ".", "nowhere/at/all", "x" * 5000, "a\0b", "/etc/passwd"])
def test_paths_that_are_none(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        open_run(path)
    assert "\n" not in str(caught.value)


UNREADABLE = """
import os, sys
from ncclscope import NcclscopeError, open_run
try:
    open_run(sys.argv[1])  # so that all modules have been imported
except NcclscopeError:
    pass
if os.geteuid() == 0:
    os.setuid(65534)
for path in sys.argv[1:]:
    try:
        run = open_run(path)
        print(len(run.ranks), len(run.notes), "ermission denied" in " ".join(run.notes))
    except NcclscopeError as error:
        print(type(error).__name__, "ermission denied" in str(error))
"""


def test_files_and_directories_that_may_not_be_read(tmp_path: Path) -> None:
    rings = tmp_path / "rings"
    for rank in range(2):
        tracer = tracer_in(rings, rank=rank)
        fill(tracer, tracer.communicator("k"), 1, 3)
    one, two = sorted(rings.glob("*.ring"))
    one.chmod(0o644)
    two.chmod(0)
    rings.chmod(0o755)
    closed = rings / "closed"
    closed.mkdir(mode=0)
    for parent in rings.parents:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)

    completed = run_program(UNREADABLE, rings, two, closed, closed / "x.ring")

    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines() == [
        "1 2 True",
        "InputError True",
        "InputError True",
        "InputError True",
    ]
    closed.chmod(0o700)
