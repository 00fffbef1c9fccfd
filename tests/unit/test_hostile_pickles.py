"""Flight Recorder dumps of a few hundred bytes that expand to gigabytes or crash their reader."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest

from ncclscope import open_run
from ncclscope.errors import DamagedFileError
from ncclscope.readers import budget
from ncclscope.readers.flight_recorder.plain_pickle import load_plain
from ncclscope.readers.flight_recorder.reader import read_dump
from tests.support.dumps import Job, history
from tests.support.hostile import ask
from tests.support.programs import run_program

DEEP = 100_000
FIELDS = ("pg_id", "state", "input_sizes", "output_sizes", "input_dtypes", "profiling_name")
FIELDS += ("process_group", "time_created_ns", "collective_seq_id", "frames", "retired", "is_p2p")


def deep_list() -> list[Any]:
    found: list[Any] = []
    for _ in range(DEEP):
        found = [found]
    return found


def shared_list() -> list[Any]:
    """Return a value with 2 ** 60 members, in a few dozen lists."""
    found: list[Any] = ["x"]
    for _ in range(60):
        found = [found, found]
    return found


def entry(**fields: Any) -> dict[str, Any]:
    return {
        "frames": [],
        "record_id": 0,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 1,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "retired": False,
        "timeout_ms": 1000,
        "is_p2p": False,
    } | fields


def dump(entries: list[Any], **more: Any) -> dict[str, Any]:
    return {"version": "2.10", "pg_config": {}, "pg_status": {}, **more, "entries": entries}


def spelled(value: Any, place: bytes) -> bytes:
    """Return a pickle of a value in which a text `HERE` is replaced by other instructions."""
    data = pickle.dumps(value, 2)
    text = b"X\x04\x00\x00\x00HERE"
    start = data.index(text)
    end = start + len(text) + 2  # with its BINPUT
    return data[:start] + place + data[end:]


def list_of_lists() -> bytes:
    """Return instructions for a list that is nested deeply, which no pickler would spell."""
    return b"]" * DEEP + b"a" * (DEEP - 1)


def shared(kind: str) -> bytes:
    """Return instructions for 2 ** 60 texts in lists or tuples."""
    made = [b"]" if kind == "list" else b"N\x85", b"r" + struct.pack("<I", 1000)]
    for number in range(1000, 1060):
        get = b"j" + struct.pack("<I", number)
        both = b"](" + get + get + b"e" if kind == "list" else get + get + b"\x86"
        made += [both, b"r" + struct.pack("<I", number + 1)]
    # All but the last stay on the stack; a list around them keeps the stream well formed.
    last = b"j" + struct.pack("<I", 1060)
    return b"".join(made) + last


def among_others(tmp_path: Path, data: bytes) -> None:
    """Put a file beside sound dumps and demand that those are read."""
    job = Job(3)
    history(job)
    job.write(tmp_path)
    (tmp_path / "comm_lib_trace_rank_1").write_bytes(data)
    run = open_run(tmp_path)
    ask(run)
    assert {0, 2} <= set(run.by_rank)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("kind", ["deep", "shared"])
def test_a_field_may_hold_containers_without_end(tmp_path: Path, field: str, kind: str) -> None:
    if kind == "deep":
        data = spelled(dump([entry(**{field: "HERE"})]), list_of_lists())
    else:
        data = pickle.dumps(dump([entry(**{field: shared_list()})]), 4)
        assert len(data) < 1500
    among_others(tmp_path, data)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("field", ["pg_config", "pg_status", "rank", "version", "nccl_version"])
def test_a_header_may_hold_containers_without_end(tmp_path: Path, field: str) -> None:
    for value in (shared_list(), {"0": shared_list()}, {"0": {"ranks": shared_list()}}):
        among_others(tmp_path, pickle.dumps(dump([entry()], **{field: value}), 4))


KEYS = """
import pickle, struct, sys
from pathlib import Path
from ncclscope import open_run
from tests.support.dumps import Job, history

folder = Path(sys.argv[1])
job = Job(3)
history(job)
job.write(folder)
kind = sys.argv[2]
head = b"\\x80\\x02}q\\x00(X\\x07\\x00\\x00\\x00entries]"
if kind == "deep":
    key = b")" + b"\\x85" * 100_000
elif kind == "added to":
    key = b"X\\x01\\0\\0\\0aq\\x05X\\x01\\0\\0\\0bq\\x06" + (b"\\x86(eq\\x05h\\x05" * 200_000)
elif kind == "numbered anew":
    key = b"X\\x01\\0\\0\\0aq\\x05X\\x01\\0\\0\\0bq\\x06" + b"\\x86q\\x05h\\x05" * 50_000
elif kind == "shared":
    key = b"X\\x01\\0\\0\\0aq\\x05h\\x05" + b"\\x86q\\x05h\\x05" * 60
