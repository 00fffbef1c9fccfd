"""Rings with damage in the place that matters: never a silent OK, never a rank blamed for it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ncclscope.engine.verdict import diagnose
from ncclscope.errors import NcclscopeError
from ncclscope.model import Call
from ncclscope.readers import open_run
from ncclscope.ring import entries, layout
from ncclscope.ring.reader import RingFile
from ncclscope.wording.names import call_text
from tests.support.cluster import Cluster
from tests.support.examples import EVERYTHING
from tests.support.rings import (
    SMALL,
    check_log,
    fill,
    put_word,
    read,
    reseal,
    seal_record,
    tracer_in,
)

HASH = 16
"""Where the running hash is in a record."""
SEQ = 24
SIZES = 68
SITE = 72
DESCRIPTION = b'{"key"'


def damage(path: Path, text: bytes) -> None:
    """Overwrite one byte at the beginning of a text of a ring, and of its copy."""
    path.write_bytes(path.read_bytes().replace(text, b"\xff" + text[1:]))


def ring_of(cluster: Cluster, rank: int) -> Path:
    return Path(open_run(cluster.directory).by_rank[rank].source)


@pytest.fixture
def diverged(tmp_path: Path) -> Cluster:
    """Four ranks, of which rank 2 has left a call out and gone on."""
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history()
    cluster.post([0, 1, 3], "tp:0", "all_gather", shape=(7,))
    for size in (20, 21, 22):
        cluster.post(cluster.everybody, "tp:0", shape=(size, 3), done=False)
    for tracer in cluster.tracers:
        tracer.close()
    assert diagnose(cluster.run()).status == "diverged"
    return cluster


def test_a_damaged_description_of_a_communicator_is_not_ok(diverged: Cluster) -> None:
    damage(ring_of(diverged, 2), DESCRIPTION)

    verdict = diagnose(open_run(diverged.directory))

    # All processes exited in order, so none of them waits for rank 2.
    assert (verdict.status, verdict.cause) == ("incomplete", None)
    assert "Some records of rank 2 are damaged" in verdict.summary
    assert "rank 2: the calls on 1 communicator cannot be read" in " ".join(verdict.coverage.unseen)


def test_texts_that_are_cut_short_are_not_ok(diverged: Cluster) -> None:
    put_word(ring_of(diverged, 2), layout.HEADER_STRINGS_USED, 16)

    verdict = diagnose(open_run(diverged.directory))

    assert (verdict.status, verdict.cause) == ("incomplete", None)
    assert not verdict.coverage.complete


def test_a_rank_whose_record_is_damaged_makes_agreement_incomplete(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history()
    for tracer in cluster.tracers:
        tracer.close()
    damage(ring_of(cluster, 2), DESCRIPTION)

    verdict = diagnose(open_run(cluster.directory))

    assert verdict.status == "incomplete"
    assert "Some records of rank 2 are damaged" in verdict.summary


def test_the_rest_is_judged(tmp_path: Path) -> None:
    """Rank 0's record is damaged, and rank 2 left a call out."""
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history()
    cluster.post([0, 1, 3], "tp:0", "all_gather", shape=(7,))
    for size in (20, 21, 22):
        cluster.post(cluster.everybody, "tp:0", shape=(size, 3), done=False)
    damage(ring_of(cluster, 0), DESCRIPTION)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("missing_call", (2,))
    assert cause.confidence != "certain"


def test_a_rank_whose_record_is_damaged_is_not_reported_late(tmp_path: Path) -> None:
    """All have posted the same, and wait; the record of one is damaged."""
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history()
    cluster.post(cluster.everybody, "tp:0", "all_gather", done=False)
    damage(ring_of(cluster, 2), DESCRIPTION)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("stalled", ())


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("how", ["empty", "cut", "description", "records"])
def test_damage_hides_no_other_rank_that_is_late(tmp_path: Path, how: str, size: int) -> None:
    """Rank 1 did not post the last call; whether rank 0 did is not known. Of five, three did."""
    cluster = Cluster(tmp_path / "rings", size)
    cluster.history()
    cluster.post(range(2, size), "tp:0", "all_gather", done=False)
    path = ring_of(cluster, 0)
    if how == "description":
        damage(path, DESCRIPTION)
    elif how == "records":
        data, records = bytearray(path.read_bytes()), records_of(path)
        data[records.start : records.stop] = bytes(len(records))
        path.write_bytes(data)
    else:
        path.write_bytes(path.read_bytes()[: 4096 if how == "cut" else 0])

    verdict = cluster.verdict()

    assert verdict.cause is not None, verdict.summary
    assert verdict.cause.kind == "not_joined"
    assert verdict.cause.diverging_ranks == ((1,) if size == 5 else ())
    assert verdict.summary.startswith("Rank 1 (node-0, pid 1001) never joined call 6")
    assert "unknown whether rank 0 joined it" in verdict.summary
    assert not any("left no record" in one.summary for one in verdict.findings)
    assert how != "empty" or any(note.endswith(".ring is empty") for note in verdict.notes)


