"""Packed traces that expand to a thousand times their size, among sound files."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

from ncclscope import open_run
from ncclscope.errors import DamagedFileError
from ncclscope.readers import budget
from ncclscope.readers.jsonl.trace import read_trace
from tests.support.hostile import survive
from tests.support.rings import fill, tracer_in

HEADER = json.dumps({"ncclscope_trace": 1, "rank": 1, "world_size": 2}).encode() + b"\n"
LINES = {
    "calls": b'{"call":"barrier","comm":"k"}\n',
    "transfers": b'{"call":"send","comm":"k"}\n',
    "steps": b'{"step":1}\n',
    "nothing": b"{}\n",
    "no line": b"\n",
}


def packed(path: Path, line: bytes, megabytes: int) -> Path:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(HEADER)
        piece = line * ((1 << 20) // len(line))
        for _ in range(megabytes):
            file.write(piece)
    return path


@pytest.mark.parametrize("kind", LINES)
def test_one_that_takes_too_long_is_a_note(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_SECONDS_FREE", 0.2)
    path = packed(tmp_path / "rank1.jsonl.gz", LINES[kind], 20)
    tracer = tracer_in(tmp_path, rank=0, world_size=2)
    fill(tracer, tracer.communicator("k", "tp:0", [0, 1]), 1, 5)
    tracer.close()

    began = time.thread_time()
    run = open_run(tmp_path)

    assert time.thread_time() - began < 1
    assert set(run.by_rank) == {0}
    assert "too large, read so far: " in run.notes[0]
    assert survive(path) is None


def test_one_that_takes_too_much_memory_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_MEMORY_FREE", 4 << 20)
    path = tmp_path / "rank1.jsonl.gz"
    ranks = list(range(60_000))
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(HEADER)
        for number in range(60):
            line = {"comm": f"k{number}", "ranks": ranks}
            file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    with pytest.raises(DamagedFileError, match="too large, read so far: "):
        read_trace(path)


def test_a_packed_trace_of_many_calls_is_read(tmp_path: Path) -> None:
    path = packed(tmp_path / "rank1.jsonl.gz", LINES["calls"], 1)
    assert read_trace(path).records > 30_000


def test_a_shape_of_more_elements_than_there_can_be_has_no_number(tmp_path: Path) -> None:
    path = tmp_path / "rank1.jsonl"
    call = {"call": "all_reduce", "comm": "k", "shape": [1 << 62] * 60}
    path.write_bytes(HEADER + json.dumps(call).encode() + b"\n")
    (rank,) = open_run(path).ranks
    assert rank.logs["k"].call(1).numel is None
    survive(path)
