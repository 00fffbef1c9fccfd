from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ncclscope
from ncclscope.ring import layout
from ncclscope.tracing import scope
from ncclscope.tracing.graphs import TracedGraph
from ncclscope.tracing.tracer import Comm, Tracer
from ncclscope_patches.probes import device_streams, recording
from ncclscope_patches.probes.cuda_graphs import CudaGraphProbe
from ncclscope_patches.probes.posting import put_posting
from ncclscope_patches.probes.probe import Patch
from ncclscope_patches.probes.recording import Handle, Handles
from tests.unit.host_device import STREAM, HostDevice, captured, post, replay

COUNTED, UNSETTLED, LOST = layout.SLOT_COUNTED, layout.SLOT_UNSETTLED, layout.SLOT_LOST


class Bench:
    """A traced process with a device that is played."""

    def __init__(self, directory: Path, *, enters: bool = False) -> None:
        self.tracer = Tracer(directory, rank=0, world_size=2, capacity=1024, heartbeat=False)
        self.device = HostDevice(self.tracer, enters=enters)
        self.comm = self.tracer.communicator("k", "tp:0", (0, 1), "nccl")

    def post(self, **more: Any) -> None:
        post(self.tracer, self.comm, **more)

    @property
    def slot(self) -> dict[str, int]:
        return self.device.slot(self.comm)

    def lost(self) -> str:
        assert self.slot["state"] == LOST, self.slot
        return layout.LOST[self.slot["reason"]]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("NCCLSCOPE_DEVICE_PROGRESS", "1")
    return Bench(tmp_path)


@pytest.fixture
def entering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """With markers before the calls, too."""
    monkeypatch.setenv("NCCLSCOPE_DEVICE_PROGRESS", "entered")
    return Bench(tmp_path, enters=True)


def test_the_count_is_the_number_of_the_last_finished_call(bench: Bench) -> None:
    for _ in range(5):
        bench.post()
    bench.device.run(3)
    assert (bench.slot["finished"], bench.slot["launched"], bench.slot["state"]) == (3, 5, COUNTED)
    bench.device.run()
    assert bench.slot["finished"] == bench.comm.channel.seq == 5


def test_calls_entered_are_counted_where_that_is_asked_for(entering: Bench) -> None:
    entering.post()
    entering.post()
    entering.device.run(3)
    assert (entering.slot["finished"], entering.slot["entered"]) == (1, 2)


def test_captured_calls_are_counted_when_they_are_replayed(bench: Bench) -> None:
    bench.post()
    graph, markers = captured(bench.tracer, bench.comm, ["all_reduce", "all_gather"] * 4)
    bench.device.run()
    assert bench.slot["finished"] == 1
    for _ in range(1000):
        replay(bench.tracer, graph, markers)
        bench.device.run()
    bench.post()
    bench.device.run()
    assert bench.slot["finished"] == bench.slot["launched"] == bench.comm.channel.seq == 8002
    assert bench.slot["state"] == COUNTED


def test_in_a_graph_a_marker_is_put_behind_its_call_and_the_marker_before_it(bench: Bench) -> None:
    bench.post()
    captured(bench.tracer, bench.comm, ["all_reduce"] * 3)
    assert bench.device.tails == [None, (1, 1), (1, 2)]


@pytest.fixture
def used(bench: Bench) -> Bench:
    """With one communicator that is in use."""
    bench.post()
    bench.post()
    return bench


def _placed(bench: Bench, comm: Comm | None = None) -> str:
    """Return where the markers of a graph of three calls are."""
    before = len(bench.device.tails)
    _, markers = captured(bench.tracer, comm or bench.comm, ["all_reduce"] * 3)
    assert len(markers) == 3
    return {0: "in the stream", 3: "beside"}[len(bench.device.tails) - before]