@pytest.mark.parametrize("lost", [1, 3])
def test_newest_records_that_are_zeroed_make_agreement_incomplete(
    tmp_path: Path, lost: int
) -> None:
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history()
    for tracer in cluster.tracers:
        tracer.close()
    path = ring_of(cluster, 2)
    records = records_of(path)
    data = bytearray(path.read_bytes())
    start = records.stop - lost * layout.RECORD.size
    data[start : records.stop] = bytes(records.stop - start)
    path.write_bytes(data)

    verdict = diagnose(open_run(cluster.directory))

    assert (verdict.status, verdict.cause) == ("incomplete", None)
    assert "Some records of rank 2 are damaged" in verdict.summary
    # The count says that they were never made; the table still knows of them.
    count = len(records) // layout.RECORD.size - lost
    put(path, layout.HEADER_COUNT, layout.COUNT.pack(count, count ^ (1 << 64) - 1))
    verdict = diagnose(open_run(cluster.directory))
    assert (verdict.status, verdict.cause) == ("incomplete", None)


def test_a_line_that_was_lost_is_no_other_line(tmp_path: Path) -> None:
    """Equal calls: of rank 0, the line of the first and the whole last record are zeroed."""
    cluster = Cluster(tmp_path / "rings", 3)
    for _ in range(3):
        cluster.post(cluster.everybody, "tp:0", shape=(10, 2))
    for tracer in cluster.tracers:
        tracer.close()
    path = ring_of(cluster, 0)
    records = records_of(path)
    data = bytearray(path.read_bytes())
    data[records.start + SITE : records.start + SITE + 4] = bytes(4)
    data[records.stop - layout.RECORD.size : records.stop] = bytes(layout.RECORD.size)
    path.write_bytes(data)

    verdict = diagnose(open_run(cluster.directory))

    assert (verdict.status, verdict.cause) == ("incomplete", None)


