"""Packed traces that expand to a thousand times their size, among sound files."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

from ncclscope import diagnose, open_run
from ncclscope.errors import DamagedFileError
from ncclscope.readers import budget
from ncclscope.readers.jsonl.trace import read_trace
from tests.support.hostile import survive
from tests.support.programs import run_program
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


def test_one_that_takes_too_much_memory_is_a_note(tmp_path: Path) -> None:
    path = tmp_path / "rank1.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(HEADER)
        for number in range(60_000):
            line = {"comm": f"k{number}"}
            file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    # In a process of its own: here, memory that earlier tests have freed may be enough.
    read = (
        "import pathlib, sys\n"
        "from ncclscope.errors import DamagedFileError\n"
        "from ncclscope.readers import budget\n"
        "from ncclscope.readers.jsonl.trace import read_trace\n"
        "budget._MEMORY_FREE = 4 << 20\n"
        "try:\n    read_trace(pathlib.Path(sys.argv[1]))\n"
        "except DamagedFileError as error:\n    print(error)\n"
    )
    done = run_program(read, path)
    assert "too large, read so far: " in done.stdout


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


def test_a_trace_of_many_empty_gzip_members_is_read_in_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "rank1.jsonl.gz"
    parts = [HEADER, *[b""] * 150_000, LINES["calls"]]
    packed = {part: gzip.compress(part, 1, mtime=0) for part in set(parts)}
    path.write_bytes(b"".join(packed[part] for part in parts))

    began = time.thread_time()

    assert read_trace(path).records == 1
    assert time.thread_time() - began < 4


def test_gzip_members_without_end_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_SECONDS_FREE", 0.0)
    monkeypatch.setattr(budget, "_SECONDS_PER_BYTE", 0.0)
    path = tmp_path / "rank1.jsonl.gz"
    path.write_bytes(gzip.compress(HEADER) + gzip.compress(b"", 1, mtime=0) * 60_000)

    with pytest.raises(DamagedFileError, match="too large, read so far: "):
        read_trace(path)


def test_many_communicators_of_unequal_calls_are_compared_in_time(tmp_path: Path) -> None:
    number = 900
    calls = [f'{{"call":"barrier","comm":"k{call % number}"}}\n' for call in range(6 * number)]
    for rank, made in ((0, calls), (1, calls[: -3 * number])):
        header = {"ncclscope_trace": 1, "rank": rank, "world_size": 2}
        path = tmp_path / f"rank{rank}.jsonl"
        path.write_text(json.dumps(header) + "\n" + "".join(made))
    run = open_run(tmp_path)

    began = time.thread_time()
    verdict = diagnose(run)

    assert time.thread_time() - began < 10
    assert verdict.cause is None or not verdict.cause.diverging_ranks


REPORT = """
import resource, sys
from pathlib import Path
from ncclscope.__main__ import main

size = max(path.stat().st_size for path in Path(sys.argv[1]).iterdir())
before = resource.getrusage(resource.RUSAGE_SELF)
status = main(["report", sys.argv[1], "-o", sys.argv[2]])
after = resource.getrusage(resource.RUSAGE_SELF)
assert (after.ru_maxrss - before.ru_maxrss) * 1024 < 8 * size + (200 << 20), after
assert after.ru_utime - before.ru_utime < 5 + size / 1e7, after
assert Path(sys.argv[2]).stat().st_size < 1 << 20
sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_communicators_of_a_large_job_stay_within_the_budget(tmp_path: Path) -> None:
    ranks = list(range(65_000))
    for rank in range(2):
        lines = [{"ncclscope_trace": 1, "rank": rank, "world_size": len(ranks)}]
        for number in range(60):
            lines.append({"comm": f"k{number}", "ranks": ranks})
            lines.append({"call": "all_reduce", "comm": f"k{number}", "shape": [4]})
        path = tmp_path / "traces" / f"rank{rank}.jsonl.gz"
        path.parent.mkdir(exist_ok=True)
        with gzip.open(path, "wt", compresslevel=1) as file:
            file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)

    completed = run_program(REPORT, tmp_path / "traces", tmp_path / "report.html", timeout=250)

    assert completed.returncode == 0, completed.stderr
