"""Where a ring goes, and what of it others may see or may have put there."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclscope import open_run
from ncclscope.errors import NothingFoundError, RingError
from ncclscope.ring import layout, place
from ncclscope.ring.room import first_parts, grows
from ncclscope.ring.writer import RingWriter
from tests.support.rings import SMALL, check_log, fill, read, tracer_in

pytestmark = pytest.mark.both_writers


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files, where rings go for which there is no room elsewhere."""
    directory = tmp_path / "disk"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(place, "SHARED_MEMORY", tmp_path / "absent")
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return directory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o022, 0o000, 0o077])
def _any_umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_any_umask")
def test_files_and_new_directories_are_for_their_user_alone(tmp_path: Path) -> None:
    ring = RingWriter(tmp_path / "new" / "deep" / "rings", capacity=SMALL)

    assert mode(ring.path) == 0o600
    for directory in ("new", "new/deep", "new/deep/rings"):
        assert mode(tmp_path / directory) == 0o700
    assert not ring.moved


def test_a_directory_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    directory = tmp_path / "rings"
    directory.mkdir()
    directory.chmod(0o755)

    RingWriter(directory / "below", capacity=SMALL)
    RingWriter(directory, capacity=SMALL)

    assert mode(directory) == 0o755
    assert mode(directory / "below") == 0o700


def test_the_space_is_reserved(rings: Path) -> None:
    ring = RingWriter(rings, capacity=SMALL)

    status = ring.path.stat()

    reserved = status.st_blocks * 512
    assert status.st_size == ring.geometry.total
    assert reserved >= sum(size for _, size in first_parts(ring.geometry))
    assert reserved < ring.geometry.total / 4 or not grows()


def test_rings_made_at_the_same_time_do_not_meet(tmp_path: Path) -> None:
    paths = {RingWriter(tmp_path, capacity=SMALL).path for _ in range(40)}

    assert len(paths) == 40
    assert {path.parent for path in paths} == {tmp_path}


def test_a_link_in_the_place_of_the_directory_is_not_followed(tmp_path: Path, disk: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "rings").symlink_to(elsewhere)

    ring = RingWriter(tmp_path / "rings", capacity=SMALL)

    assert list(elsewhere.iterdir()) == []
    assert ring.path.parent == disk / f"ncclscope-{os.getuid()}" / "rings"
    assert "symbolic link" in ring.moved
    assert not ring.pointed
    assert mode(ring.path.parent) == mode(ring.path.parent.parent) == 0o700


def test_a_link_that_leads_nowhere_is_not_followed_either(tmp_path: Path, disk: Path) -> None:
    (tmp_path / "rings").symlink_to(tmp_path / "nowhere")

    ring = RingWriter(tmp_path / "rings", capacity=SMALL)

    assert not (tmp_path / "nowhere").exists()
    assert ring.path.is_relative_to(disk)


@pytest.mark.parametrize("target", ["victim", "nowhere"])
def test_files_and_links_planted_under_its_name_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    directory = tmp_path / "rings"
    directory.mkdir()
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)
    # The name is host, pid and millisecond.
    name = f"{os.uname().nodename}-{os.getpid()}-{now // 1_000_000:x}.ring"
    (directory / name).symlink_to(tmp_path / target)

    ring = RingWriter(directory, capacity=SMALL)

    assert ring.path.name.endswith("-1.ring")
    assert ring.path.parent == directory
    assert not ring.path.is_symlink()
    assert victim.read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


