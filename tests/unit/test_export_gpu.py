"""What GPUs have counted, in the formats that show time and in those that show counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ncclscope import Run, Tracer, open_run
from ncclscope.export.chrome import write_chrome
from ncclscope.export.perfetto import write_perfetto
from ncclscope.export.prometheus import write_prometheus
from ncclscope.model.device import DeviceProgress

pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Rank 0 waits in call 4 of 5; what rank 1 has done is not known."""
    for rank in range(2):
        tracer = Tracer(tmp_path, rank=rank, world_size=2, heartbeat=False)
        comm = tracer.communicator("k", "tp:0", [0, 1], "nccl")
        for _ in range(5):
            tracer.record(comm, "all_reduce", shape=(4,), dtype="float32")
        tracer.close()
    recorded = open_run(tmp_path)
    log = recorded.by_rank[0].logs["k"]
    finished = DeviceProgress(5, finished=3, entered=4, finished_ns=log.call(5).time_ns)
    pending_calls = finished, DeviceProgress(5, unknown="since call 2: its stream is not known")
    ranks = [
        replace(rank, device={"k": pending})
        for rank, pending in zip(recorded.ranks, pending_calls, strict=True)
    ]
    return replace(recorded, ranks=tuple(ranks))


COUNTED = {"finished": 3, "entered": 4, "posted": 5, "at": 4}


def test_chrome(run: Run, tmp_path: Path) -> None:
    write_chrome(run, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    found = [event for event in events if event.get("cat") == "gpu"]
    assert [(event["pid"], event["name"], event["args"]) for event in found] == [
        (0, "GPU: call 3 finished", COUNTED)
    ]
    last = max(event["ts"] for event in events if event["ph"] == "X" and event["pid"] == 0)
    assert found[0]["ts"] == pytest.approx(last)


def test_perfetto(run: Run, tmp_path: Path) -> None:
    write_perfetto(run, tmp_path / "trace.pftrace")
    trace: Any = pb.Trace()
    trace.ParseFromString((tmp_path / "trace.pftrace").read_bytes())
    names: dict[int, str] = {}
    notes: dict[int, str] = {}
    found = []
    for packet in trace.packet:
        names.update({one.iid: one.name for one in packet.interned_data.event_names})
        notes.update({one.iid: one.name for one in packet.interned_data.debug_annotation_names})
        event = packet.track_event
        if names.get(event.name_iid, "").startswith("GPU") and packet.HasField("track_event"):
            about = {notes[one.name_iid]: one.int_value for one in event.debug_annotations}
            found.append((event.type, names[event.name_iid], about))
    assert found == [(pb.TrackEvent.TYPE_INSTANT, "GPU: call 3 finished", COUNTED)]


def test_prometheus(run: Run, tmp_path: Path) -> None:
    write_prometheus(run, tmp_path / "metrics.txt")
    lines = (tmp_path / "metrics.txt").read_text().splitlines()
    counted = [line for line in lines if line.startswith("ncclscope_gpu_")]
    assert [(line.partition("{")[0], line.rpartition(" ")[2]) for line in counted] == [
        ("ncclscope_gpu_finished_calls_total", "3"),
        ("ncclscope_gpu_entered_calls_total", "4"),
    ]
    assert all('rank="0"' in line for line in counted)
