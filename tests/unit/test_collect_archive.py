"""The stream of a node: what goes in comes out, and nothing else ever does."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclscope import diagnose, open_run
from ncclscope.collect.archive import Limits, Packer, UnpackedArchive, unpack
from ncclscope.errors import DamagedFileError
from tests.support.cluster import Cluster


def packed(*files: tuple[str, bytes]) -> bytes:
    stream = io.BytesIO()
    packer = Packer(stream)
    for name, data in files:
        packer.add_bytes(name, data)
    packer.close()
    return stream.getvalue()


def foreign(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.USTAR_FORMAT) -> bytes:
    """Return a stream that another program has made."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", format=format) as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def taken(stream: bytes, directory: Path, limits: Limits | None = None) -> UnpackedArchive:
    found = UnpackedArchive()
    unpack(io.BytesIO(stream).read, directory, found, limits)
    return found


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    files = {
        "node.json": b"{}",
        "files/a.ring": bytes(range(256)) * 5000,
        "files/" + "deep/" * 12 + "x" * 90: b"long",
        "empty": b"",
        "zeros": bytes(3 << 20),
    }
    found = taken(packed(*files.items()), tmp_path)
    assert contents(tmp_path) == files
    assert (found.files, found.complete) == (len(files), True)
    assert found.size == sum(map(len, files.values()))


def test_any_tar_reads_it() -> None:
    stream = packed(("node.json", b"{}"), ("files/" + "d" * 80 + "/" + "x" * 60, b"abc"))
    with tarfile.open(fileobj=io.BytesIO(stream), mode="r:gz") as archive:
        files = [one for one in archive.getmembers() if not one.name.startswith("sums/")]
        assert [one.size for one in files] == [2, 3]
        assert files[1].name.endswith("x" * 60)
        stated = archive.extractfile("sums/1.json")
        assert stated is not None
        digest = hashlib.sha256(b"abc").hexdigest()
        about = {"name": files[1].name, "size": 3, "read": 3, "sha256": digest}
        assert json.load(stated) == about


def test_an_empty_ring_travels_small_and_stays_a_hole(tmp_path: Path) -> None:
    ring = tmp_path / "big.ring"
    with ring.open("wb") as file:
        file.write(os.urandom(10_000))
        os.posix_fallocate(file.fileno(), 0, 64 << 20)
    stream = io.BytesIO()
    packer = Packer(stream)
    packer.add_file("files/big.ring", ring)
    packer.close()
    assert len(stream.getvalue()) < 400_000
    target = tmp_path / "out"
    taken(stream.getvalue(), target)
    copy = target / "files" / "big.ring"
    assert copy.stat().st_size == 64 << 20
    assert copy.stat().st_blocks * 512 < 1 << 20
    assert copy.read_bytes() == ring.read_bytes()


def test_a_file_that_is_cut_short_while_it_is_read_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"x" * 1000)
    status = os.stat_result((0o100600, 1, 1, 1, 0, 0, 5000, 0, 0, 0))
    monkeypatch.setattr(os, "fstat", lambda descriptor: status)
    stream = io.BytesIO()
    packer = Packer(stream)
    packer.add_file("short", path)
    packer.add_bytes("next", b"here")
    monkeypatch.undo()
    packer.close()
    found = taken(stream.getvalue(), tmp_path / "out")
    assert contents(tmp_path / "out") == {"short.cut": b"x" * 1000, "next": b"here"}
    assert found.cut == packer.cut == ["short"]


class Failing(io.BytesIO):
    """A file of which the disk gives only the beginning."""

    def __init__(self, data: bytes, kept: int) -> None:
        super().__init__(data)
        self._kept = kept

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() >= self._kept:
            raise OSError(errno.EIO, "Input/output error")
        assert size is not None
        return super().read(min(size, self._kept - self.tell()))


@pytest.mark.parametrize("kept", [0, 100, 4096, 65536, 100_000])
def test_a_ring_that_was_cut_is_not_read_and_its_rank_not_named(kept: int, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 3)
    cluster.history("world", 20)
    cluster.post([0, 1], "world", shape=(8,))
    cluster.run()
    stream = io.BytesIO()
    packer = Packer(stream)
    files = sorted((tmp_path / "rings").glob("*.ring"))
    for file in files:
        data = file.read_bytes()
        source = Failing(data, kept) if file == files[1] else io.BytesIO(data)
        packer.add_stream(f"files/{file.name}", source, len(data))
    packer.close()

    taken(stream.getvalue(), tmp_path / "out")

    verdict = diagnose(open_run(tmp_path / "out"))
    assert any(
        note.endswith(f"{files[1].name} is not read: cut in transfer") for note in verdict.notes
    )
    assert verdict.status != "ok"
    assert 1 not in (verdict.cause.diverging_ranks if verdict.cause else ())