else:
    get = lambda number: b"j" + struct.pack("<I", number)
    key = b"".join(
        get(number) * 2 + b"\\x86r" + struct.pack("<I", number + 1) for number in range(1000, 1060)
    )
data = head + key + b"Nu."
(folder / "comm_lib_trace_rank_1").write_bytes(data)
run = open_run(folder)
assert set(run.by_rank) == {0, 2}, run
assert any("refused" in note for note in run.notes), run.notes
print("survived")
"""


@pytest.mark.parametrize("kind", ["deep", "added to", "numbered anew", "shared", "never made"])
def test_a_key_made_of_tuples_is_refused_before_it_is_hashed(tmp_path: Path, kind: str) -> None:
    completed = run_program(KEYS, tmp_path, kind, timeout=20)

    assert completed.stdout == "survived\n", completed.stderr


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pairs_of_texts_are_read(protocol: int) -> None:
    pair = ("0", "default_pg")
    values = [pair, pair, ("0", "a" * 300), ("0", "0"), {"x": [pair, [], {}, [[1]], ("1", "0")]}]
    assert load_plain(pickle.dumps(values, protocol), "it") == values


@pytest.mark.parametrize(
    "value", [(1,), ("a",), ("a", 1), ("a", ("b", "c")), ("a", "b", "c"), ("a", []), (1, 2, 3, 4)]
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_other_tuples_are_refused(value: Any, protocol: int) -> None:
    for inside in (value, [["x", "y"], value], {"a": "b", "c": value}):
        with pytest.raises(DamagedFileError, match="refused"):
            load_plain(pickle.dumps(inside, protocol), "it")


@pytest.mark.parametrize("key", [1, None, 2.5, True, ("a", "b")])
def test_a_key_of_an_entry_may_be_anything_that_is_plain(tmp_path: Path, key: Any) -> None:
    among_others(tmp_path, pickle.dumps(dump([{**entry(), key: 1}, {key: 2}], x={key: 1})))
    path = tmp_path / "comm_lib_trace_rank_1"
    assert read_dump(path).records > 0


def test_many_entries_that_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them takes long, and has two bytes."""
    monkeypatch.setattr(budget, "_SECONDS_FREE", 0.3)
    wide = entry(input_sizes=[[1] * 64] * 1024, output_sizes=[[1] * 64] * 1024)
    path = tmp_path / "comm_lib_trace_rank_1"
    path.write_bytes(pickle.dumps(dump([wide] * 100_000), 4))
    job = Job(1)
    history(job)
    job.write(tmp_path)

    run = open_run(tmp_path)

    assert set(run.by_rank) == {0}
    assert "too large, read so far: " in run.notes[0]


LARGE = """
import resource, sys
from pathlib import Path
from ncclscope.errors import DamagedFileError
from ncclscope.readers import budget
from ncclscope.readers.flight_recorder.reader import read_dump

path = Path(sys.argv[1])
head, piece = {
    "lists": (b"\\x80\\x02}(X\\x07\\0\\0\\0entries](", b"]"),
    "frames": (
        b"\\x80\\x04}(X\\x07\\0\\0\\0entries](",
        b"\\x95\\0\\0\\x01\\0\\0\\0\\0\\0" + b"]" * 65536,
    ),
    "dicts": (b"\\x80\\x02}(X\\x07\\0\\0\\0entries](", b"}NNs"),
    "json": (b'{"pg_config":0,"entries":[[]', b",[]"),
    "json dicts": (b'{"pg_config":0,"entries":[[]', b',{"":0}'),
    "texts": (b"\\x80\\x04}(X\\x07\\0\\0\\0entries](", b"\\x8c\\x02ab"),
}[sys.argv[2]]
size = 5 << 20
path.write_bytes(head + piece * (size // len(piece)) + (b"]}" if head[:1] == b"{" else b"eu."))
before = resource.getrusage(resource.RUSAGE_SELF)
try:
    read_dump(path)
    print("read")
except DamagedFileError as error:
    assert "too large" in str(error), error
after = resource.getrusage(resource.RUSAGE_SELF)
assert (after.ru_maxrss - before.ru_maxrss) * 1024 < 8 * size + (200 << 20), after
assert after.ru_utime - before.ru_utime < 5 + size / 1e7
print("survived")
"""


@pytest.mark.parametrize("kind", ["lists", "frames", "dicts", "json", "json dicts", "texts"])
def test_a_large_one_of_next_to_nothing_stays_within_its_budget(tmp_path: Path, kind: str) -> None:
    completed = run_program(LARGE, tmp_path / "comm_lib_trace_rank_1", kind, timeout=30)

    assert completed.stdout.endswith("survived\n"), completed.stderr


def test_one_description_of_members_for_many_groups(tmp_path: Path) -> None:
    about = {"name": "x", "desc": "y", "ranks": json.dumps(list(range(100_000)))}
    config = {str(number): about for number in range(1000)}
    among_others(tmp_path, pickle.dumps(dump([entry()], pg_config=config), 4))