def flip(path: Path, offset: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def spoil(path: Path, offset: int, bit: int) -> None:
    """Flip two bits of a byte of a record; a single one would be corrected."""
    flip(path, offset, bit)
    flip(path, offset, (bit + 3) % 8)


def put(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def records_of(path: Path) -> range:
    """Return where a ring's records lie, each of 96 bytes."""
    ring = RingFile(path)
    start = ring.geometry.records
    return range(start, start + ring.head * layout.RECORD.size)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_record_that_contradicts_its_hash_is_never_shown_as_a_call(
    tmp_path: Path, sealed: bool
) -> None:
    """Where a check was made to fit, the running hash still contradicts the other fields."""
    cluster = Cluster(tmp_path / "rings", 2)
    cluster.history(count=2)
    path = ring_of(cluster, 1)
    whole = path.read_bytes()
    shown = {call_text(call) for call in calls_of(cluster)}
    altered = 0
    places = records_of(path)
    for offset in places:
        path.write_bytes(whole)
        flip(path, offset, offset % 7)
        if sealed:
            reseal(path, (offset - places.start) // layout.RECORD.size)
        try:
            found = calls_of(cluster)
        except NcclscopeError:
            continue  # one line, and no call
        texts = {call_text(call) for call in found}
        assert texts - shown <= {"a damaged record"}, f"byte {offset - places.start}"
        altered += "a damaged record" in texts
    assert altered > 50 if sealed else not altered


def test_each_changed_byte_of_a_record_is_damage(tmp_path: Path) -> None:
    """The call is not shown, and the reader says where a record is missing."""
    tracer = tracer_in(tmp_path)
    fill(tracer, tracer.communicator("k", "tp:0", [0]), 1, 4)
    path = Path(tracer.path)
    whole, places = path.read_bytes(), records_of(path)
    for offset in places[:: 1 if EVERYTHING else 7]:
        put(path, offset, bytes([whole[offset] ^ 9 << offset % 4]))
        position = (offset - places.start) // layout.RECORD.size
        with RingFile(path) as ring:
            assert (ring.head, ring.holes) == (3 if position < 2 else 2, [position]), offset
            assert ring.damage == {"records"}
            assert ring.uncertain == ({1} if position == 2 else set())
            kept = [begin - 1 for begin in ring.window(0, 3)["begin"].tolist()]
        assert kept == [number for number in range(3) if number != position], offset
        put(path, offset, whole[offset : offset + 1])


def test_a_flipped_bit_of_a_record_is_corrected(tmp_path: Path) -> None:
    """But for the upper bits of a word, where more damages change the check alike."""
    tracer = tracer_in(tmp_path)
    fill(tracer, tracer.communicator("k", "tp:0", [0]), 1, 4)
    path = Path(tracer.path)
    whole, places = path.read_bytes(), records_of(path)
    with RingFile(path) as ring:
        records = ring.window(0, 3).tobytes()
    found: Counter[bool] = Counter()
    for number in range(0, 3 * 8 * layout.RECORD.size, 1 if EVERYTHING else 7):
        offset = places.start + number // 8
        flip(path, offset, number % 8)
        with RingFile(path) as ring:
            is_corrected = not ring.holes
            found[is_corrected] += 1
            assert not is_corrected or ring.window(0, 3).tobytes() == records, number
        put(path, offset, whole[offset : offset + 1])
    assert found[True] > 0.5 * found.total()


def calls_of(cluster: Cluster) -> list[Call]:
    run = open_run(cluster.directory)
    logs = [log for rank in run.ranks if rank.rank == 1 for log in rank.logs.values()]
    return [call for log in logs for call in log.span(1, log.calls + 1)]


@pytest.mark.parametrize("before", [0, 1])
def test_damage_in_a_hash_at_the_divergence_is_not_certain(diverged: Cluster, before: int) -> None:
    """The hash of the call at which rank 2 differs, or of the one before it."""
    path = ring_of(diverged, 2)
    record = records_of(path).start + (5 - before) * layout.RECORD.size
    spoil(path, record + HASH, 3)

    verdict = diagnose(open_run(diverged.directory))

    if before:  # the next record shows the hash
        assert verdict.cause is not None
        assert (verdict.cause.diverging_ranks, verdict.cause.confidence) == ((2,), "likely")
    else:
        assert (verdict.status, verdict.cause) == ("incomplete", None)
        assert "Some records of rank 2 are damaged" in verdict.summary
    reseal(path, 5 - before)
    verdict = diagnose(open_run(diverged.directory))
    assert (verdict.status, verdict.cause) == ("incomplete", None)
    assert "is damaged on one side" in verdict.summary


def test_damage_in_a_hash_that_later_calls_contradict_is_no_difference(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history(count=6)
    for tracer in cluster.tracers:
        tracer.close()
    path = ring_of(cluster, 2)
    flip(path, records_of(path).start + 2 * layout.RECORD.size + HASH, 3)

    assert diagnose(open_run(cluster.directory)).cause is None
    reseal(path, 2)
    assert diagnose(open_run(cluster.directory)).status == "ok"


def flip_text(path: Path, kind: int, number: int, *, length: bool = False) -> None:
    """Flip a bit of an interned text, or of its length."""
    with RingFile(path) as ring:
        start, used = ring.geometry.strings, ring.word(layout.HEADER_STRINGS_USED)
        copy = layout.pages(ring.geometry.strings_size)
        data = ring.read_bytes(start, used)
    (offset,) = (
        start + entry.offset
        for entry in entries.read(data)
        if (entry.kind, entry.number) == (kind, number)
    )
    for place in (offset, offset + copy):
        flip(path, place if length else place + layout.ENTRY.size, 3)


@pytest.mark.parametrize("length", [False, True])
def test_a_damaged_name_is_no_other_name(tmp_path: Path, length: bool) -> None:
    cluster = Cluster(tmp_path / "rings", 2)
    for op in ("all_reduce", "all_gather", "broadcast"):
        cluster.post((0, 1), "tp:0", op, dtype="float32")
    cluster.post((0, 1), "tp:0", "send", peer=1)
    path = ring_of(cluster, 1)
    flip_text(path, layout.KIND_OP, 2, length=length)

    texts = RingFile(path).texts[layout.KIND_OP]
    assert set(texts) <= {"all_reduce", "all_gather", "broadcast", "send", ""}
    assert texts[:2] == ["all_reduce", ""]
    shown = {call_text(call) for call in calls_of(cluster)}
    assert shown <= {
        *("all_reduce sum [4,2] float32", "broadcast [4,2] float32", "a damaged record"),
    }


def test_a_damaged_key_is_no_other_communicator(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 3)
    cluster.history()
    for tracer in cluster.tracers:
        tracer.close()
    path = ring_of(cluster, 1)
    path.write_bytes(path.read_bytes().replace(b'"tp:0/0,1,2"', b'"tp:0/2,1,2"'))

    verdict = diagnose(open_run(cluster.directory))

    assert set(verdict.run.by_rank[1].logs) == set()
    assert verdict.status == "incomplete"


def test_a_damaged_graph_is_no_other_graph(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 2)
    for rank in (0, 1):
        graphs = cluster.tracers[rank].graphs
        begun = graphs.begin()
        for rows in (3, 4):
            cluster.post([rank], "tp:0", shape=(rows, 2), captured=True, done=False)
        graph = graphs.end(begun)
        for _ in range(2):
            cluster.tracers[rank].complete(graph.replay())
    for tracer in cluster.tracers:
        tracer.close()
    path = ring_of(cluster, 1)
    whole = path.read_bytes()
    shown = {call_text(call) for call in calls_of(cluster)}
    start = RingFile(path).geometry.graphs
    for offset in range(start, start + RingFile(path).graphs_used):
        path.write_bytes(whole)
        flip(path, offset, offset % 8)
        try:
            texts = {call_text(call) for call in calls_of(cluster)}
        except NcclscopeError:
            continue
        assert texts <= shown | {"a damaged record"}, f"byte {offset - start}"


def sends(directory: Path) -> Cluster:
    """Three ranks, each of which has sent to the next."""
    cluster = Cluster(directory, 3)
    for rows in (3, 4, 5):
        for rank in (0, 1):
            cluster.post([rank], "pp:0", "send", peer=rank + 1, shape=(rows, 2))
            cluster.post([rank + 1], "pp:0", "recv", peer=rank, shape=(rows, 2))
        cluster.history(count=1)
    for tracer in cluster.tracers:
        tracer.close()
    return cluster


def test_damage_in_the_record_of_a_send_is_no_mismatch(tmp_path: Path) -> None:
    """Sends take no part in the running hash, but their fields contradict each other."""
    cluster = sends(tmp_path / "rings")
    path = ring_of(cluster, 1)
    whole = path.read_bytes()
    unseen = 0
    step = 3 if EVERYTHING else 9
    for offset in records_of(path)[::step]:
        path.write_bytes(whole)
        spoil(path, offset, (offset * 5 + 3) % 8)
        verdict = diagnose(open_run(cluster.directory))
        assert verdict.status in ("ok", "incomplete"), f"byte {offset - records_of(path).start}"
        unseen += "records of sends or receives on pp:0" in " ".join(verdict.coverage.unseen)
    assert unseen > 60 // step


def test_a_clipped_size_that_contradicts_the_element_count_is_damage(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 2)
    cluster.post((0, 1), "tp:0", shape=(1 << 33, 2))
    cluster.post((0, 1), "tp:0", shape=(3, 2))
    path = ring_of(cluster, 1)
    data = bytearray(path.read_bytes())
    second = records_of(path).start + layout.RECORD.size
    data[second + 40 : second + 48] = b"\xff\xff\xff\xff\0\0\0\0"
    seal_record(data, second)
    path.write_bytes(data)

    assert [call_text(call) for call in calls_of(cluster)] == [
        "all_reduce sum [4294967295,2] float32",
        "a damaged record",
    ]


def test_a_root_where_the_operation_has_none_is_damage(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 2)
    cluster.post((0, 1), "tp:0", "all_gatherv", shape=(1, 2), sizes=(1, 3))
    path = ring_of(cluster, 1)
    data = bytearray(path.read_bytes())
    start = records_of(path).start
    data[start + 66 : start + 72] = bytes(6)  # half of the root, and the place of the sizes
    seal_record(data, start)
    path.write_bytes(data)

    assert [call_text(call) for call in calls_of(cluster)] == ["a damaged record"]


@pytest.mark.parametrize("op", ["reduce_scatter", "all_reduce", "send"])
def test_sizes_of_another_call_are_not_shown(tmp_path: Path, op: str) -> None:
    cluster = Cluster(tmp_path / "rings", 2)
    sizes = {"peer": 1} if op == "send" else {}
    cluster.post([0], "tp:0", "all_gatherv", shape=(1, 2), sizes=(1, 2))
    cluster.post([0], "tp:0", op, shape=(3, 2), **sizes)
    for tracer in cluster.tracers:
        tracer.close()
    ring = ring_of(cluster, 0)
    with RingFile(ring) as image:
        geometry = image.geometry
    places = [geometry.records + number * layout.RECORD.size + SIZES for number in range(2)]
    data = bytearray(ring.read_bytes())
    data[places[1] : places[1] + 4] = data[places[0] : places[0] + 4]
    seal_record(data, places[1] - SIZES)
    ring.write_bytes(data)

    rank = open_run(cluster.directory).by_rank[0]

    (log,) = rank.logs.values()
    assert log.call(1).sizes == (1, 2)
    calls = [log.call(2)] if op != "send" else next(iter(rank.p2p.values()))
    assert [call.sizes for call in calls] == [None]


def test_a_torn_last_record_of_a_process_that_ended_in_order_is_damage(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 3)
    cluster.history()
    paths = [ring_of(cluster, rank) for rank in range(3)]
    for path in paths:  # the last call of all, so that nobody is behind
        flip(path, records_of(path).stop - 8, 0)
        put(path, layout.HEADER_COUNT, layout.COUNT.pack(4, 4 ^ (1 << 64) - 1))
    assert diagnose(open_run(cluster.directory)).coverage.complete  # killed in it
    for tracer in cluster.tracers:
        tracer.close()

    verdict = diagnose(open_run(cluster.directory))

    assert verdict.status == "incomplete"
    assert verdict.coverage.unseen == ("ranks 0-2: the record of its last call is damaged",)


def test_a_rank_whose_ring_cannot_be_read_is_not_gone(diverged: Cluster) -> None:
    """Its calls are found missing when they are asked for; the others wait for rank 2."""
    path = ring_of(diverged, 0)
    for number in (2, 3):  # of one alone, the next record would show the hash
        spoil(path, records_of(path).start + number * layout.RECORD.size + SEQ, 4)

    verdict = diagnose(open_run(diverged.directory))

    assert verdict.run.unreadable == (0,)
    assert verdict.cause is None or 0 not in verdict.cause.diverging_ranks
    assert "the records of rank 0 cannot be read, and are left out" in verdict.coverage.unseen


def test_a_rank_whose_ring_is_refused_is_not_gone(diverged: Cluster) -> None:
    path = ring_of(diverged, 0)
    flip(path, 0, 4)
    flip(path, layout.MIRROR, 4)

    verdict = diagnose(open_run(diverged.directory))

    assert verdict.run.unreadable == (0,)
    assert "rank 0 left no record" not in verdict.coverage.unseen
    path.unlink()
    assert "rank 0 left no record" in diagnose(open_run(diverged.directory)).coverage.unseen


def test_ranks_that_wait_for_one_whose_ring_cannot_be_read_name_nobody(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 3)
    cluster.history()
    cluster.post((1, 2), "tp:0", "all_gather", done=False)
    cluster.post((0,), "tp:0", "all_gather", done=False)
    path = ring_of(cluster, 0)
    flip(path, records_of(path).start + 2 * layout.RECORD.size + SEQ, 4)

    cause = cluster.verdict().cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("stalled", ())
    reseal(path, 2)
    cause = cluster.verdict().cause
    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("stalled", ())
    assert "It is unknown whether rank 0 joined it" in cause.summary


def test_a_table_that_no_record_confirms_is_not_believed(tmp_path: Path) -> None:
    """Else the calls that are there would count as overwritten by some that never were."""
    tracer = tracer_in(tmp_path)
    fill(tracer, tracer.communicator("k", "tp:0", [0]), 1, SMALL)
    ring, damaged = tracer.ring, 0
    tracer.close()
    with open(ring.path, "r+b") as file:
        for number in range(2 * layout.MAX_COMMS):
            file.seek(place := ring.geometry.table + number * layout.TABLE_ENTRY.size)
            begin, *fields, _ = layout.TABLE_ENTRY.unpack(file.read(layout.TABLE_ENTRY.size))
            if begin:
                file.seek(place)
                file.write(layout.sealed(layout.TABLE_ENTRY.pack(1 << 20, *fields, 0)))
                damaged += 1

    assert damaged
    check_log(read(ring.path).logs["k"], 1, SMALL - 1)