def test_a_file_other_than_the_one_that_was_sent_is_refused(tmp_path: Path) -> None:
    tar = bytearray(gzip.decompress(packed(("first", b"1" * 600), ("second", b"2"))))
    tar[600] ^= 1

    with pytest.raises(DamagedFileError, match="first is not as it was sent"):
        taken(gzip.compress(bytes(tar)), tmp_path)

    assert contents(tmp_path) == {}


def test_a_node_of_another_version_states_no_digests(tmp_path: Path) -> None:
    found = taken(foreign((member("a"), b"1"), (member("b"), b"2")), tmp_path)

    assert contents(tmp_path) == {"a": b"1", "b": b"2"}
    assert (found.files, found.complete) == (2, True)


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/evil", "a/../../evil", "a//b", "./a", "a\nb", "a\\b", "x/" * 40 + "x"]
)
def test_no_name_leads_elsewhere(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    with pytest.raises(DamagedFileError, match="unsafe name"):
        taken(foreign((member(name), b"evil")), directory)
    assert contents(tmp_path) == {}
    with pytest.raises(ValueError, match="its name"):
        Packer(io.BytesIO()).add_bytes(name, b"")


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE],
)
def test_nothing_but_plain_files(tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(DamagedFileError, match=r"is a link or not a|unsafe name"):
        taken(foreign((member("evil", kind, "/etc/passwd"), b"")), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_no_extended_header_is_believed(tmp_path: Path, format: int) -> None:
    long = foreign((member("long/" * 60 + "name"), b"data"), format=format)
    with pytest.raises(DamagedFileError):
        taken(long, tmp_path)
    assert contents(tmp_path) == {}


def test_a_link_that_is_there_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    target = tmp_path / "out"
    target.mkdir()
    (target / "a").symlink_to(victim)
    with pytest.raises(DamagedFileError, match="twice"):
        taken(packed(("a", b"theirs")), target)
    assert victim.read_text() == "mine"


def test_the_same_name_twice(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match="twice"):
        taken(packed(("a", b"1"), ("a", b"2")), tmp_path)
    assert contents(tmp_path) == {"a": b"1"}


def test_no_more_than_was_agreed_upon(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match="more than"):
        taken(packed(("a", bytes(1 << 20)), ("b", bytes(1 << 20))), tmp_path, Limits(size=3 << 19))
    assert list(contents(tmp_path)) == ["a"]
    with pytest.raises(DamagedFileError, match="more than"):
        taken(packed(("c", b""), ("d", b"")), tmp_path, Limits(files=1))


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    info = member("bomb")
    info.size = 7 << 30
    header = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    with pytest.raises(DamagedFileError, match="more than"):
        taken(gzip.compress(bytes(header)), tmp_path, Limits(size=1 << 30))
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("cut", [20, 600, 5000, -9, -1])
def test_a_stream_that_breaks_off_is_known_to(tmp_path: Path, cut: int) -> None:
    stream = packed(("first", b"1"), ("second", os.urandom(100_000)))
    found = UnpackedArchive()
    with pytest.raises(DamagedFileError, match=r"broke off|received no data"):
        unpack(io.BytesIO(stream[:cut]).read, tmp_path, found, None)
    assert not found.complete
    for name, data in contents(tmp_path).items():
        assert (name, len(data)) in (("first", 1), ("second", 100_000))  # whole or not at all


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    stream = bytearray(packed(("first", os.urandom(5000))))
    stream[3000] ^= 1
    with pytest.raises(DamagedFileError, match="damaged"):
        taken(bytes(stream), tmp_path)


@pytest.mark.parametrize(
    ("before", "ok"),
    [(b"Welcome to node-1!\n", True), (b"x" * 60_000, True), (b"x" * 70_000, False)],
)
def test_what_a_shell_greets_with_is_overlooked(tmp_path: Path, before: bytes, ok: bool) -> None:
    stream = before + packed(("a", b"1"))
    if ok:
        assert taken(stream, tmp_path).complete
    else:
        with pytest.raises(DamagedFileError, match=r"received .xxx.* instead of an archive"):
            taken(stream, tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"bash: ncclscope: command not found\n",
        lambda data: gzip.compress(b"no archive" * 100),
        lambda data: gzip.compress(zlib.decompress(data, 31)[:512].replace(b"ustar", b"xstar")),
        lambda data: gzip.compress(b"\xff" * 2048),
    ],
)
def test_something_else_is_one_line(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(DamagedFileError) as caught:
        taken(damage(packed(("a", b"1"))), tmp_path)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == {}


def test_bytes_may_come_one_by_one(tmp_path: Path) -> None:
    stream = io.BytesIO(packed(("a", b"1" * 1000), ("b", b"2")))
    unpack(lambda size: stream.read(1), tmp_path, UnpackedArchive())
    assert contents(tmp_path) == {"a": b"1" * 1000, "b": b"2"}