def test_markers_of_a_graph_are_in_the_stream_where_one_communicator_is_in_use(
    used: Bench,
) -> None:
    post(used.tracer, used.tracer.communicator("t", "ep:0", (0, 1), "nccl"))  # tried, and not used
    graph, markers = captured(used.tracer, used.comm, ["all_reduce"] * 3)
    assert (len(markers), used.device.tails) == (3, [])
    for _ in range(2):
        replay(used.tracer, graph, markers)
    used.device.run()
    assert (used.slot["finished"], used.slot["state"]) == (8, COUNTED)


def test_markers_are_beside_the_calls_where_two_communicators_are_in_use(used: Bench) -> None:
    other = used.tracer.communicator("o", "ep:0", (0, 1), "nccl")
    post(used.tracer, other)
    post(used.tracer, other)
    assert _placed(used) == "beside"


def test_markers_are_where_they_should_have_been_in_the_last_graph(used: Bench) -> None:
    other = used.tracer.communicator("o", "ep:0", (0, 1), "nccl")
    post(used.tracer, other)
    capture = used.tracer.graphs.begin()
    used.device.holding = []
    for comm in (used.comm, other, used.comm):  # not known when the first call is captured
        post(used.tracer, comm, capture=capture, stream=99)
    assert (len(used.device.holding), used.device.tails) == (3, [])
    used.tracer.graphs.end(capture)
    used.tracer.graphs.end(used.tracer.graphs.begin())  # holds no calls: nothing to learn
    assert [_placed(used), _placed(used)] == ["beside", "in the stream"]


def test_all_markers_of_one_graph_are_placed_alike(used: Bench) -> None:
    outer = used.tracer.graphs.begin()
    used.device.holding = []
    post(used.tracer, used.comm, capture=outer, stream=99)
    other = used.tracer.communicator("o", "ep:0", (0, 1), "nccl")
    used.device.of(other.channel, is_nccl=True)
    used.device.placement.learn([used.comm.channel, other.channel])  # a graph ended meanwhile
    post(used.tracer, used.comm, capture=outer, stream=99)
    assert (len(used.device.holding), used.device.tails) == (2, [])


def test_where_kernels_of_vllms_own_are_alone_in_graphs_markers_are_beside(
    used: Bench,
) -> None:
    own = used.tracer.communicator("c", "tp:0/custom", (0, 1), "custom")
    post(used.tracer, own)
    # Before the first graph it looks as if they held NCCL's calls.
    assert [_placed(used, own), _placed(used, own)] == ["in the stream", "beside"]


def test_a_group_in_a_graph_gets_one_marker_in_the_stream(used: Bench) -> None:
    graph, markers = _captured_group(used)
    assert (len(markers), used.device.tails) == (1, [])
    replay(used.tracer, graph, markers)
    used.device.run()
    assert (used.slot["finished"], used.slot["state"]) == (5, COUNTED)


@pytest.mark.parametrize(
    ("backend", "is_nccl"), [("nccl", True), ("gloo,nccl", True), ("custom", False)]
)
def test_whose_kernels_a_communicators_calls_are(bench: Bench, backend: str, is_nccl: bool) -> None:
    comm = bench.tracer.communicator("b", "tp:1", (0, 1), backend)
    marks = Handle(bench.tracer, comm, on_device=True).marks
    assert marks is not None
    assert marks.is_nccl is is_nccl


def test_markers_before_and_behind_the_calls_of_a_graph_are_placed_alike(entering: Bench) -> None:
    entering.post()
    entering.post()
    graph, markers = captured(entering.tracer, entering.comm, ["all_reduce"] * 2)
    assert (len(markers), entering.device.tails) == (4, [])
    replay(entering.tracer, graph, markers)
    entering.device.run(7)
    assert (entering.slot["finished"], entering.slot["entered"]) == (3, 4)


def test_where_nothing_can_be_put_beside_the_calls_markers_are_captured_between_them(
    bench: Bench,
) -> None:
    bench.device.attaches_nothing = True
    bench.post()
    graph, markers = captured(bench.tracer, bench.comm, ["all_reduce"] * 3)
    replay(bench.tracer, graph, markers)
    bench.device.run()
    assert bench.device.tails == []
    assert (bench.slot["finished"], bench.slot["state"]) == (4, COUNTED)


