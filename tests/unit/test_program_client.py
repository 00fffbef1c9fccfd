"""Hosts behind programs: real processes, without ssh."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from ncclscope.collect.commands import ssh
from ncclscope.collect.programs import ProgramNode
from ncclscope.remote.fleet import LostNodeError
from ncclscope.remote.frames import GREETING, OK, Frame, spell_frame
from ncclscope.remote.program_client import ProgramClient
from ncclscope.remote.rings import RemoteRings
from ncclscope.remote.spelling import pack, unpack
from ncclscope.tracing.tracer import Comm, Tracer
from ncclscope.watch.poll import Poll
from ncclscope.watch.watch import Watcher
from tests.support.hosts import until
from tests.support.nodes import environment

pytestmark = pytest.mark.timeout(120)

SIZE = 4
FAST: Mapping[str, Any] = {"pauses": (0.05, 0.2)}


def server(directory: Path, pid_file: Path | None = None) -> list[str]:
    """Return the command of a server; with a file, it writes its pid there first."""
    command = [sys.executable, "-m", "ncclscope", "watch", "--serve", "--", str(directory)]
    if pid_file is None:
        return command
    return ["sh", "-c", f"echo $$ > {shlex.quote(str(pid_file))}; exec {shlex.join(command)}"]


def hostile(*pieces: bytes, then: str = "") -> list[str]:
    """Return a command that prints some bytes."""
    text = b"".join(pieces)
    program = f"import os, time; os.write(1, {text!r}); {then}"
    return [sys.executable, "-I", "-S", "-c", program]


@contextlib.contextmanager
def client_of(
    programs: Mapping[str, Sequence[str]], timeout: float = 60.0, **more: Any
) -> Iterator[ProgramClient]:
    nodes = [ProgramNode(name, tuple(argv)) for name, argv in programs.items()]
    with contextlib.closing(ProgramClient(nodes, timeout, **more)) as client:
        yield client


@pytest.fixture(autouse=True)
def _sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    monkeypatch.delenv("NCCLSCOPE_DIR", raising=False)


class Job:
    """Two ranks in each of two directories."""

    def __init__(self, directory: Path) -> None:
        self.directories = {name: directory / name for name in ("a", "b")}
        for path in self.directories.values():
            path.mkdir()
        self.ranks: list[tuple[Tracer, Comm]] = []
        for rank in range(SIZE):
            where = self.directories["ab"[rank // 2]]
            tracer = Tracer(where, rank=rank, world_size=SIZE, heartbeat=False)
            self.ranks.append((tracer, tracer.communicator("K", "tp:0", range(SIZE), "nccl")))

    def post(self, *ranks: int, op: str = "all_reduce", count: int = 1) -> None:
        for rank in ranks or range(SIZE):
            tracer, comm = self.ranks[rank]
            for _ in range(count):
                tracer.record(comm, op, shape=(4,), dtype="float32")


@pytest.fixture
def job(rings: Path) -> Iterator[Job]:
    found = Job(rings)
    found.post(count=5)
    yield found
    for tracer, _ in found.ranks:
        tracer.close()


def poll_until(watcher: Watcher, holds: Callable[[Poll], bool], what: str) -> Poll:
    polls: list[Poll] = []

    def holds_now() -> bool:
        polls.append(watcher.poll())
        return holds(polls[-1])

    until(holds_now, what, 60)
    return polls[-1]


def test_a_client_asks_all_that_a_watch_needs(job: Job) -> None:
    programs = {name: server(path) for name, path in job.directories.items()}
    with client_of(programs) as client:
        reports = [unpack(data) for data in client.reports().values()]  # type: ignore[arg-type]
        assert [[row[0][1] for row in report["rows"]] for report in reports] == [[0, 1], [2, 3]]
        assert [report["number"] for report in reports] == [0, 0]
        path = reports[1]["rows"][0][0][0]
        assert (
            unpack(client.ask_reporters("hashes", {1: pack([[path, "K", [5, 6]]])})[1])[0][1]
            is None
        )
        assert (
            len(unpack(client.ask_reporters("newest", {1: pack([path, 3, "K"])})[1])["keys"]) == 3
        )
        with pytest.raises(LostNodeError, match="b: the node has started anew"):
            client.ask({1: pack([["newest", 0, "K", 1]])})
        assert [len(unpack(one)["ranks"]) for one in client.summaries().values()] == [2, 2]  # type: ignore[arg-type]
        assert set(client.ask({1: pack([["calls", 0, "K", 1, 3]])})) == {1}


def test_a_divergence_between_hosts_is_found(job: Job) -> None:
    with client_of({name: server(path) for name, path in job.directories.items()}) as client:
        watcher = Watcher(Path("nodes"), rings=RemoteRings(client))
        poll = watcher.poll()
        assert (poll.status, len(poll.ranks), dict(poll.silent)) == ("ok", SIZE, {})
        job.post(0, 1, 2)
        job.post(3, op="all_gather")
        poll = poll_until(watcher, lambda poll: poll.in_trouble, "a divergence")
    assert poll.verdict is not None
    assert poll.verdict.cause is not None
    assert (poll.verdict.cause.kind, poll.verdict.cause.diverging_ranks) == ("op_mismatch", (3,))


GARBAGE = spell_frame(Frame(OK, 1, b"junk"))


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (hostile(), "it sent nothing"),
        (hostile(b"Welcome to node-b\n"), "it sends 'Welcome to node-b', and no message follows"),
        (["yes"], "it sends 'y', and no message follows"),
        (
            hostile(GREETING, b"Bye\n", then="time.sleep(99)"),
            "it sends 'Bye' in place of a message",
        ),
        (hostile(GREETING, GARBAGE[:7]), "its answer broke off in a header"),
        (hostile(GREETING, GARBAGE[:-1]), "its answer broke off after 3 of 4 bytes"),
        (hostile(GREETING), "it has ended"),
        (
            hostile(GREETING, GARBAGE[:9], b"\xff" * 4, then="time.sleep(99)"),
            "it announces a message of 4,294,967,295 bytes",
        ),
        (
            hostile(GREETING, spell_frame(Frame(OK, 7, b"")), then="time.sleep(99)"),
            "it answers what it was not asked",
        ),
        (["sh", "-c", "echo 'no route to \x1b[1mb' >&2; exit 255"], r"no route to \x1b[1mb"),
        (["sh", "-c", "exit 3"], "sh exited with status 3"),
        (["/nowhere/ssh"], "/nowhere/ssh cannot be run: No such file or directory"),
        (["sleep", "99"], "no answer for 0.5 s"),
        (hostile(GREETING, then="time.sleep(99)"), "no answer for 3 s"),
        (
            [sys.executable, "-m", "ncclscope", "watch", "--serve"],
            "ncclscope: no directory to watch; name one, or set NCCLSCOPE_DIR on the host",
        ),
    ],
)
def test_a_host_that_sends_no_messages_is_one_reason(
    job: Job, program: Sequence[str], reason: str
) -> None:
    start = 0.5 if "0.5" in reason else 60.0
    timeout = 3.0 if "3 s" in reason else 60.0
    hosts = {"a": server(job.directories["a"]), "b": program}
    # The good host needs a second to start.
    with (
        client_of(hosts, timeout, start=start)
        if start > 1
        else client_of({"b": program}, timeout, start=start) as client
    ):
        number = len(client.names) - 1
        found = dict(client.reports())
        while found[number] == "no answer yet":
            found = dict(client.reports())
        assert found[number] == reason
        if number:
            assert isinstance(found[0], bytes) or isinstance(client.reports()[0], bytes)


def test_a_flood_of_answers_is_refused() -> None:
    frame = spell_frame(Frame(OK, 1, b"x" * 1000))
    flood = hostile(GREETING, then=f"[0 for _ in iter(lambda: os.write(1, {frame!r}), 0)]")
    with client_of({"a": flood}) as client:
        first = client.reports()[0]  # the first of them may have come alone
        reason = client.reports()[0] if isinstance(first, bytes) else first
        assert reason == "it answers what it was not asked"


def test_a_banner_is_skipped(job: Job) -> None:
    loud = ["sh", "-c", f"echo Welcome; exec {shlex.join(server(job.directories['a']))}"]
    with client_of({"a": loud}) as client:
        assert isinstance(client.reports()[0], bytes)


def test_a_slow_host_is_waited_for_once_and_its_report_comes_later(
    job: Job, tmp_path: Path
) -> None:
    hosts = {"a": server(job.directories["a"]), "b": server(job.directories["b"], tmp_path / "b")}
    with client_of(hosts, patience=2.0) as client:
        assert set(client.reports()) == {0, 1}
        slow = int((tmp_path / "b").read_text())
        os.kill(slow, signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert set(client.reports()) == {0}
            waited = time.monotonic() - began
            assert waited >= 2.0
            began = time.monotonic()
            for _ in range(3):
                assert set(client.reports()) == {0}
                assert client.ask_reporters("hashes", {1: pack([])}) == {}
            assert time.monotonic() - began < waited
        finally:
            os.kill(slow, signal.SIGCONT)
        found: dict[int, bytes | str] = {}

        def has_come() -> bool:
            found.update(client.reports())
            return 1 in found

        until(has_come, "the late report", 30)
        report = unpack(found[1])  # type: ignore[arg-type]
        assert (report["number"], report["rows"]) == (1, [])


@pytest.mark.slow
def test_a_host_that_does_not_answer_is_lost_and_comes_back(job: Job, tmp_path: Path) -> None:
    hosts = {"a": server(job.directories["a"]), "b": server(job.directories["b"], tmp_path / "b")}
    with client_of(hosts, 5.0, patience=0.2, **FAST) as client:
        rings = RemoteRings(client)
        watcher = Watcher(Path("nodes"), rings=rings)
        poll_until(watcher, lambda poll: len(poll.ranks) == SIZE, "all ranks")
        before = int((tmp_path / "b").read_text())
        os.kill(before, signal.SIGSTOP)
        poll = poll_until(watcher, lambda poll: bool(poll.silent), "the loss of b")
        assert dict(poll.silent) == {"b": "no answer for 5 s"}
        assert watcher.notes == ("b does not report: no answer for 5 s",)
        assert poll.status == "incomplete"
        assert poll.verdict is not None
        assert poll.verdict.run.missing == (2, 3)
        assert "b does not report" in poll.verdict.summary
        job.post(count=3)
        poll = poll_until(watcher, lambda poll: not poll.silent, "the return of b")
        assert int((tmp_path / "b").read_text()) != before
        poll = poll_until(
            watcher, lambda _: not psutil.pid_exists(before), "the end of the first server"
        )
        assert [cursor.rank for cursor in poll.ranks] == [0, 1, 2, 3]
        assert [cursor.comm_cursors["K"].seq for cursor in poll.ranks[2:]] == [8, 8]
        poll = poll_until(watcher, lambda poll: poll.status == "ok", "one verdict on all")
        assert poll.verdict is not None
        assert len(poll.verdict.run.ranks) == SIZE
        assert not poll.verdict.notes


def test_the_pauses_before_connecting_again_grow() -> None:
    now = [100.0]
    starts = []
    with client_of(
        {"a": ["/nowhere/ssh"]}, clock=lambda: now[0], pauses=(1.0, 4.0), patience=0.0
    ) as client:
        client._connect = _noting(client._connect, starts, now, client)  # type: ignore[method-assign]
        for _ in range(140):
            client.reports()
            now[0] += 0.1
    assert [round(b - a) for a, b in itertools.pairwise(starts)] == [1, 2, 4, 4]


def _noting(
    connect: Callable[[], None], starts: list[float], now: list[float], client: ProgramClient
) -> Callable[[], None]:
    def noting() -> None:
        (host,) = client._hosts
        if now[0] >= host.retry_at:
            starts.append(now[0])
        connect()

    return noting


def test_a_server_ends_with_its_stdin(job: Job) -> None:
    with subprocess.Popen(
        server(job.directories["a"]), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert os.read(process.stdout.fileno(), len(GREETING)) == GREETING
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_server_outlives_its_watch(job: Job, tmp_path: Path, number: int) -> None:
    stand_in = tmp_path / "ssh"
    stand_in.write_text(f'#!/bin/sh\necho $$ > "{tmp_path}/$1.pid"\nshift\neval "exec $*"\n')
    stand_in.chmod(0o755)
    options = ("--ssh", "a,b", "--ssh-command", str(stand_in), "--json")
    watch = subprocess.Popen(
        [sys.executable, "-m", "ncclscope", "watch", *options, *map(str, job.directories.values())],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert watch.stdout is not None
    line = watch.stdout.readline()
    servers = [psutil.Process(int((tmp_path / f"{name}.pid").read_text())) for name in "ab"]
    watch.send_signal(number)
    _, errors = watch.communicate(timeout=30)
    assert b"Traceback" not in errors
    assert b'"status"' in line
    gone, alive = psutil.wait_procs(servers, timeout=30)
    assert not alive, gone


def test_closing_ends_every_program(job: Job, tmp_path: Path) -> None:
    hosts = {"a": server(job.directories["a"], tmp_path / "a"), "b": ["sleep", "1000"]}
    before = {process.pid for process in psutil.Process().children()}
    with client_of(hosts, 2.0) as client:
        client.reports()
        assert len({process.pid for process in psutil.Process().children()} - before) == 2
    assert {process.pid for process in psutil.Process().children()} <= before


def test_a_path_is_no_shell_command(rings: Path, tmp_path: Path) -> None:
    path = rings / f"a b; touch {tmp_path.name}; $(touch x) 'y"
    path.mkdir()
    tracer = Tracer(path, rank=0, world_size=1, heartbeat=False)
    (node,) = ssh(["me@node-a"], server(path), "sh -c 'shift; eval \"$1\"' ssh")
    with contextlib.closing(ProgramClient([node], 60.0)) as client:
        report = unpack(client.reports()[0])  # type: ignore[arg-type]
    tracer.close()
    assert len(report["rows"]) == 1
    assert not (Path.cwd() / "x").exists()
