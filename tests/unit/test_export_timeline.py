"""Timelines: what a slice says, and what joins the ranks."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ncclscope.export.chrome import write_chrome
from ncclscope.export.intervals import axis_of
from ncclscope.export.perfetto import write_perfetto
from ncclscope.model import Run
from tests.support.browser import Browser, launch
from tests.support.cluster import Cluster
from tests.support.export_runs import prepare
from tests.support.trace_processor import opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launch() as browser:
        yield browser


@pytest.fixture
def run(tmp_path: Path) -> Run:
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history("tp:0", 5)
    for rank in cluster.everybody:
        cluster.tracers[rank].step(7, tokens=3)
    for pair in ((0, 1), (2, 3)):
        cluster.history("dp:0", 3, members=pair)
    cluster.post([0], "tp:0", "send", peer=1)
    cluster.post([0, 1, 2], "tp:0", "all_gather", sizes=(1, 2, 3, 4), done=False)
    return cluster.run()


def chrome(run: Run, file: Path) -> dict[str, Any]:
    write_chrome(run, file)
    data = file.read_bytes()
    document = json.loads(gzip.decompress(data) if file.suffix == ".gz" else data)
    assert isinstance(document, dict)
    return document


# --- the time axis -------------------------------------------------------------------------------


def test_a_call_lasts_until_the_rank_posts_its_next_one(run: Run) -> None:
    tracks = [track for track in axis_of(run).tracks(run) if track.rank.rank == 1]
    placed = sorted(
        (interval for track in tracks for interval in track.intervals),
        key=lambda interval: interval.call.position,
    )

    assert [track.name for track in tracks] == ["dp:0", "tp:0"]
    for one, after in pairwise(placed):
        assert one.end_ns == after.start_ns == after.call.time_ns
    assert [interval.open for interval in placed] == [False] * 8 + [True]
    assert placed[-1].end_ns == axis_of(run).end_ns == max(r.last_seen_ns for r in run.ranks)


def test_without_a_clock_the_order_is_the_time(tmp_path: Path) -> None:
    header = {"ncclscope_trace": 1, "rank": 0, "world_size": 1}
    lines = [header, *({"call": "barrier", "comm": "k"} for _ in range(3))]
    (tmp_path / "0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    from ncclscope.readers import open_run

    run = open_run(tmp_path)
    axis = axis_of(run)
    (track,) = axis.tracks(run)

    assert not axis.timed
    assert [interval.start_ns for interval in track.intervals] == [0, 1000, 2000]


# --- Chrome --------------------------------------------------------------------------------------


def test_chrome_has_a_process_per_rank_and_a_thread_per_communicator(
    run: Run, tmp_path: Path
) -> None:
    events = chrome(run, tmp_path / "trace.json")["traceEvents"]

    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    assert names[0, 1] == "dp:0 of ranks 0 1"
    assert names[0, 3] == "tp:0 of ranks 0-3 p2p"
    assert names[3, 2] == "tp:0 of ranks 0-3"
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == 4 * 8 + 1 + 3
    last = slices[-1]
    assert names[last["pid"], last["tid"]].startswith("tp:0")
    gather = next(event for event in slices if event["name"] == "all_gather")
    assert gather["args"]["sizes"] == "[1, 2, 3, 4]"
    assert gather["args"]["end"] == "not known to have completed"
    assert min(event["ts"] for event in slices) == 0


def test_chrome_joins_the_calls_of_one_number(run: Run, tmp_path: Path) -> None:
    events = chrome(run, tmp_path / "trace.json.gz")["traceEvents"]

    flows: dict[int, list[str]] = {}
    for event in events:
        if event["ph"] in "stf":
            flows.setdefault(event["id"], []).append(event["ph"])
    assert sorted(flows.values()) == sorted(
        [["s", "t", "t", "f"]] * 5 + [["s", "t", "f"]] + [["s", "f"]] * 6
    )


# --- Perfetto ------------------------------------------------------------------------------------


def test_perfetto_is_what_its_schema_says(run: Run, tmp_path: Path) -> None:
    schema = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    write_perfetto(run, tmp_path / "trace.pftrace")
    trace = schema.Trace()
    trace.ParseFromString((tmp_path / "trace.pftrace").read_bytes())

    tracks = {
        packet.track_descriptor.uuid: packet.track_descriptor
        for packet in trace.packet
        if packet.HasField("track_descriptor")
    }
    tops = [track.name for track in tracks.values() if not track.HasField("parent_uuid")]
    assert tops == [f"rank {n} (node-0, pid {1000 + n})" for n in range(4)]
    below = sorted(
        track.name
        for track in tracks.values()
        if track.HasField("parent_uuid") and tracks[track.parent_uuid].name == tops[0]
    )
    assert below == [
        "dp:0 of ranks 0 1",
        "engine steps",
        "tp:0 of ranks 0-3",
        "tp:0 of ranks 0-3 p2p",
    ]
    events = [packet.track_event for packet in trace.packet if packet.HasField("track_event")]
    begun = sum(event.type == schema.TrackEvent.TYPE_SLICE_BEGIN for event in events)
    ended = sum(event.type == schema.TrackEvent.TYPE_SLICE_END for event in events)
    assert begun == 4 * 8 + 1 + 3 + 4
    assert begun - ended == 3
    size = trace.ByteSize()
    trace.DiscardUnknownFields()
    assert trace.ByteSize() == size == (tmp_path / "trace.pftrace").stat().st_size


@pytest.mark.slow
@pytest.mark.browser
def test_the_trace_processor_reads_it(run: Run, tmp_path: Path, browser: Browser) -> None:
    write_perfetto(run, tmp_path / "trace.pftrace")
    with opened(browser, tmp_path / "trace.pftrace") as processor:
        counts = processor.query(
            "select name, count(*) as n, sum(dur = -1) as open from slice group by name order by 1"
        )
        assert counts == [
            ("all_gather", 3, 3),
            ("all_reduce", 32, 0),
            ("last sign of life", 4, 0),
            ("send", 1, 0),
            ("step", 4, 0),
        ]
        places = processor.query(
            "select parent.name as rank, track.name as comm, count(*) as n from slice "
            "join track on track_id = track.id join track parent on track.parent_id = parent.id "
            "where slice.name = 'all_reduce' group by 1, 2 order by 1, 2"
        )
        assert places[0] == ("rank 0 (node-0, pid 1000)", "dp:0 of ranks 0 1", 3)
        assert places[-1] == ("rank 3 (node-0, pid 1003)", "tp:0 of ranks 0-3", 5)
        arguments = processor.query(
            "select distinct key, display_value as value from slice join args using (arg_set_id) "
            "where name = 'all_gather' and key in ('debug.seq', 'debug.state', 'debug.sizes') "
            "order by 1"
        )
        assert arguments == [
            ("debug.seq", "6"),
            ("debug.sizes", "[1, 2, 3, 4]"),
            ("debug.state", "scheduled"),
        ]
        # Each flow leads from a call to the next rank's call of the same number.
        flows = processor.query(
            "select count(*) as n, sum(one.name = other.name) as same from flow "
            "join slice one on slice_out = one.id join slice other on slice_in = other.id"
        )
        assert flows == [(5 * 3 + 2 + 6, 5 * 3 + 2 + 6)]
        errors = processor.query(
            "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
        )
        assert errors == []
        start = processor.query("select start_ts / 1000000000 as t from trace_bounds")
        assert start == [(axis_of(run).start_ns // 1_000_000_000,)]


@pytest.mark.slow
@pytest.mark.browser
def test_the_trace_processor_reads_chromes_format(
    run: Run, tmp_path: Path, browser: Browser
) -> None:
    write_chrome(run, tmp_path / "trace.json")
    with opened(browser, tmp_path / "trace.json") as processor:
        assert processor.query("select count(*) as n from slice where dur > 0") == [(36,)]
        assert processor.query("select count(*) as n from flow") == [(23,)]


def test_equal_input_gives_equal_files(tmp_path: Path) -> None:
    run = prepare(tmp_path / "rings", "transfers").run()
    for write in (write_chrome, write_perfetto):
        write(run, tmp_path / "one")
        write(run, tmp_path / "two")
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