def test_a_graph_has_no_markers_between_its_calls_behind_one_that_is_beside_them(
    bench: Bench,
) -> None:
    bench.post()
    capture = bench.tracer.graphs.begin()
    bench.device.holding = []
    bench.post(capture=capture, stream=99)
    bench.device.attaches_nothing = True  # the two could run at once, and the older count stay
    bench.post(capture=capture, stream=99)
    assert bench.lost() == layout.LOST[10]


def test_calls_of_a_group_in_a_graph_get_one_marker(bench: Bench) -> None:
    bench.post()
    graph, markers = _captured_group(bench)
    assert bench.device.tails == [None]
    replay(bench.tracer, graph, markers)
    bench.device.run()
    assert (bench.slot["finished"], bench.slot["state"]) == (4, COUNTED)


def _captured_group(bench: Bench) -> tuple[TracedGraph, list[Any]]:
    """Capture a graph of three calls in one NCCL group, with their markers."""
    marks = bench.device.of(bench.comm.channel, is_nccl=True)
    capture = bench.tracer.graphs.begin()
    bench.device.holding = []
    for _ in range(3):
        bench.tracer.record(
            bench.comm, "all_reduce", shape=(4,), dtype="float32", redop="sum", captured=True
        )
        assert marks.begin(99, capture, 0)
        marks.end(99, capture, 0, grouped=True)
    marks.end_group(capture)
    markers, bench.device.holding = bench.device.holding, None
    return bench.tracer.graphs.end(capture), markers


def test_calls_entered_in_a_graph_are_counted_in_turns(entering: Bench) -> None:
    entering.post()
    graph, markers = captured(entering.tracer, entering.comm, ["all_reduce"] * 2)
    assert entering.device.tails == [None, (1, 1), (1, 2), (1, 3)]
    replay(entering.tracer, graph, markers)
    entering.device.run(2 + 3)
    assert (entering.slot["entered"], entering.slot["finished"]) == (3, 2)


def test_a_first_call_in_a_capture_is_counted_where_the_device_is_ready(bench: Bench) -> None:
    other = bench.tracer.communicator("other", "tp:0/custom", (0, 1), "custom")
    bench.post()
    graph, markers = captured(bench.tracer, other, ["all_reduce"] * 3)
    replay(bench.tracer, graph, markers)
    bench.device.run()
    assert bench.device.slot(other)["finished"] == other.channel.seq == 3


def test_sends_and_receives_are_no_part_of_it(bench: Bench) -> None:
    bench.post()
    bench.tracer.record(bench.comm, "send", shape=(4,), dtype="float32", peer=1)
    bench.post()
    bench.device.run()
    assert (bench.slot["finished"], bench.slot["state"]) == (2, COUNTED)


def test_calls_of_a_group_get_one_marker_behind_it(bench: Bench) -> None:
    bench.post()
    marks = bench.device.of(bench.comm.channel, is_nccl=True)
    for _ in range(3):
        bench.tracer.record(bench.comm, "all_reduce", shape=(4,), dtype="float32", redop="sum")
        assert marks.begin(STREAM, None, 0)
        marks.end(STREAM, None, 0, grouped=True)
    assert len(bench.device.streams[STREAM]) == 1
    marks.end_group(None)
    bench.device.run(1)
    assert bench.slot["finished"] == 1
    bench.device.run(1)
    assert bench.slot["finished"] == bench.slot["launched"] == 4
    bench.post()
    assert bench.slot["state"] == COUNTED


def test_a_call_on_another_stream_leaves_no_doubt_when_all_before_it_has_finished(
    bench: Bench,
) -> None:
    bench.post()
    bench.device.run()
    bench.post(stream=8)
    assert bench.slot["state"] == COUNTED


