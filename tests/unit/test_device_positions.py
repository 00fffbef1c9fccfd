from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ncclscope
from ncclscope.engine.verdict import Verdict
from ncclscope.errors import InputError
from ncclscope.readers.ring.cursor import RingCursor
from ncclscope.ring import layout
from ncclscope.tracing.tracer import Tracer
from tests.support.cluster import agrees
from tests.support.rings import seal_header
from tests.unit.host_device import HostDevice, captured, post, replay

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, os, sys, time
from ncclscope.tracing.tracer import Tracer
from tests.support.cluster import agrees
from tests.support.rings import seal_header
from tests.unit.host_device import HostDevice, captured, post, replay
directory, rank, ranks, enters, script = sys.argv[1:]
os.environ["NCCLSCOPE_DEVICE_PROGRESS"] = "entered" if enters == "1" else "1"
tracer = Tracer(directory, rank=int(rank), world_size=int(ranks), capacity=1024, heartbeat=False)
device = HostDevice(tracer, enters=enters == "1")
comm = tracer.communicator("k", "tp:0", range(int(ranks)), "nccl")
for step in json.loads(script):
    name, value = step
    if name == "post":
        for _ in range(value):
            post(tracer, comm)
    elif name == "run":
        device.run(value)
    elif name == "capture":
        graph, markers = captured(tracer, comm, value)
    elif name == "replay":
        for _ in range(value):
            replay(tracer, graph, markers)
    elif name == "begin":
        tracer.record(comm, value)
        device.of(comm.channel, is_nccl=True).begin(7, None, 0)
    elif name == "clock":
        device.slots.put_clock(comm.channel.index, value)
    elif name == "record":
        tracer.record(comm, value)