@pytest.fixture
def _nowhere_else(disk: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Take away the last place, the working directory."""
    monkeypatch.chdir(tmp_path)
    assert disk.parent == tmp_path
    (tmp_path / f"ncclscope-{os.getuid()}").write_text("in the way")


@pytest.mark.usefixtures("_nowhere_else")
@pytest.mark.parametrize("planted", ["link", "file"])
def test_what_others_put_in_the_place_of_the_fallback_is_refused(
    tmp_path: Path, disk: Path, planted: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "rings").write_text("in the way")
    fallback = disk / f"ncclscope-{os.getuid()}"
    if planted == "link":
        fallback.symlink_to(elsewhere)
    else:
        fallback.write_text("")

    with pytest.raises(RingError, match=r"no ring can be created in .*NCCLSCOPE_DIR"):
        RingWriter(tmp_path / "rings", capacity=SMALL)

    assert list(elsewhere.iterdir()) == []


@pytest.mark.usefixtures("_nowhere_else")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_fallback_that_belongs_to_somebody_else_is_refused(tmp_path: Path, disk: Path) -> None:
    (tmp_path / "rings").write_text("in the way")
    fallback = disk / f"ncclscope-{os.getuid()}"
    fallback.mkdir()
    os.chown(fallback, 12345, 12345)

    with pytest.raises(RingError, match=r"belongs to another user|not permitted"):
        RingWriter(tmp_path / "rings", capacity=SMALL)


@pytest.mark.usefixtures("disk")
def test_a_ring_that_would_take_more_than_its_share_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(RingError, match=r"not enough free space.*not enough free space"):
        place.make_file(tmp_path / "rings", 1 << 50)

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not (tmp_path / "rings").exists()


def space_of(monkeypatch: pytest.MonkeyPatch, free: dict[Path, int]) -> None:
    """Let file systems have so many free bytes, each below its directory; others have none."""
    real = os.statvfs

    def statvfs(path: Path) -> os.statvfs_result:
        found = list(real(path))
        left = next((left for top, left in free.items() if path.is_relative_to(top)), 0)
        found[4] = left // found[1]
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", statvfs)


@pytest.mark.parametrize("expected", ["rings", "shm", "disk", "cwd"])
def test_places_are_tried_in_order(
    tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch, expected: str
) -> None:
    monkeypatch.setattr(place, "SHARED_MEMORY", tmp_path / "shm")
    order = [tmp_path / "rings", tmp_path / "shm", disk, tmp_path / "cwd"]
    for directory in order:
        directory.mkdir(exist_ok=True)
    found = [directory.name for directory in order].index(expected)
    space_of(monkeypatch, dict.fromkeys(order[found:], 1 << 30))

    made = place.make_file(tmp_path / "rings", 1 << 20)

    os.close(made.descriptor)
    assert made.path.is_relative_to(order[found])
    assert made.reason.count("not enough free space") == found
    assert place.made_here(made.path.parent) == bool(found)
    again = place.make_file(tmp_path / "rings", 1 << 20)
    os.close(again.descriptor)
    assert again.path.parent == made.path.parent


def test_room_is_left_for_all_processes_of_the_host(
    tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space_of(monkeypatch, {tmp_path / "rings": 15 << 20, disk: 16 << 20})
    (tmp_path / "rings").mkdir()
    for count, expected in (("1", tmp_path / "rings"), ("8", disk)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", count)
        made = place.make_file(tmp_path / "rings", 64 << 20, [(0, 1 << 19), (32 << 20, 1 << 19)])
        os.close(made.descriptor)
        assert made.path.is_relative_to(expected)
        status = made.path.stat()
        assert status.st_size == 64 << 20
        assert 1 << 20 <= status.st_blocks * 512 < 2 << 20


def test_the_note_of_where_a_ring_went_is_followed(tmp_path: Path) -> None:
    tracer = tracer_in(tmp_path / "other")
    fill(tracer, tracer.communicator("k"), 1, 6)
    directory = tmp_path / "rings"
    directory.mkdir()

    assert place.leave_pointer(directory, tracer.ring.path)

    (note,) = directory.iterdir()
    assert note.name == tracer.ring.path.name + layout.MOVED_SUFFIX
    assert mode(note) == 0o600
    check_log(read(directory).logs["k"], 1, 5)


def test_a_note_is_not_written_through_a_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "link").symlink_to(elsewhere)
    target = tmp_path / "host-1-1.ring"
    assert not place.leave_pointer(tmp_path / "link", target)

    directory = tmp_path / "rings"
    directory.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (directory / "host-1-1.ring.moved").symlink_to(victim)
    assert not place.leave_pointer(directory, target)

    assert victim.read_text() == "precious"
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("kind", ["fifo", "nothing", "garbage", "not ours", "long", "directory"])
def test_notes_that_lead_nowhere_do_no_harm(tmp_path: Path, kind: str) -> None:
    note = tmp_path / "host-1-1.ring.moved"
    match kind:
        case "fifo":
            os.mkfifo(note)
        case "nothing":
            note.write_text(str(tmp_path / "gone.ring"))
        case "garbage":
            note.write_bytes(b"\xff\x00/\n\xfe")
        case "not ours":
            note.write_text("/etc/passwd\n")
        case "long":
            note.write_text("/x" * 100_000 + ".ring")
        case "directory":
            note.mkdir()

    with pytest.raises(NothingFoundError):
        open_run(tmp_path)


def test_a_ring_smaller_than_the_smallest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RingError, match=f"at least {layout.MIN_CAPACITY}"):
        RingWriter(tmp_path, capacity=layout.MIN_CAPACITY - 1)
    assert list(tmp_path.iterdir()) == []