def test_calls_on_two_streams_are_in_doubt_until_all_have_finished(bench: Bench) -> None:
    bench.post()
    bench.post(stream=8)
    assert (bench.slot["state"], bench.slot["since"]) == (UNSETTLED, 2)
    bench.device.run(stream=8)  # it is the second call that has finished, and one is counted
    bench.post(stream=8)
    assert bench.slot["state"] == UNSETTLED
    bench.device.run()
    bench.device.run(stream=8)
    bench.post(stream=8)
    assert bench.slot["state"] == COUNTED


def _before(bench: Bench) -> None:
    for _ in range(2):
        bench.tracer.record(bench.comm, "barrier")
    bench.post()


def _in_capture(bench: Bench) -> None:
    captured(bench.tracer, bench.comm, ["all_reduce"])


def _elsewhere(bench: Bench) -> None:
    bench.post()
    bench.tracer.record(bench.comm, "barrier")
    assert not bench.device.of(bench.comm.channel, is_nccl=True).begin(STREAM, None, 1)


def _without(bench: Bench) -> None:
    bench.post()
    bench.tracer.record(bench.comm, "barrier")  # it failed, or another thread posts it now
    bench.post()


def _without_in_a_group(bench: Bench) -> None:
    bench.post()
    marks = bench.device.of(bench.comm.channel, is_nccl=True)
    bench.tracer.record(bench.comm, "barrier")
    marks.begin(STREAM, None, 0)
    marks.end(STREAM, None, 0, grouped=True)
    marks.drop_group()  # the end of the group failed
    bench.post()


def _in_graph(bench: Bench) -> None:
    bench.post()
    capture = bench.tracer.graphs.begin()
    post(bench.tracer, bench.comm, capture=capture, stream=9)
    bench.tracer.record(bench.comm, "barrier", captured=True)
    bench.tracer.graphs.end(capture)


def _many_streams(bench: Bench) -> None:
    bench.post()
    capture = bench.tracer.graphs.begin()
    post(bench.tracer, bench.comm, capture=capture, stream=9)
    post(bench.tracer, bench.comm, capture=capture, stream=10)


def _refused(bench: Bench) -> None:
    bench.post()
    bench.device.refuses = 719
    bench.post()


def _unseen_replay(bench: Bench) -> None:
    bench.post()
    graph, _ = captured(bench.tracer, bench.comm, ["all_reduce"])
    graph.replay()  # it was recorded, and launching it raised
    bench.post()


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (_before, 1),
        (_in_capture, 2),
        (_elsewhere, 4),
        (_without, 5),
        (_without_in_a_group, 5),
        (_unseen_replay, 5),
        (_in_graph, 6),
        (_many_streams, 7),
        (_refused, 10),
    ],
)
def test_an_unusable_count_says_why(
    bench: Bench, cause: Callable[[Bench], None], reason: int
) -> None:
    cause(bench)
    assert bench.lost() == layout.LOST[reason]
    bench.device.refuses = 0
    launched = bench.slot["launched"]
    bench.post()
    assert bench.lost() == layout.LOST[reason]  # for good
    assert bench.slot["launched"] == launched
    (rank,) = ncclscope.open_run(bench.tracer.path).ranks
    assert layout.LOST[reason] in rank.device["k"].unknown
    assert rank.device["k"].at is None


class Library:
    """Something that posts, as the probes know it."""

    def __init__(self) -> None:
        self.result: object = None
        self.error: Exception | None = None

    def all_reduce(self, tensor: Any, stream: int = STREAM) -> object:
        if self.error is not None:
            raise self.error
        return self.result


class LibraryProbe(Patch):
    name = "library"