tracer.ring._put_word(136, time.time_ns() + 60_000_000_000)  # it stayed alive for a minute more
print("ready", flush=True)
time.sleep(600)
"""

Script = list[tuple[str, Any]]
Verdicts = Callable[..., Verdict]


@pytest.fixture
def killed(tmp_path: Path) -> Verdicts:
    """Run a process for each rank, kill it, and diagnose what is left."""

    def run(*scripts: Script, enters: bool = False) -> Verdict:
        directory = tmp_path / "rings"
        for rank, script in enumerate(scripts):
            arguments = [str(directory), str(rank), str(len(scripts)), str(int(enters))]
            child = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *arguments, json.dumps(script)],
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            assert child.stdout is not None
            with child.stdout:
                assert child.stdout.readline() == "ready\n"
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
        return ncclscope.diagnose(ncclscope.open_run(directory))

    return run


def counts(verdict: Verdict, rank: int) -> tuple[int | None, int | None, int | None]:
    pending = verdict.run.by_rank[rank].device["k"]
    return pending.posted, pending.finished, pending.at


def test_ranks_that_have_finished_everything(killed: Verdicts) -> None:
    script: Script = [("post", 5), ("run", None)]
    verdict = killed(script, script)
    assert agrees(verdict)
    assert counts(verdict, 0) == counts(verdict, 1) == (5, 5, None)
    log = verdict.run.ranks[0].logs["k"]
    assert {call.state.word for call in log.span(1, 6)} == {"completed"}
    device = verdict.to_dict()["table"][0]["comms"]["tp:0"]["device"]
    assert (device["posted"], device["finished"], device["at"], device["unknown"]) == (
        *(5, 5, None, None),
    )


def test_all_ranks_spin_in_the_same_call(killed: Verdicts) -> None:
    script: Script = [("post", 5), ("run", 7)]
    verdict = killed(script, script, script, enters=True)
    assert verdict.cause is not None
    assert (verdict.status, verdict.cause.kind, verdict.cause.seq) == ("hung", "stalled", 4)
    assert verdict.cause.diverging_ranks == ()
    assert any(
        "on the device of ranks 0-2, 3 of 5 calls" in line
        and "has been entered but not finished" in line
        for line in verdict.cause.evidence
    )
    states = [call.state.word for call in verdict.run.ranks[0].logs["k"].span(1, 6)]
    assert states == ["completed"] * 3 + ["started", "scheduled"]


def test_a_device_that_has_not_come_to_the_call(killed: Verdicts) -> None:
    inside: Script = [("post", 4), ("run", 7)]
    verdict = killed(inside, [("post", 4), ("run", 6)], inside, enters=True)
    assert verdict.cause is not None
    assert (verdict.status, verdict.cause.kind, verdict.cause.seq) == ("hung", "not_joined", 4)
    assert verdict.cause.diverging_ranks == (1,)
    assert any("earlier work blocks its stream" in line for line in verdict.cause.evidence)


def test_no_device_has_come_to_the_call(killed: Verdicts) -> None:
    script: Script = [("post", 4), ("run", 6)]
    verdict = killed(script, script, enters=True)
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("stalled", ())
    assert "earlier work blocks their streams" in verdict.cause.summary
    assert "does not complete" not in verdict.cause.summary


def test_a_rank_that_never_posted_it(killed: Verdicts) -> None:
    waiting: Script = [("post", 6), ("run", 5)]
    verdict = killed(waiting, [("post", 5), ("run", None)], waiting)
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.seq) == ("not_joined", 6)
    assert verdict.cause.diverging_ranks == (1,)
    evidence = "\n".join(verdict.cause.evidence)
    assert "on the device of ranks 0 2, 5 of 6 calls" in evidence
    assert "on the device of rank 1, 5 of 5 calls" in evidence


def test_a_rank_that_peers_have_left_behind(killed: Verdicts) -> None:
    past: Script = [("post", 6), ("run", 5)]
    verdict = killed(past, [("post", 6), ("run", 4)], past)
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (1,))
    assert counts(verdict, 1) == (6, 4, 5)


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_call_that_ends_on_some_devices_alone_singles_out_nobody(
    killed: Verdicts, ahead: int
) -> None:
    past: Script = [("post", 6), ("run", 5)]
    inside: Script = [("post", 6), ("run", 4)]
    verdict = killed(*[past] * ahead, *[inside] * (4 - ahead))
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.seq) == ("stalled", 5)
    assert verdict.cause.diverging_ranks == ()
    assert "finished it, and" in verdict.cause.summary


def test_a_pair_of_which_one_has_finished_everything(killed: Verdicts) -> None:
    verdict = killed([("post", 6), ("run", None)], [("post", 6), ("run", 5)])
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.seq) == ("stalled", 6)
    assert verdict.cause.diverging_ranks == ()


def test_one_of_many_that_has_not_finished_the_last_call(killed: Verdicts) -> None:
    done: Script = [("post", 6), ("run", None)]
    verdict = killed(done, done, [("post", 6), ("run", 5)])
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.seq) == ("stalled", 6)
    assert verdict.cause.candidate_ranks == (2,)


@pytest.mark.parametrize("finished", [0, 1, 4, 7, 8, 9, 15])
def test_a_replay_is_expanded_to_the_captured_call(killed: Verdicts, finished: int) -> None:
    ops = ["all_gather", "all_reduce"] * 4
    script: Script = [("post", 1), ("run", None), ("capture", ops), ("replay", 2)]
    verdict = killed([*script, ("run", finished)], [*script, ("run", finished)])
    assert counts(verdict, 0) == (17, 1 + finished, 2 + finished)
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.seq) == ("stalled", 2 + finished)
    pending = verdict.cause.peers
    assert pending is not None
    assert pending.replay is not None
    assert (pending.replay.number, pending.replay.call) == (finished // 8 + 1, finished % 8 + 1)
    assert (pending.op, pending.site) == (ops[finished % 8], f"layer.py:{finished % 8} f")


def test_an_order_swap_in_a_graph_shows_the_call_and_the_position_of_each_rank(
    killed: Verdicts,
) -> None:
    def script(ops: str, finished: int) -> Script:
        names = {"g": "all_gather", "r": "all_reduce"}
        return [
            *(("post", 3), ("run", None), ("capture", [names[op] for op in ops])),
            *(("replay", 1), ("run", finished)),
        ]

    usual = script("grgrgrgr", 4)
    verdict = killed(usual, script("grgrrggr", 5), usual, usual)
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.seq) == ("op_mismatch", 8)
    assert verdict.cause.diverging_ranks == (1,)
    evidence = "\n".join(verdict.cause.evidence)
    assert "on the device of ranks 0 2 3, 7 of 11 calls" in evidence
    assert "call 8, all_gather" in evidence
    assert "on the device of rank 1, 8 of 11 calls" in evidence
    assert "replay 1 of graph 1, call 6 of 8" in evidence


def test_ranks_that_cut_their_graphs_differently_are_distinguished(killed: Verdicts) -> None:
    ops = ["all_gather", "all_reduce"] * 2
    whole: Script = [("post", 1), ("capture", ops * 2), ("replay", 1), ("run", 6)]
    pieces: Script = [("post", 1), ("capture", ops), ("replay", 2), ("run", 6)]
    verdict = killed(whole, pieces)
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.seq) == ("stalled", 7)
    evidence = "\n".join(verdict.cause.evidence)
    assert "rank 0, 6 of 9 calls" in evidence
    assert "replay 1 of graph 1, call 6 of 8" in evidence
    assert "replay 2 of graph 1, call 2 of 4" in evidence


def test_a_call_that_the_host_has_not_come_back_from(killed: Verdicts) -> None:
    script: Script = [("post", 3), ("run", None), ("record", "barrier")]
    verdict = killed(script, script)
    pending = verdict.run.ranks[0].device["k"]
    assert (pending.finished, pending.handed_over, pending.at) == (3, 3, 4)
    assert verdict.cause is not None
    assert any("not known to have been enqueued" in line for line in verdict.cause.evidence)


def test_a_call_entered_that_may_not_have_been_handed_over(killed: Verdicts) -> None:
    script: Script = [("post", 3), ("run", None), ("begin", "barrier"), ("run", None)]
    verdict = killed(script, script, enters=True)
    pending = verdict.run.ranks[0].device["k"]
    assert (pending.finished, pending.entered, pending.handed_over, pending.at) == (3, 4, 3, 4)
    assert pending.is_inside is None
    assert verdict.run.ranks[0].logs["k"].call(4).state.word == "scheduled"
    assert verdict.cause is not None
    evidence = "\n".join(verdict.cause.evidence)
    assert "call 4, barrier, is not known to have been enqueued" in evidence
    assert "entered" not in evidence


def test_a_lost_count_names_no_call(killed: Verdicts) -> None:
    script: Script = [("post", 3), ("record", "barrier"), ("post", 2), ("run", None)]
    verdict = killed(script, script)
    pending = verdict.run.ranks[0].device["k"]
    assert (pending.finished, pending.at) == (None, None)
    assert layout.LOST[5] in pending.unknown
    assert agrees(verdict)  # as it was without counting
    states = {call.state.word for call in verdict.run.ranks[0].logs["k"].span(1, 7)}
    assert states == {"scheduled"}


FIELDS = {"finished": 0, "entered": 16, "launched": 64, "state": 72, "reason": 76, "since": 80}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"finished": 9}, "the device counts 9 calls, but 5 are recorded"),
        ({"launched": 1 << 63}, "calls, but 5 are recorded"),
        ({"finished": (1 << 64) - 1}, "but 5 are recorded"),
        ({"entered": 9}, "has entered 9 calls and finished 3 of 5"),
        ({"entered": 2}, "has entered 2 calls and finished 3 of 5"),
        ({"state": 77}, "an unknown state (77)"),
        ({"state": 3, "reason": 4_000_000_000}, "unknown reason"),
        ({"state": 3, "reason": 0, "since": 1 << 63}, "since call 5"),
        ({"state": 2}, "two streams"),
    ],
)
def test_hostile_slots_name_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], word: str
) -> None:
    monkeypatch.setenv("NCCLSCOPE_DEVICE_PROGRESS", "entered")
    image = _ring(tmp_path / "made")
    for name, value in changes.items():
        kind = "<I" if name in ("state", "reason") else "<Q"
        struct.pack_into(kind, image, _device(image) + FIELDS[name], value)
    _check(tmp_path, image, word)


def test_random_slots_name_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLSCOPE_DEVICE_PROGRESS", "entered")
    image = _ring(tmp_path / "made")
    at = _device(image)
    image[at : at + layout.SLOT.size] = bytes(range(1, layout.SLOT.size + 1))
    _check(tmp_path, image, "an unknown state")


def test_a_ring_whose_device_part_is_not_in_its_header_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCLSCOPE_DEVICE_PROGRESS", "entered")
    image = _ring(tmp_path / "made")
    _set_device_size(image, 0)
    path = tmp_path / "x.ring"
    path.write_bytes(image)
    (rank,) = ncclscope.open_run(path).ranks
    assert (rank.logs["k"].calls, dict(rank.device)) == (5, {})


def test_a_part_that_is_larger_than_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCLSCOPE_DEVICE_PROGRESS", "1")
    image = _ring(tmp_path / "made")
    _set_device_size(image, 1 << 40)
    path = tmp_path / "x.ring"
    path.write_bytes(image)
    with pytest.raises(InputError, match="impossible sizes"):
        ncclscope.open_run(path)


def _ring(directory: Path) -> bytearray:
    """Return a ring of five calls; the device has finished three and entered four."""
    tracer = Tracer(directory, rank=0, world_size=1, capacity=1024, heartbeat=False)
    device = HostDevice(tracer, enters=True)
    comm = tracer.communicator("k", "tp:0", (0,), "nccl")
    for _ in range(5):
        post(tracer, comm)
    device.run(7)
    (rank,) = ncclscope.open_run(tracer.path).ranks
    assert (rank.device["k"].finished, rank.device["k"].entered) == (3, 4)
    return bytearray(Path(tracer.path).read_bytes())


def _set_device_size(image: bytearray, size: int) -> None:
    header = list(layout.HEADER.unpack_from(image))
    header[-2] = size
    layout.HEADER.pack_into(image, 0, *header)
    seal_header(image)


def _device(image: bytearray) -> int:
    return layout.Geometry.for_capacity(1024, device=True).device


def _check(tmp_path: Path, image: bytearray, word: str) -> None:
    path = tmp_path / "x.ring"
    path.write_bytes(image)
    run = ncclscope.open_run(path)
    pending = run.ranks[0].device["k"]
    assert word in pending.unknown
    assert (pending.finished, pending.at) == (None, None)
    assert {call.state.word for call in run.ranks[0].logs["k"].span(1, 6)} == {"scheduled"}
    assert ncclscope.diagnose(run).cause is None


def test_who_watches_sees_what_the_device_has_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCLSCOPE_DEVICE_PROGRESS", "1")
    tracer = Tracer(tmp_path, rank=0, world_size=1, capacity=1024, heartbeat=False)
    device = HostDevice(tracer)
    comm = tracer.communicator("k", "tp:0", (0,), "nccl")
    cursor = RingCursor(Path(tracer.path))
    for _ in range(3):
        post(tracer, comm)
    device.run(2)
    assert cursor.poll(1.0)
    assert (cursor.pending(), cursor.comm_cursors["k"].tells) == ({"k"}, True)
    assert not cursor.poll(2.0)
    device.run()
    assert cursor.poll(3.0)
    assert cursor.pending() == set()
    last = cursor.last("k")
    assert last is not None
    assert last.state.word == "completed"

    graph, markers = captured(tracer, comm, ["all_reduce"] * 4)
    replay(tracer, graph, markers)
    assert cursor.poll(4.0)
    device.run(1)
    assert cursor.poll(5.0)  # it moves within the replay
    assert cursor.pending() == {"k"}
    tracer.record(comm, "barrier")
    post(tracer, comm)
    cursor.poll(6.0)
    assert not cursor.comm_cursors[
        "k"
    ].tells  # the count is lost, and nothing is known to be under way


def test_where_a_call_of_torch_distributed_runs() -> None:
    torch = pytest.importorskip("torch")
    from torch.distributed import BarrierOptions

    from ncclscope_patches.probes import c10d, device_streams

    class Group:
        bound_device_id = None

    where = c10d._where
    unknown = device_streams.STREAM_UNKNOWN
    assert where((Group(), [torch.ones(2)], None), {}) == unknown  # of gloo, in a mixed group
    assert where((Group(), [[torch.ones(2)]], [torch.ones(2)]), {}) == unknown
    options = BarrierOptions()
    assert where((Group(), options), {}) is device_streams.NOWHERE_YET
    options.device = torch.device("cuda")
    assert where((Group(),), {"opts": options}) is device_streams.NOWHERE_YET
    options.device = torch.device("cpu")
    assert where((Group(), options), {}) == unknown


def test_the_last_calls_end_is_known_where_clocks_are_related(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCLSCOPE_DEVICE_PROGRESS", "1")
    tracer = Tracer(tmp_path, rank=0, world_size=1, capacity=1024, heartbeat=False)
    device = HostDevice(tracer)
    comm = tracer.communicator("k", "tp:0", (0,), "nccl")
    post(tracer, comm)
    before = time.time_ns()
    device.run()
    tracer.ring.store_heartbeat()

    def finished_at() -> int | None:
        return ncclscope.open_run(tracer.path).ranks[0].device["k"].finished_ns

    assert finished_at() is None
    device.slots.put_clock(comm.channel.index, 1)
    found = finished_at()
    assert found is not None
    assert before <= found <= time.time_ns()
    for wrong in (-(10**18), 10**18, (1 << 63) - 1, -(1 << 63)):
        device.slots.put_clock(comm.channel.index, wrong)
        assert finished_at() is None


def test_how_long_ago_the_last_call_finished(killed: Verdicts) -> None:
    waiting: Script = [("post", 6), ("run", 5), ("clock", 1)]
    verdict = killed(waiting, [("post", 5), ("run", None)], waiting)
    assert verdict.cause is not None
    lines = [line for line in verdict.cause.evidence if "before the last heartbeat" in line]
    assert [line.startswith("on the device of ranks 0 2, 5 of 6 calls") for line in lines] == [True]
    assert "about 60 s before" in lines[0] or "about 59 s before" in lines[0]
