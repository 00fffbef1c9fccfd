"""The guard in a directory that others may write: it believes no one else, and survives them."""

from __future__ import annotations

import errno
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclscope.errors import DivergenceError
from ncclscope.guard import cursors as guard_words
from ncclscope.tracing import warning
from ncclscope.tracing.tracer import Comm, Tracer
from tests.support.rings import post, tracer_in

KEY = "key of tp:0"
STRANGER = 12345
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture(autouse=True)
def _guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCLSCOPE_GUARD", "raise")
    monkeypatch.setattr(warning, "_warned", set())


def rank_in(rings: Path, rank: int) -> tuple[Tracer, Comm]:
    tracer = tracer_in(rings, rank=rank, world_size=2)
    return tracer, tracer.communicator(KEY, "tp:0", range(2))


def beside(tracer: Tracer) -> Path:
    return tracer.ring.path.with_suffix(".words")


def in_child(action: Callable[[], object]) -> int:
    """Run a function in a fork; return its exit status, or minus a signal."""
    child = os.fork()
    if not child:
        signal.alarm(30)
        try:
            action()
        except DivergenceError:
            os._exit(3)
        except BaseException:
            os._exit(4)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_truncated_cursor_file_of_a_peer_kills_nobody(rings: Path) -> None:
    peer, theirs = rank_in(rings, 0)
    post(peer, theirs, 1)

    def go_on() -> None:
        own, comm = rank_in(rings, 1)
        post(own, comm, 1)
        os.truncate(beside(peer), 0)
        os.truncate(beside(own), 0)
        for number in range(2, 2000):
            post(own, comm, number)

    assert in_child(go_on) == 0


def test_a_ring_of_a_peer_that_is_cut_short_kills_nobody(rings: Path) -> None:
    peer, theirs = rank_in(rings, 0)
    post(peer, theirs, 1)

    def go_on() -> None:
        own, comm = rank_in(rings, 1)
        os.truncate(peer.ring.path, 0)
        post(own, comm, 2)

    assert in_child(go_on) == 0


@root_only
def test_calls_of_another_user_are_not_believed(rings: Path) -> None:
    rings.chmod(0o777)
    reading, writing = os.pipe()
    stop, end = os.pipe()
    child = os.fork()
    if not child:
        os.close(end)  # so that only the parent holds it
        os.setgroups([])
        os.setgid(STRANGER)
        os.setuid(STRANGER)
        forger, theirs = rank_in(rings, 0)
        post(forger, theirs, 1)
        os.write(writing, b"x")
        os.read(stop, 1)  # until the other end is closed
        os._exit(0)
    os.close(writing)
    os.close(stop)
    try:
        assert os.read(reading, 1) == b"x"
        own, comm = rank_in(rings, 1)
        for number in (2, 3):
            post(own, comm, number)
    finally:
        os.close(end)
        os.close(reading)
        os.waitpid(child, 0)

    assert own._guard is not None
    assert own._guard.active


@root_only
@pytest.mark.parametrize("what", ["words", "ring"])
def test_files_that_belong_to_another_user_are_not_believed(rings: Path, what: str) -> None:
    peer, theirs = rank_in(rings, 0)
    post(peer, theirs, 1)
    os.chown(peer.ring.path.with_suffix(f".{what}"), STRANGER, STRANGER)

    own, comm = rank_in(rings, 1)
    post(own, comm, 2)


@pytest.mark.parametrize("what", ["words", "ring"])
@pytest.mark.parametrize("mode", [0o660, 0o606])
def test_files_that_others_may_write_are_not_believed(rings: Path, what: str, mode: int) -> None:
    peer, theirs = rank_in(rings, 0)
    post(peer, theirs, 1)
    peer.ring.path.with_suffix(f".{what}").chmod(mode)

    own, comm = rank_in(rings, 1)
    post(own, comm, 2)


@pytest.mark.parametrize("what", ["words", "ring"])
def test_links_are_not_followed(rings: Path, what: str) -> None:
    peer, theirs = rank_in(rings, 0)
    post(peer, theirs, 1)
    file = peer.ring.path.with_suffix(f".{what}")
    file.symlink_to(file.rename(rings / "elsewhere"))

    own, comm = rank_in(rings, 1)
    post(own, comm, 2)


def test_a_descriptor_that_was_closed_and_used_again_is_not_taken_for_words(rings: Path) -> None:
    peer, theirs = rank_in(rings, 0)
    post(peer, theirs, 1)
    assert peer._guard is not None
    number = peer._guard._file._descriptor  # type: ignore[union-attr]
    kept, reader, writer = os.dup(number), *os.pipe()
    os.dup2(reader, number)

    own, comm = rank_in(rings, 1)
    post(own, comm, 2)

    os.dup2(kept, number)
    for descriptor in (kept, reader, writer):
        os.close(descriptor)
    late, comm = rank_in(rings, 1)
    with pytest.raises(DivergenceError):  # and it is for that reason alone
        post(late, comm, 2)


def test_memory_that_could_be_cut_short_is_not_mapped(
    rings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_words, "_SEALS", 0)
    peer, theirs = rank_in(rings, 0)
    post(peer, theirs, 1)

    own, comm = rank_in(rings, 1)
    post(own, comm, 2)


def test_without_such_memory_there_is_no_guard(
    rings: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with caplog.at_level(logging.WARNING, "ncclscope"):
        own, comm = rank_in(rings, 1)
        post(own, comm, 2)

    assert own._guard is None
    assert comm.channel.seq == 1
    assert [record.message for record in caplog.records] == [
        "the guard is off in this process: [Errno 1] Operation not permitted"
    ]
    assert not list(rings.glob("*.words"))


def test_a_ring_that_was_put_in_the_place_of_another_is_not_believed(rings: Path) -> None:
    peer, theirs = rank_in(rings, 0)
    post(peer, theirs, 1)
    other, others = rank_in(rings, 0)
    post(other, others, 3)
    other.ring.path.rename(peer.ring.path)
    beside(other).unlink()

    own, comm = rank_in(rings, 1)
    post(own, comm, 2)


def test_files_of_the_same_user_still_are(rings: Path) -> None:
    peer, theirs = rank_in(rings, 0)
    post(peer, theirs, 1)

    own, comm = rank_in(rings, 1)
    with pytest.raises(DivergenceError):
        post(own, comm, 2)
