"""Texts and sizes lists: stored once, and without harm when there is no room for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ncclscope.model.signature import extend, sign
from ncclscope.ring import layout
from ncclscope.ring.intern import Interner
from ncclscope.ring.reader import RingFile
from ncclscope.tracing.tracer import Comm, Tracer
from tests.support.programs import run_program
from tests.support.rings import SMALL, check_log, fill, read, signature, tracer_in


def gatherv(tracer: Tracer, comm: Comm, number: int, members: int = 8) -> tuple[int, ...]:
    """Record an all_gatherv with sizes that no other call has; return them."""
    sizes = (number, *range(1, members))
    tracer.record(comm, "all_gatherv", shape=(3, 5), dtype="int32", sizes=sizes, site="here")
    return sizes


def gatherv_signature(sizes: tuple[int, ...]) -> int:
    return sign("all_gatherv", dtype="int32", shape=(3, 5), sizes=sizes)


def test_equal_texts_and_sizes_are_stored_once(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    for _ in range(3):
        gatherv(tracer, comm, 7)
        tracer.record(comm, "all_reduce", shape=(2,), out_shape=(4, 2), site="there")
    ring = RingFile(Path(tracer.path))
    assert ring.texts[layout.KIND_OP] == ["all_gatherv", "all_reduce"]
    assert ring.texts[layout.KIND_SITE] == ["here", "there"]
    assert ring.texts[layout.KIND_SHAPE] == ["4,2"]
    places = {int(record["sizes"]) for record in ring.window(0, 6)}
    assert len(places) == 2
    assert 0 in places


@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
@pytest.mark.parametrize("laps", [1, 3])
def test_a_sizes_list_that_was_overwritten_is_none_and_its_signature_still_right(
    rings: Path, laps: int, ended: bool
) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    # A list of 40 takes 336 bytes, so that the heap goes round long before the records do.
    sizes = [gatherv(tracer, comm, number, members=40) for number in range(laps * SMALL)]
    (log,) = read(tracer.path, ended=ended).logs.values()

    calls = log.span(log.first, log.calls + 1)

    shown = [call.sizes for call in calls if call.sizes is not None]
    assert shown == sizes[-len(shown) :]
    assert 20 < len(shown) < 60
    expected = [gatherv_signature(each) for each in sizes]
    assert [call.signature for call in calls] == expected[log.first - 1 :]
    assert list(log.signatures(log.first, log.calls + 1)) == expected[log.first - 1 :]
    value = 0
    for seq, each in enumerate(expected, 1):
        value = extend(value, each)
        if seq >= log.first - 1:
            assert log.fingerprint(seq) == value
    # The oldest that is kept cannot be signed again, so it only serves for its hash.
    assert log.first == (1 if laps == 1 else (laps - 1) * SMALL + 2)


def test_the_oldest_record_is_shown_where_it_can_be_signed_again(rings: Path) -> None:
    tracer = tracer_in(rings)
    rare, busy = tracer.communicator("rare"), tracer.communicator("busy")
    sizes = gatherv(tracer, rare, 1)
    gatherv(tracer, rare, 2)
    fill(tracer, busy, 1, SMALL)

    log = read(tracer.path).logs["rare"]

    assert (log.first, log.calls) == (2, 2)
    assert log.fingerprint(1) == gatherv_signature(sizes)


def test_the_oldest_record_is_not_signed_again_from_a_shape_that_was_cut_down(
    rings: Path,
) -> None:
    tracer = tracer_in(rings)
    rare, busy = tracer.communicator("rare"), tracer.communicator("busy")
    shape, sizes = (3, 1 << 33), (3, 4)
    for _ in range(3):
        tracer.record(rare, "all_gatherv", shape=shape, sizes=sizes, site="x")
    fill(tracer, busy, 1, SMALL - 1)

    log = read(tracer.path).logs["rare"]

    signed = sign("all_gatherv", shape=shape, sizes=sizes)
    assert (log.first, log.calls) == (3, 3)
    assert log.fingerprint(2) == extend(signed, signed)
    assert log.call(3).signature == signed


def test_a_full_heap_or_a_list_too_long_for_it_costs_only_the_list(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    sizes = gatherv(tracer, comm, 1, members=100_000)

    (call,) = read(tracer.path).logs["k"].span(1, 2)

    assert (call.op, call.sizes, call.signature) == (
        "all_gatherv",
        None,
        gatherv_signature(sizes),
    )


@pytest.mark.usefixtures("python_writer")
def test_places_in_the_heap_begin_again_where_a_record_cannot_distinguish_them(
    rings: Path,
) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    interner: Any = tracer.ring._interner
    # 32 GB of lists would take a while to write.
    interner._heap_used = (
        layout.HEAP_END // interner._geometry.heap_size * (interner._geometry.heap_size)
    )
    interner._heap_used -= 200
    template = tracer.template(comm, "all_gatherv", shape=(1,), sizes=(1, 2))
    sizes = [gatherv(tracer, comm, number) for number in range(6)]

    assert [call.sizes for call in read(tracer.path).logs["k"].span(1, 7)] == sizes
    assert interner._heap_used < 1000
    assert not tracer.ring.holds_sizes(template.fixed)


def test_without_room_for_text_calls_are_still_counted_and_signed(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    fill(tracer, comm, 1, 20)
    number = 0
    while tracer.ring._interner.text(layout.KIND_ACTIVITY, f"{number:0400d}"):
        number += 1
    while tracer.ring._interner.text(layout.KIND_ACTIVITY, f"{number:x}"):
        number += 1
    tracer.record(comm, "new_op", shape=(2, 3), dtype="new_dtype", redop="new", site="new")
    fill(tracer, comm, 21, 30)

    log = read(tracer.path).logs["k"]

    call = log.call(20)
    assert (call.op, call.dtype, call.redop, call.site) == ("?", None, None, None)
    assert call.signature == sign("new_op", dtype="new_dtype", redop="new", shape=(2, 3))
    assert log.calls == 29
    assert [call.signature for call in log.span(21, 30)] == [
        signature(number) for number in range(21, 30)
    ]
    # Nothing is in the way of what is known already.
    assert tracer.communicator("k") is comm


def test_without_room_for_a_communicator_its_calls_are_recorded_as_those_of_none(
    rings: Path,
) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    fill(tracer, comm, 1, 20)
    number = 0
    while tracer.ring._interner.text(layout.KIND_ACTIVITY, f"{number:0400d}"):
        number += 1
    while tracer.ring._interner.text(layout.KIND_ACTIVITY, f"{number:x}"):
        number += 1
    another = tracer.communicator("another")
    fill(tracer, another, 1, 20)
    fill(tracer, comm, 20, 30)

    rank = read(tracer.path)

    assert rank.records == 48
    assert list(rank.logs) == ["k"]
    check_log(rank.logs["k"], 1, 29)


def test_output_shapes_leave_room_for_the_rest(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    for number in range(10_000):
        tracer.record(comm, "all_gather", shape=(number,), out_shape=(number, 2), site="here")

    tracer.record(tracer.communicator("new"), "scatter", dtype="float64", site="there")

    logs = read(tracer.path).logs
    call = logs["new"].call(1)
    assert (call.op, call.dtype, call.site) == ("scatter", "float64", "there")
    assert logs["k"].call(10_000).out_shape is None


def test_more_element_types_than_a_byte_can_number(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    for number in range(300):
        tracer.record(comm, "all_gather", shape=(1,), dtype=f"type{number}", site="here")

    calls = read(tracer.path).logs["k"].span(1, 301)

    shown = [call.dtype for call in calls]
    assert shown == [f"type{number}" for number in range(254)] + [None] * 46
    assert [call.signature for call in calls] == [
        sign("all_gather", dtype=f"type{number}", shape=(1,)) for number in range(300)
    ]


def test_text_that_no_encoding_takes_is_stored_with_a_substitute(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("κλειδί \udce9", label="\udce9:0", backend="ünïcode")
    tracer.record(comm, "all_reduce", dtype="\udce9", site="ö.py:1 \udce9")

    (log,) = read(tracer.path).logs.values()

    # JSON spells it, and a reader shows what it may print.
    assert log.communicator.key == r"κλειδί \udce9"
    assert (log.communicator.label, log.communicator.backend) == (r"\udce9:0", "ünïcode")
    assert (log.call(1).site, log.call(1).dtype) == ("ö.py:1 ?", "?")


class Watched(dict[Any, int]):
    """A table that holds each entry against the file in the moment it becomes known."""

    def __init__(self, check: Any) -> None:
        super().__init__()
        self.check = check
        self.seen = 0

    def __setitem__(self, key: Any, value: int) -> None:
        self.check(key, value)
        self.seen += 1
        super().__setitem__(key, value)


@pytest.mark.usefixtures("python_writer")
def test_what_another_thread_can_look_up_is_on_the_file(rings: Path) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    interner: Any = tracer.ring._interner
    path = Path(tracer.path)
    ops = interner._numbers[layout.KIND_OP] = Watched(
        lambda text, number: check(RingFile(path).text(layout.KIND_OP, number), text)
    )
    lists = interner._sizes = Watched(
        lambda sizes, place: check(RingFile(path).sizes(place), sizes)
    )

    gatherv(tracer, comm, 1)

    assert (ops.seen, lists.seen) == (1, 1)


def check(found: object, expected: object) -> None:
    assert found == expected


@pytest.mark.parametrize(
    "members",
    [
        range(100_000),
        range(3, 800_000, 8),
        range(5000, 1000, -1),
        range(1024),
        [*range(1100), 1101],
        [7] * 1100,
    ],
    ids=["world", "strided", "backwards", "short", "uneven", "nonsense"],
)
def test_members_of_any_number(rings: Path, members: range | list[int]) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k", "world:0", members, "nccl")
    other = tracer.communicator("l", "tp:0", range(8), "nccl")
    tracer.record(comm, "barrier")
    tracer.record(other, "barrier")
    rank = read(tracer.path)
    assert rank.logs["k"].communicator.ranks == tuple(members)
    assert rank.logs["k"].communicator.backend == "nccl"
    assert rank.logs["l"].communicator.ranks == tuple(range(8))


@pytest.mark.parametrize(
    "metadata",
    ["0", "[0]", "[0, 9, 0]", "[0, 1e9, 1]", "[0, 4611686018427387904, 1]", '["a", 1, 1]'],
)
def test_no_range_is_counted_out_that_cannot_be_one(rings: Path, metadata: str) -> None:
    tracer = tracer_in(rings)
    channel = tracer.ring.channel({"key": "k", "label": "x"})
    tracer.ring.update_channel(channel, {"range": json.loads(metadata)})
    comm = Comm(channel, "k", "x", (), "")
    tracer.record(comm, "barrier")
    assert read(tracer.path).logs["k"].communicator.ranks == ()


@pytest.mark.usefixtures("python_writer")
def test_a_call_in_a_signal_handler_while_a_text_is_written_leaves_no_nameless_template(
    rings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    append = Interner._append_text

    def interrupted(self: Interner, buffer: Any, kind: int, text: str) -> int:
        if text == "barrier":  # here the signal arrives
            tracer.record(comm, "broadcast", shape=(2,), root=0)
        return append(self, buffer, kind, text)

    monkeypatch.setattr(Interner, "_append_text", interrupted)
    tracer.record(comm, "barrier")
    monkeypatch.undo()
    tracer.record(comm, "broadcast", shape=(2,), root=0)

    rank = read(rings)
    (log,) = rank.logs.values()
    assert [call.op for call in log.span(1, 4)] == ["?", "barrier", "broadcast"]


# A handler records the very call whose texts the program may just be writing, at any moment.
SIGNALLED = """
import signal, sys
from ncclscope import Tracer

tracer = Tracer(sys.argv[1], rank=0, world_size=1, capacity=65_536, heartbeat=False)
comm = tracer.communicator("k")
number = handled = 0

def record(number):
    tracer.record(comm, f"op_{number}", out_shape=(number, 3), site=f"a.py:{number} f")

def handle(*_):
    global handled
    if handled < 20_000:
        handled += 1
        record(number)
        signal.setitimer(signal.ITIMER_REAL, 1e-6 + handled % 30 * 1e-6)

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 1e-5)
for number in range(400):
    record(number)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
for number in range(400):
    record(number)
print(handled)
"""


@pytest.mark.both_writers
def test_names_are_kept_whenever_a_signal_handler_records(rings: Path) -> None:
    completed = run_program(SIGNALLED, rings, timeout=60)

    assert completed.returncode == 0, completed.stderr
    assert int(completed.stdout) > 50
    (log,) = read(rings).logs.values()
    assert log.calls == 800 + int(completed.stdout)
    later = log.span(log.calls - 399, log.calls + 1)
    assert [call.op for call in later] == [f"op_{number}" for number in range(400)]
    assert [call.site for call in later] == [f"a.py:{number} f" for number in range(400)]
