"""Whatever we write that holds records is for its user alone, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ncclscope import open_run
from ncclscope.__main__ import main
from ncclscope.attach import bundle
from ncclscope.attach.session import JobSample
from ncclscope.engine.verdict import diagnose
from ncclscope.errors import UsageError
from ncclscope.export.formats import FORMATS
from ncclscope.private import copy_private, make_private, open_private, write_private
from ncclscope.watch.actions import Actions
from ncclscope.watch.watch import Watcher
from tests.support.cluster import Cluster
from tests.support.snapshots import in_collective, snapshot, worker


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct, autouse=True)
def _any_umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    cluster = Cluster(tmp_path / "rings", 2)
    cluster.history(count=3)
    return tmp_path / "rings"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def check_private(*roots: Path) -> None:
    """Demand that all below is its user's alone, and that there is a file."""
    found = [path for root in roots for path in (root, *root.rglob("*"))]
    assert any(path.is_file() for path in found)
    wrong = {str(path): oct(mode(path)) for path in found if mode(path) & 0o077}
    assert not wrong
    assert all(mode(path) == (0o700 if path.is_dir() else 0o600) for path in found)


def test_files_and_directories(tmp_path: Path) -> None:
    make_private(tmp_path / "new" / "deep")
    write_private(tmp_path / "new" / "text", "é\n")
    write_private(tmp_path / "new" / "bytes", b"\xff")
    with open_private(tmp_path / "new" / "deep" / "file") as file:
        file.write(b"abc")
    copy_private(tmp_path / "new" / "text", tmp_path / "new" / "copy")

    check_private(tmp_path / "new")
    assert (tmp_path / "new" / "copy").read_text("utf-8") == "é\n"
    assert (tmp_path / "new" / "bytes").read_bytes() == b"\xff"
    assert (tmp_path / "new" / "deep" / "file").read_bytes() == b"abc"


def test_nothing_is_left_of_a_copy_of_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        copy_private(tmp_path / "nothing", tmp_path / "copy")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("planted", ["link", "pipe"])
def test_only_a_file_is_copied(recorded: Path, tmp_path: Path, planted: str) -> None:
    """As when somebody who can write where rings are puts something else in the place of one."""
    poll = Watcher(recorded).poll()
    first, second = sorted(recorded.glob("*.ring"))
    first.unlink()
    if planted == "link":
        (tmp_path / "other").write_text("precious")
        first.symlink_to(tmp_path / "other")
    else:
        os.mkfifo(first)

    done = Actions(bundles=tmp_path / "bundles").act(poll)

    assert done.bundle is not None
    assert [path.name for path in done.bundle.glob("rings/*")] == [f"{second.name}.gz"]


def test_what_exists_keeps_the_mode_that_its_user_gave_it(tmp_path: Path) -> None:
    directory, file = tmp_path / "shared", tmp_path / "shared" / "file"
    directory.mkdir()
    directory.chmod(0o750)
    file.write_text("something longer")
    file.chmod(0o640)

    make_private(directory)
    write_private(file, "new")

    assert (mode(directory), mode(file)) == (0o750, 0o640)
    assert file.read_text() == "new"


@pytest.mark.parametrize("format", FORMATS)
def test_exports(recorded: Path, tmp_path: Path, format: str) -> None:
    target = tmp_path / "out" / "deep" if FORMATS[format].is_directory else tmp_path / "out"

    assert main(["export", str(recorded), "--format", format, "-o", str(target)]) == 0

    check_private(tmp_path / "out")


@pytest.mark.parametrize("format", ["perfetto", "chrome"])
def test_packed_exports(recorded: Path, tmp_path: Path, format: str) -> None:
    target = tmp_path / "out.gz"

    assert main(["export", str(recorded), "--format", format, "-o", str(target)]) == 0

    check_private(target)


def test_reports(recorded: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"

    assert main(["report", str(recorded), "-o", str(target)]) in (0, 1)
    check_private(target)

    target.chmod(0o644)
    assert main(["report", str(recorded), "-o", str(target)]) in (0, 1)
    assert mode(target) == 0o644


@pytest.mark.parametrize("redacted", [False, True])
def test_bundles_of_attach(recorded: Path, tmp_path: Path, redacted: bool) -> None:
    rings = tuple(sorted(recorded.glob("*.ring")))
    rings[0].chmod(0o644)
    dump = tmp_path / "trace_0"
    dump.write_text("{}")
    seen = snapshot([worker(0, in_collective("all_reduce", 10))])
    run = replace(open_run(recorded), snapshot=seen)
    poll = JobSample(run, rings, (dump,))
    target = tmp_path / "new" / "bundle"

    bundle.write_bundle(target, poll, diagnose(run).to_dict(), "screen", redacted=redacted)

    check_private(tmp_path / "new")
    assert len(list(target.glob("rings/*.ring.gz"))) == 2


def test_bundles_of_watch(recorded: Path, tmp_path: Path) -> None:
    poll = Watcher(recorded).poll()
    actions = Actions(bundles=tmp_path / "new" / "bundles")
    actions.check()

    done = actions.act(poll)

    assert done.bundle is not None
    check_private(tmp_path / "new")
    assert len(list(done.bundle.glob("rings/*.ring.gz"))) == 2


def test_what_is_collected(recorded: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "nodes"

    arguments = ["collect", "--local", "--no-stacks", str(recorded), "-o", str(target)]
    assert main(arguments) == 0

    check_private(tmp_path / "new")
    assert len(list(target.rglob("*.ring"))) == 2


def test_what_is_collected_at_a_url_of_this_machine(recorded: Path, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    target = tmp_path / "new" / "nodes"

    arguments = ["collect", "--local", "--no-stacks", str(recorded), "-o", target.as_uri()]
    assert main(arguments) == 0

    check_private(tmp_path / "new")
    assert len(list(target.rglob("*.ring"))) == 2


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError):
        Actions(bundles=tmp_path / "file" / "below").check()
