"""Rings that were damaged or made up, among sound ones: those are judged all the same."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ncclscope import open_run
from ncclscope.engine.verdict import diagnose
from ncclscope.errors import InputError
from ncclscope.ring import layout
from ncclscope.ring.writer import RingWriter
from tests.support.hostile import survive
from tests.support.programs import run_program
from tests.support.rings import SMALL, fill, geometry_of, tracer_in

WRONG: list[Any] = [5, True, "x", 2.5, [], [5], [[]], [["k", 1]], [["k", [], {}]], {"a": 1}, None]
DETAILS = ("overdue", "timed_out", "dumped", "tells", "splits", "idle_s", "stated", "numbered")
DETAILS += ("format", "still_seconds", "gpu_spins", "beating", "dump", "written_ns", "window")
DETAILS += ("ended_with", "probe_failed", "device_progress", "probes", "unseen", "run", "guard")


def job(directory: Path, size: int = 3, **details: Any) -> list[Path]:
    """Write rings of ranks that agree up to call 19, where the last rank stops."""
    for rank in range(size):
        own = details if rank == 0 else {}
        tracer = tracer_in(directory, rank=rank, world_size=size, details=own)
        comm = tracer.communicator("k", "tp:0", range(size), "nccl")
        fill(tracer, comm, 1, 30 if rank < size - 1 else 20)
        tracer.close()
    return sorted(directory.glob("*.ring"))


@pytest.mark.parametrize("name", DETAILS)
def test_a_description_may_say_anything(tmp_path: Path, name: str) -> None:
    for number, value in enumerate(WRONG):
        folder = tmp_path / str(number)
        job(folder, **{name: value})
        verdict = diagnose(open_run(folder))
        assert json.dumps(verdict.to_dict())
        if name in ("overdue", "format", "timed_out"):
            assert verdict.status == "hung"


def test_a_wrong_type_in_a_description_is_exported_without_it(tmp_path: Path) -> None:
    job(tmp_path / "rings", overdue=5, run=["x"], ended_with={"a": 1})
    completed = run_program(
        "from ncclscope.__main__ import main; import sys; sys.exit(main(sys.argv[1:]))",
        *("export", tmp_path / "rings", "--format", "jsonl", "-o", tmp_path / "trace"),
        timeout=30,
    )
    assert completed.returncode == 0, completed.stderr
    assert diagnose(open_run(tmp_path / "trace")).status == "hung"


def damage(path: Path, call: int) -> None:
    """Flip two bits in the number of a call and of the next one, so that both are missing.

    Of one alone, the hash would follow from the next.
    """
    data = bytearray(path.read_bytes())
    geometry = geometry_of(data)
    for position in (call - 1, call):
        data[geometry.records + position * layout.RECORD.size] ^= 3 << 4
    path.write_bytes(data)


def test_a_ring_that_is_damaged_in_the_middle_is_a_note(tmp_path: Path) -> None:
    rings = job(tmp_path)
    damage(rings[0], 10)

    verdict = diagnose(open_run(tmp_path))

    assert len(verdict.run.ranks) == 2
    assert [note for note in verdict.notes if "is damaged" in note and rings[0].name in note]
    assert verdict.run.missing == (0,)


def test_a_ring_that_is_damaged_and_alone_is_refused(tmp_path: Path) -> None:
    rings = job(tmp_path)
    damage(rings[0], 10)
    with pytest.raises(InputError, match="is damaged"):
        diagnose(open_run(rings[0]))


@pytest.mark.parametrize(
    "command",
    [
        ("export", "--format", "jsonl", "-o", "out"),
        ("export", "--format", "chrome", "-o", "-"),
        ("report", "-o", "out.html"),
        ("check",),
        ("diagnose", "--json"),
    ],
    ids=" ".join,
)
def test_commands_go_on_without_a_damaged_ring(tmp_path: Path, command: tuple[str, ...]) -> None:
    rings = job(tmp_path / "rings")
    damage(rings[0], 10)
    options = [str(tmp_path / part) if part.startswith("out") else part for part in command[1:]]
    completed = run_program(
        "from ncclscope.__main__ import main; import sys; sys.exit(main(sys.argv[1:]))",
        *(command[0], tmp_path / "rings", *options),
        timeout=30,
    )
    assert completed.returncode in (0, 1, 3), completed.stderr
    assert "Traceback" not in completed.stderr


@pytest.mark.slow
def test_no_flipped_bit_takes_the_other_rings_with_it(tmp_path: Path) -> None:
    rings = job(tmp_path)
    sound = rings[0].read_bytes()
    used = [place for place, byte in enumerate(sound) if byte]
    for number, place in enumerate(used[:: len(used) // 60]):
        data = bytearray(sound)
        data[place] ^= 1 << number % 8
        rings[0].write_bytes(data)
        verdict = diagnose(open_run(tmp_path))
        assert {1, 2} <= set(verdict.run.by_rank)


def ring_of_ranges(directory: Path, count: int, end: int) -> Path:
    ring = RingWriter(directory, capacity=SMALL, about={"rank": 1, "world_size": 2})
    for number in range(count):
        about = {"key": f"k{number}", "label": f"x:{number}", "range": [0, end + number, 1]}
        channel = ring.channel({**about, "backend": "nccl"})
        ring.post(channel, ring.fixed(channel, "all_reduce"), 5)
    return ring.path


def test_ranges_of_ranks_take_no_more_than_any_job_has(tmp_path: Path) -> None:
    path = ring_of_ranges(tmp_path, 100, 250_000)
    assert path.stat().st_blocks * 512 < 1 << 20
    job(tmp_path)

    began = time.thread_time()
    run = open_run(tmp_path)

    assert time.thread_time() - began < 5
    assert len(run.ranks) == 3
    assert "too large, read so far" in run.notes[0]
    assert survive(path) is None


def test_ranges_of_a_large_job_are_read(tmp_path: Path) -> None:
    ring_of_ranges(tmp_path, 8, 100_000)
    (rank,) = open_run(tmp_path).ranks
    assert len(rank.logs["k7"].communicator.ranks) == 100_007
