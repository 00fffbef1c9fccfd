"""Compressed rings, as bundles hold them: read as plain ones, and refused within a budget."""

from __future__ import annotations

import gzip
import os
import resource
import tempfile
import time
from pathlib import Path

import pytest

from ncclscope import diagnose, open_run
from ncclscope.errors import InputError
from ncclscope.private import pack_private
from tests.support.cluster import Cluster


@pytest.fixture
def rings(tmp_path: Path) -> Path:
    """Return the rings of a job in which rank 2 left out a call."""
    cluster = Cluster(tmp_path / "rings", 3)
    cluster.history("world", 20)
    cluster.post([0, 1], "world", shape=(8,))
    cluster.post(range(3), "world", "broadcast", root=0)
    cluster.run(quiet=None)
    return tmp_path / "rings"


@pytest.fixture
def packed(rings: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "packed"
    folder.mkdir()
    for path in rings.glob("*.ring"):
        pack_private(path, folder / f"{path.name}.gz")
    return folder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give temporary files a folder of their own, and check that none is left in it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_the_verdict_is_that_of_plain_rings(rings: Path, packed: Path, temporary: Path) -> None:
    one, other = diagnose(open_run(rings)), diagnose(open_run(packed))

    assert other.cause is not None
    assert one.cause is not None
    assert other.cause.diverging_ranks == (2,)
    assert other.cause.to_dict() == one.cause.to_dict()
    assert list(temporary.iterdir()) == []


def test_a_copy_takes_a_fraction_of_the_space(rings: Path, packed: Path) -> None:
    sizes = [sum(path.stat().st_size for path in folder.iterdir()) for folder in (rings, packed)]

    assert sizes[1] * 20 < sizes[0]


@pytest.mark.parametrize("place", [3, 20, 200, -4])
def test_one_changed_bit_is_noticed(place: int, packed: Path) -> None:
    path = sorted(packed.iterdir())[2]
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)

    run = open_run(packed)

    whole = [rank.rank for rank in run.ranks] == [0, 1, 2]
    assert whole or any(path.name in note for note in run.notes)
    if whole:  # it was in a part of gzip's header that says nothing
        assert gzip.decompress(data)


@pytest.mark.parametrize("kept", [0, 1, 30, 0.5, -1])
def test_a_part_of_a_file_is_not_read(kept: float, packed: Path) -> None:
    path = sorted(packed.iterdir())[2]
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])

    run = open_run(packed)

    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert any(path.name in note for note in run.notes)
    verdict = diagnose(run)
    assert verdict.cause is None or verdict.cause.diverging_ranks == ()


def test_a_damaged_ring_is_named_by_its_own_path(packed: Path) -> None:
    path = sorted(packed.iterdir())[0]
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:9000]))

    (note,) = open_run(packed).notes

    assert note.startswith(f"{path} is truncated")


@pytest.mark.parametrize("letter", [b"\0", b"A"])
def test_a_bomb_is_refused_within_its_budget(letter: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bomb.ring.gz"
    with gzip.open(path, "wb", 1) as file:
        for _ in range(300):
            file.write(letter * (1 << 20))
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()

    with pytest.raises(InputError, match=r"bomb\.ring\.gz is (too large|not a ring)"):
        open_run(path)

    assert time.thread_time() - began < 6
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_a_link_or_a_pipe_is_not_followed(packed: Path) -> None:
    target = packed.parent / "elsewhere.ring.gz"
    sorted(packed.iterdir())[0].rename(target)
    (packed / "x.ring.gz").symlink_to(target)
    os.mkfifo(packed / "y.ring.gz")

    notes = open_run(packed).notes

    assert f"{packed}/y.ring.gz is no ring: a FIFO" in notes
    assert any("x.ring.gz" in note for note in notes)
