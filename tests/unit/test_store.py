"""What stays in the default places of rings and bundles, and what is removed from them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclscope.__main__ import main
from ncclscope.store import home as homes
from ncclscope.store.entry import ALARM, HEALTHY, RUNNING, State, entries, mark
from ncclscope.store.pruning import keep_within_limit, prune
from ncclscope.store.run_directory import DefaultPlaces
from ncclscope.tracing.tracer import Tracer

HOME = f"ncclscope-{os.getuid()}"


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the default places directories of this test; return the one for rings."""
    for name in ("shm", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(homes, "_SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "shm"


def record(folder: Path, *, living: bool = False, ended: bool = True, run: str = "r") -> Path:
    """Write a ring of a process that lives or does not; return its path."""
    details: dict[str, object] = {"run": run} if living else {"run": run, "boot_id": "earlier"}
    tracer = Tracer(folder, rank=0, world_size=2, capacity=1024, heartbeat=False, details=details)
    tracer.record(tracer.communicator("k", "world", [0, 1]), "all_reduce", shape=(4,))
    if ended:
        tracer.close()
    return tracer.ring.path


def entry(place: Path, name: str, *, age: float = 0.0, mark: str = "", **about: bool) -> Path:
    """Write a directory with the rings of a run to a default place."""
    folder = place / HOME / name
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    record(folder, **about)
    if mark:
        (folder / mark).touch()
    for path in folder.iterdir():
        os.utime(path, (time.time() - age,) * 2)
    return folder


def bundle(shm: Path, name: str = "20260101-000000-op_mismatch") -> Path:
    folder = shm.parent / "tmp" / HOME / "hangs" / name
    (folder / "rings").mkdir(parents=True, mode=0o700)
    for file in ("verdict.json", "rings/a.ring.gz"):
        (folder / file).write_bytes(b"{}" * 5000)
    return folder


def states() -> dict[str, State]:
    return {one.path.name: one.state() for one in entries()}


def test_states_of_what_is_there(shm: Path) -> None:
    entry(shm, "lives", living=True, ended=False)
    entry(shm, "crashed", ended=False)
    entry(shm, "ended")
    entry(shm, "kept", ended=False, mark=HEALTHY)
    entry(shm, "failed", mark=ALARM)
    bundle(shm, "bundle")

    assert states() == {
        "lives": State.IN_USE,
        "crashed": State.ALARM,
        "ended": State.HEALTHY,
        "kept": State.HEALTHY,
        "failed": State.ALARM,
        "bundle": State.ALARM,
    }


def test_prune_leaves_what_is_used_and_alarms_that_nobody_has_read(shm: Path) -> None:
    lives = entry(shm, "lives", living=True, mark=HEALTHY)
    failed = entry(shm, "failed", mark=ALARM)
    entry(shm, "ended")
    hang = bundle(shm)

    found = prune()

    assert [one.entry.path.name for one in found if one.removed] == ["ended"]
    assert {path.name for path in (shm / HOME).iterdir()} == {"lives", "failed"}
    assert lives.exists()
    assert failed.exists()
    assert hang.exists()


@pytest.mark.parametrize("command", ["diagnose", "report"])
def test_what_somebody_has_read_may_go(command: str, shm: Path, tmp_path: Path) -> None:
    failed = entry(shm, "failed", mark=ALARM)
    options = ["-o", str(tmp_path / "page.html")] if command == "report" else []

    main([command, str(failed), "--unread", *options])
    assert states() == {"failed": State.ALARM}
    main([command, str(failed), *options])

    assert states() == {"failed": State.READ}
    os.utime(failed / ALARM, (time.time() + 60,) * 2)  # and then there is another one
    assert states() == {"failed": State.ALARM}


def test_nothing_is_marked_elsewhere(shm: Path, tmp_path: Path) -> None:
    ring = record(tmp_path / "rings")
    before = sorted(ring.parent.iterdir())

    main(["diagnose", str(ring.parent)])

    assert sorted(ring.parent.iterdir()) == before


def test_prune_by_age(shm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = entry(shm, "old", age=8 * 86_400)
    new = entry(shm, "new", age=3600)
    alarm = entry(shm, "alarm", age=8 * 86_400, mark=ALARM)

    assert main(["prune", "--older", "7d", "--dry-run"]) == 0
    assert "would go" in capsys.readouterr().out
    assert old.exists()
    assert main(["prune", "--older", "7d", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert not old.exists()
    assert {Path(one["path"]).name: one["why"] for one in document["entries"]} == {
        "old": "",
        "alarm": "alarm, not read",
        "new": "not old enough",
    }
    assert document["freed"] > 100_000
    assert main(["prune", "--older", "7d", "--alarms"]) == 0
    assert not alarm.exists()
    assert new.exists()


@pytest.mark.parametrize("words", [["--alarms"], ["--older", "7"], ["--older", "-1d"]])
def test_wrong_ages_remove_nothing(words: list[str], shm: Path) -> None:
    folder = entry(shm, "ended")

    with contextlib.suppress(SystemExit):
        assert main(["prune", *words]) == 2

    assert folder.exists()


def test_prune_leaves_no_empty_directory(shm: Path) -> None:
    entry(shm, "ended")
    (shm.parent / "tmp" / HOME / "hangs").mkdir(parents=True, mode=0o700)
    (shm / HOME / "empty").mkdir()

    prune()

    assert [*shm.iterdir(), *(shm.parent / "tmp").iterdir()] == []


@pytest.mark.parametrize("where", ["home", "entry", "inside"])
def test_links_are_not_followed(where: str, shm: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious" / HOME / "run"
    record(precious)
    (tmp_path / "precious" / HOME).chmod(0o700)
    names = sorted(path.name for path in precious.iterdir())
    if where == "home":
        (shm / HOME).symlink_to(tmp_path / "precious" / HOME)
    else:
        (shm / HOME).mkdir(mode=0o700)
    if where == "entry":
        (shm / HOME / "run").symlink_to(precious)
    elif where == "inside":
        folder = bundle(shm)
        (folder / "link").symlink_to(precious)
        (folder / ".read").touch()

    found = prune()

    assert [one.removed for one in found] == [True] * (where == "inside")
    assert sorted(path.name for path in precious.iterdir()) == names


def test_other_files_beside_rings_stay(shm: Path) -> None:
    folder = entry(shm, "ended")
    (folder / "notes.txt").write_text("mine")

    (outcome,) = prune()

    assert (outcome.removed, outcome.why) == (False, "directory not empty")
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_another_user_made_stays(shm: Path) -> None:
    folder = entry(shm, "ended")
    os.chown(folder, 12345, 12345)
    try:
        (outcome,) = prune()
        assert not outcome.removed
        os.chown(shm / HOME, 12345, 12345)
        assert entries() == []
        assert len(list(folder.iterdir())) == 1
    finally:  # as pytest removes nothing of others
        for path in (shm / HOME, folder):
            os.chown(path, os.geteuid(), os.getegid())


def test_the_oldest_healthy_go_first_when_there_is_too_much(
    shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry(shm, "alarm", age=900, mark=ALARM)
    entry(shm, "read", age=800, mark=ALARM)
    mark(shm / HOME / "read", ".read")
    for age in (500, 400, 300):
        entry(shm, f"healthy-{age}", age=age)
    monkeypatch.setenv("NCCLSCOPE_STORE_MB", "1")
    said: list[str] = []

    keep_within_limit(said.append)

    assert set(states()) == {"alarm", "read", "healthy-300"}
    assert said == []
    entry(shm, "lives", age=900, living=True, mark=HEALTHY)
    monkeypatch.setenv("NCCLSCOPE_STORE_MB", "0")
    keep_within_limit(said.append)
    assert set(states()) == {"alarm", "lives"}
    (line,) = said
    assert "ncclscope prune --alarms" in line


def enter(place: DefaultPlaces, shm: Path, name: str = "launcher-1") -> Path:
    def make() -> Path:
        folder = shm / HOME / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    return place.enter(make, pytest.fail)


def test_a_healthy_run_leaves_nothing(shm: Path) -> None:
    with DefaultPlaces() as place:
        ring = record(enter(place, shm))
        for suffix in (".words", ".ring.moved"):
            ring.with_suffix(suffix).touch()
        (ring.parent / ".explained").touch()
        assert states() == {"launcher-1": State.IN_USE}
        assert place.settle("r", alarm=False, keep=False).startswith("removed")

    assert [*shm.iterdir(), *(shm.parent / "tmp").iterdir()] == []


def test_a_run_without_rings_leaves_nothing(shm: Path) -> None:
    with DefaultPlaces() as place:
        enter(place, shm)

    assert [*shm.iterdir(), *(shm.parent / "tmp").iterdir()] == []


@pytest.mark.parametrize(
    ("about", "state"),
    [
        ({"alarm": True, "keep": False}, State.ALARM),
        ({"alarm": False, "keep": True}, State.HEALTHY),
    ],
)
def test_a_run_with_an_alarm_or_keep_stays(about: dict[str, bool], state: State, shm: Path) -> None:
    with DefaultPlaces() as place:
        record(enter(place, shm))
        assert place.settle("r", **about) == ""

    assert states() == {"launcher-1": state}


def test_an_alarm_of_watch_is_one_though_the_run_ended_well(shm: Path) -> None:
    with DefaultPlaces() as place:
        mark(record(enter(place, shm)).parent, ALARM)
        assert place.settle("r", alarm=False, keep=False) == ""

    assert states() == {"launcher-1": State.ALARM}


def test_rings_of_living_processes_and_of_other_runs_stay(shm: Path) -> None:
    with DefaultPlaces() as place:
        folder = enter(place, shm)
        gone = record(folder)
        stay = [record(folder, living=True), record(folder, run="another")]
        assert place.settle("r", alarm=False, keep=False) == ""

    assert not gone.exists()
    assert all(path.exists() for path in stay)


@pytest.mark.parametrize("first", ["well", "failed", "killed"])
def test_the_last_task_of_a_launcher_removes_the_rings_of_all(first: str, shm: Path) -> None:
    with DefaultPlaces() as last:
        with DefaultPlaces() as other:
            folder = enter(other, shm)
            assert enter(last, shm) == folder
            rings = [record(folder), record(folder)]
            told = other.settle("r", alarm=first == "failed", keep=False)
            assert ("the last task here removes them" in told) == (first != "failed")
            assert all(ring.exists() for ring in rings)
        if first == "killed":
            (folder / f"{RUNNING}0").touch()
        last.settle("r", alarm=False, keep=False)

    assert folder.exists() == (first != "well")


def test_a_directory_that_the_last_task_removes_is_made_again(shm: Path) -> None:
    folder = shm / HOME / "launcher-1"
    attempts: list[Callable[[], None]] = [folder.rmdir, lambda: None]

    def make() -> Path:
        folder.mkdir(mode=0o700, exist_ok=True)
        attempts.pop(0)()
        return folder

    with DefaultPlaces() as place:
        assert place.enter(make, pytest.fail) == folder
        assert states() == {"launcher-1": State.IN_USE}
    assert attempts == []


def test_a_home_stays_while_another_run_uses_it(shm: Path) -> None:
    with DefaultPlaces():
        with DefaultPlaces():
            pass
        assert (shm / HOME).is_dir()
    assert not (shm / HOME).exists()


def test_a_stopped_process_that_removes_a_home_delays_no_run(shm: Path) -> None:
    (shm / HOME).mkdir(mode=0o700)
    folder = os.open(shm / HOME, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    began = time.monotonic()

    with DefaultPlaces() as place:
        record(enter(place, shm))
        assert place.settle("r", alarm=False, keep=False).startswith("removed")

    assert time.monotonic() - began < 10
    os.close(folder)


def test_where_nothing_can_be_locked_the_rings_stay(
    shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DefaultPlaces() as place:
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", refuse)
            ring = record(enter(place, shm))
        assert place.settle("r", alarm=False, keep=False) == ""

    assert ring.exists()


def refuse(*_arguments: object) -> None:
    raise OSError(errno.ENOLCK, "no locks available")