@pytest.fixture
def probed(bench: Bench) -> Iterator[tuple[Bench, Library]]:
    handles = Handles(lambda thing: Handle(bench.tracer, bench.comm, on_device=True))
    probe = LibraryProbe()
    probe.active = True

    def where(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stream = kwargs.get("stream", STREAM)
        return (0, stream) if stream else device_streams.STREAM_UNKNOWN

    put_posting(
        probe,
        Library,
        "all_reduce",
        lambda args, kwargs: ("all_reduce", (4,), "float32", "sum"),
        handles,
        where=where,
        returns_none=True,
    )
    yield bench, Library()
    probe.revert()


def test_a_probe_puts_a_marker_behind_each_call(probed: tuple[Bench, Library]) -> None:
    bench, library = probed
    for _ in range(4):
        library.all_reduce(None)
    bench.device.run(3)
    assert (bench.slot["launched"], bench.slot["finished"]) == (4, 3)


def test_a_call_that_raises_has_no_marker(probed: tuple[Bench, Library]) -> None:
    bench, library = probed
    library.all_reduce(None)
    library.error = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        library.all_reduce(None)
    bench.device.run()
    assert (bench.comm.channel.seq, bench.slot["launched"], bench.slot["finished"]) == (2, 1, 1)
    library.error = None
    library.all_reduce(None)
    assert bench.lost() == layout.LOST[5]


def test_a_call_that_returns_work_ran_on_a_stream_of_its_own(
    probed: tuple[Bench, Library],
) -> None:
    bench, library = probed
    library.result = object()
    library.all_reduce(None)
    assert bench.lost() == layout.LOST[3]


def test_a_call_whose_stream_is_not_known(probed: tuple[Bench, Library]) -> None:
    bench, library = probed
    library.all_reduce(None, stream=0)
    assert bench.lost() == layout.LOST[13]


def test_a_call_in_a_group_of_torchs(probed: tuple[Bench, Library]) -> None:
    bench, library = probed
    scope.enter_group()
    try:
        library.all_reduce(None)
    finally:
        scope.leave_group()
    assert bench.lost() == layout.LOST[9]


def test_a_capture_that_torch_does_not_know_of(
    probed: tuple[Bench, Library], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, library = probed
    library.all_reduce(None)
    monkeypatch.setattr(recording, "is_capturing", lambda: True)
    library.all_reduce(None)
    assert bench.lost() == layout.LOST[8]


def test_a_path_without_markers(bench: Bench) -> None:
    handle = Handle(bench.tracer, bench.comm, on_device=True)
    recording.record(handle, ("all_reduce", (4,), None, "sum"), sys._getframe())
    assert bench.lost() == layout.LOST[12]


def test_a_fault_of_ours_ends_the_counting_and_nothing_else(
    probed: tuple[Bench, Library], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    bench, library = probed
    library.all_reduce(None)
    marks = bench.device.of(bench.comm.channel, is_nccl=True)
    monkeypatch.setattr(marks, "_finish", lambda stream: 1 // 0)
    for _ in range(3):
        library.all_reduce(None)
    assert bench.comm.channel.seq == 4
    assert bench.lost() == layout.LOST[14]
    assert capsys.readouterr().err.count("ZeroDivisionError") <= 1


def _run(code: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("NCCL")}
    env |= {"NCCLSCOPE_DIR": str(directory), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )


RECORD = """
import sys
from ncclscope.tracing import session
from ncclscope_patches.probes import device_streams
from ncclscope_patches.probes.recording import Handle
tracer = session.current()
comms = [tracer.communicator(f"k{n}", f"tp:{n}", (0, 1), "nccl") for n in (0, 1)]
handles = [Handle(tracer, comm, on_device=True) for comm in comms]
for handle in handles * 2:
    tracer.record(handle.comm, "barrier")
    if handle.marks is not None:
        mark = device_streams.start(handle.marks, lambda a, k: (0, 0), (), {}, 0, 0)
        assert mark is None, mark
print("imported" if "ncclscope.tracing.device.markers" in sys.modules else "nothing", tracer.path)
"""


def test_nothing_is_done_when_nobody_asked(tmp_path: Path) -> None:
    done = _run(RECORD, tmp_path)
    assert done.returncode == 0, done.stderr
    word, path = done.stdout.split()
    assert (word, done.stderr) == ("nothing", "")
    assert os.path.getsize(path) == layout.Geometry.for_capacity(layout.DEFAULT_CAPACITY).total


def test_off_means_off(tmp_path: Path) -> None:
    done = _run(RECORD, tmp_path, NCCLSCOPE_DEVICE_PROGRESS="0")
    assert (done.stdout.split()[:1], done.stderr) == (["nothing"], "")


def test_another_value_is_refused_once(tmp_path: Path) -> None:
    done = _run(RECORD, tmp_path, NCCLSCOPE_DEVICE_PROGRESS="yes")
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "NCCLSCOPE_DEVICE_PROGRESS='yes' is neither 1 nor entered" in done.stderr


@pytest.mark.skipif(os.path.exists("/proc/driver/nvidia"), reason="this machine has a driver")
def test_a_machine_without_a_driver_is_reported_once(tmp_path: Path) -> None:
    done = _run(RECORD, tmp_path, NCCL_SCOPE_DEVICE_PROGRESS="1", RANK="0", WORLD_SIZE="2")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1
    assert "progress on the device is off in this process: no CUDA driver" in done.stderr
    verdict = ncclscope.diagnose(ncclscope.open_run(tmp_path))
    assert any("progress on the device is off: no CUDA driver" in note for note in verdict.notes)
    assert not verdict.run.ranks[0].device


def test_a_forked_child_leaves_its_parents_slots_alone(bench: Bench) -> None:
    bench.post()
    child = os.fork()
    if child == 0:
        gone = bench.tracer.device is None and bench.tracer.ring.slots is None
        bench.tracer.record(bench.comm, "barrier")
        os._exit(0 if gone else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    bench.device.run()
    assert (bench.slot["launched"], bench.slot["finished"], bench.slot["state"]) == (1, 1, COUNTED)


def test_there_is_a_slot_for_each_of_the_first_communicators(bench: Bench) -> None:
    comms: list[Comm] = [
        bench.tracer.communicator(f"many{number}", "", (0, 1), "nccl")
        for number in range(layout.DEVICE_COMMS - 1)
    ]
    post(bench.tracer, comms[-1])
    bench.device.run()
    assert bench.device.slot(comms[-1])["finished"] == 1
    end = bench.device.slots.offset(comms[-1].channel.index) + layout.SLOT.size
    assert end == bench.device.slots.size
    assert os.path.getsize(bench.tracer.path) == bench.tracer.ring.geometry.total


def test_the_probe_of_graphs_counts_replays(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []

    class CUDAGraph:
        def capture_begin(self) -> None: ...

        def capture_end(self) -> None: ...

        def replay(self) -> None:
            launched.append("graph")
            assert bench.slot["launched"] == 1 + 3 * (len(launched) - 1)  # not before it has been

        def reset(self) -> None: ...

    module = type(sys)("graphs")
    module.CUDAGraph = CUDAGraph  # type: ignore[attr-defined]
    monkeypatch.setattr("ncclscope_patches.probes.cuda_graphs.session.opened", lambda: bench.tracer)
    monkeypatch.setattr(device_streams, "current_stream", lambda ordinal: STREAM)
    probe = CudaGraphProbe()
    probe.active = True
    probe.install(module)
    bench.post()
    graph = CUDAGraph()
    graph.capture_begin()
    capture = bench.tracer.graphs.current()
    bench.device.holding = []
    for _ in range(3):
        bench.post(capture=capture, stream=99)
    bench.device.holding = None
    graph.capture_end()
    for _ in range(5):
        graph.replay()
    assert (len(launched), bench.slot["launched"], bench.comm.channel.seq) == (5, 16, 16)
    assert bench.slot["state"] == COUNTED

    # A fault of ours is none of the probe's.
    monkeypatch.setattr(device_streams, "current_stream", lambda ordinal: 1 // 0)
    graph.replay()
    assert (probe.active, bench.comm.channel.seq) == (True, 19)
    assert bench.lost() == layout.LOST[14]
    probe.revert()
