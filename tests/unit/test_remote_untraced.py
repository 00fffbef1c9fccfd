"""Processes without a record on other nodes count as those in one place: not recorded, not dead."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclscope import Run, Tracer, diagnose, open_run, procfs
from ncclscope.collect.archive import UnpackedArchive
from ncclscope.collect.archive import unpack as unpack_archive
from ncclscope.collect.node import Wanted, write_node
from ncclscope.collect.programs import ProgramNode
from ncclscope.engine.verdict import Verdict
from ncclscope.errors import NcclscopeError, RingError
from ncclscope.remote.fleet import Fleet
from ncclscope.remote.program_client import ProgramClient
from ncclscope.remote.rings import RemoteRings
from ncclscope.remote.run import open_remote_run
from ncclscope.remote.spelling import pack, unpack
from ncclscope.ring import tombstone
from ncclscope.tracing import identity
from ncclscope.tracing.tracer import Comm
from ncclscope.watch.watch import Watcher
from tests.support.nodes import environment
from tests.support.remote_nodes import LocalClient
from tests.support.rings import tracer_in

SIZE = 4
WHY = "there is no room"


def untraced(directory: Path, rank: int, pid: int = 0, **about: Any) -> Path:
    """Leave the file of a process that cannot be recorded: one that lives, or ended without pid."""
    known = set(directory.glob("*.untraced"))
    process = {"pid": pid or 1000 + rank, "start_ticks": procfs.start_ticks(pid) if pid else 1}
    described = {**identity.describe_process(), "rank": rank, "world_size": SIZE}
    with (
        pytest.raises(RingError),
        tombstone.until_recorded(directory, {**described, **process, **about}),
    ):
        raise RingError(WHY)
    (path,) = set(directory.glob("*.untraced")) - known
    return path


class Job:
    """Two ranks on each of two nodes, of which some are recorded and wait in a call."""

    def __init__(self, directory: Path, recorded: tuple[int, ...]) -> None:
        self.directory = directory
        self.directories = {name: directory / name for name in ("a", "b")}
        for path in self.directories.values():
            path.mkdir()
        self.client = LocalClient(self.directories)
        self.now = 100.0
        self.tracers: list[Tracer] = []
        self.comms: list[Comm] = []
        for rank in recorded:
            tracer = tracer_in(self.node_of(rank), rank=rank, world_size=SIZE)
            comm = tracer.communicator("K", "tp:0", range(SIZE), "nccl")
            self.tracers.append(tracer)
            self.comms.append(comm)
            for step in range(9):
                call = tracer.record(comm, "all_reduce", shape=(4,), dtype="float32")
                if step < 8:
                    tracer.complete(call)

    def node_of(self, rank: int) -> Path:
        return self.directories["ab"[rank // 2]]

    def scan_again(self) -> None:
        """Let the nodes look for new files at once."""
        for reporter in self.client._reporters:
            reporter._rings._scanned_at = -1.0

    def watch(self, client: Any = None) -> tuple[Watcher, Watcher]:
        """Return a watcher of the directory, and one of the nodes."""
        rings = RemoteRings(client or self.client)
        clock = lambda: self.now  # noqa: E731
        return (
            Watcher(self.directory, clock=clock),
            Watcher(Path("nodes"), clock=clock, rings=rings),
        )


@contextlib.contextmanager
def job_of(directory: Path, *recorded: int) -> Iterator[Job]:
    job = Job(directory, recorded)
    yield job
    for tracer in job.tracers:
        tracer.close()


@pytest.fixture
def job(rings: Path) -> Iterator[Job]:
    """Ranks 0 to 2 are recorded and wait for rank 3."""
    with job_of(rings, 0, 1, 2) as found:
        yield found


def said(verdict: Verdict | None) -> dict[str, Any]:
    """Return what a verdict says, without what depends on the moment."""
    assert verdict is not None
    document = json.loads(json.dumps(verdict.to_dict()))
    cause = document["verdict"] or {}
    names = ("kind", "diverging_ranks", "candidate_ranks", "confidence", "seq")
    return {
        **{name: document[name] for name in ("status", "ranks", "coverage", "notes")},
        "verdict": {name: cause.get(name) for name in names},
    }


def verdict_on(run: Run) -> dict[str, Any]:
    return said(diagnose(run, stall_seconds=0.0, live_stall_seconds=0.0))


def ranks_of(found: dict[str, Any]) -> list[int]:
    return [one["rank"] for one in found["ranks"].get("untraced", ())]


@pytest.mark.parametrize(
    ("recorded", "lost"), [((0, 1, 2), (3,)), ((0, 3), (1, 2)), ((), (0, 1, 2, 3))]
)
@pytest.mark.parametrize("lives", [False, True])
def test_a_diagnosis_of_nodes_equals_that_of_one_place(
    rings: Path, recorded: tuple[int, ...], lost: tuple[int, ...], lives: bool
) -> None:
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(job_of(rings, *recorded))
        for rank in lost:
            pid = 0
            if lives:
                process = stack.enter_context(subprocess.Popen(["sleep", "1000"]))
                stack.callback(process.kill)
                pid = process.pid
            untraced(job.node_of(rank), rank, pid)

        local = verdict_on(open_run(rings))
        run = open_remote_run(Fleet(job.client))
        remote = verdict_on(run)

    assert remote == local
    assert ranks_of(remote) == [*lost]
    assert not {*lost} & {*(remote["verdict"]["diverging_ranks"] or ())}
    assert remote["verdict"]["kind"] != "dead_rank"
    assert {one.details["untraced"] for one in run.untraced} == {WHY}
    assert {one.alive for one in run.untraced} == {lives}
    assert all(Path(one.source).parent in job.directories.values() for one in run.untraced)


def test_what_a_diagnosis_asks_does_not_grow(job: Job) -> None:
    traffic = []
    for _ in range(2):
        fleet = Fleet(job.client)
        verdict_on(open_remote_run(fleet))
        traffic.append((fleet.traffic.rounds, fleet.traffic.questions))
        untraced(job.node_of(3), 3)
    assert traffic[1] <= traffic[0]


def test_a_job_without_such_processes_reports_nothing_of_them(job: Job) -> None:
    reports = [unpack(one) for _ in range(2) for one in job.client.reports().values()]  # type: ignore[arg-type]
    assert [report for report in reports if "untraced" in report] == []


def test_they_are_reported_when_they_change(job: Job) -> None:
    def named() -> list[int | None]:
        job.scan_again()
        reports = [unpack(one) for one in job.client.reports().values()]  # type: ignore[arg-type]
        return [len(one["untraced"]) if "untraced" in one else None for one in reports]

    path = untraced(job.node_of(3), 3)
    assert named() == [None, 1]
    assert named() == [None, None]
    untraced(job.node_of(0), 0, run="later")
    assert named() == [1, None]
    path.unlink()
    assert named() == [None, 0]


def polled(job: Job, *watchers: Watcher) -> list[dict[str, Any]]:
    """Let time pass in which nothing moves, and return what the watchers say then."""
    job.scan_again()
    for _ in range(3):
        job.now += 6.0
        polls = [watcher.poll() for watcher in watchers]
    return [{**said(poll.verdict), "in_trouble": poll.in_trouble} for poll in polls]


def test_a_watch_of_nodes_equals_that_of_a_directory(job: Job) -> None:
    untraced(job.node_of(3), 3)

    local, remote = polled(job, *job.watch())

    assert remote == local
    assert ranks_of(remote) == [3]
    assert (remote["status"], remote["verdict"]["kind"]) != ("hung", "dead_rank")
    assert remote["verdict"]["diverging_ranks"] == []


def test_a_process_that_says_so_while_its_job_is_watched(job: Job) -> None:
    watchers = job.watch()
    before = polled(job, *watchers)
    assert before[0] == before[1]
    assert before[1]["verdict"]["diverging_ranks"] == [3]
    path = untraced(job.node_of(3), 3)

    local, remote = polled(job, *watchers)

    assert remote == local
    assert ranks_of(remote) == [3]
    assert remote["verdict"]["diverging_ranks"] == []
    path.unlink()
    local, remote = polled(job, *watchers)
    assert remote == local
    assert ranks_of(remote) == []


def test_a_node_that_begins_anew_names_them_once(job: Job) -> None:
    path = untraced(job.node_of(3), 3)
    _, watcher = job.watch()
    assert ranks_of(polled(job, watcher)[0]) == [3]
    job.client.restart(1)
    assert ranks_of(polled(job, watcher)[0]) == [3]
    path.unlink()
    job.client.restart(1)
    assert ranks_of(polled(job, watcher)[0]) == []


def test_a_lost_report_makes_nobody_missing(job: Job) -> None:
    _, watcher = job.watch()
    assert polled(job, watcher)[0]["verdict"]["diverging_ranks"] == [3]
    untraced(job.node_of(3), 3)
    job.scan_again()
    assert "untraced" in unpack(job.client.reports()[1])  # type: ignore[arg-type]

    job.tracers[0].record(job.comms[0], "all_reduce", shape=(4,), dtype="float32")
    (found,) = polled(job, watcher)

    assert ranks_of(found) == [3]
    assert found["verdict"]["diverging_ranks"] == []


def test_the_end_of_a_watched_job(job: Job) -> None:
    untraced(job.node_of(3), 3)
    local, remote = job.watch()
    polled(job, local, remote)
    for tracer in job.tracers:
        tracer.close()

    found = polled(job, local, remote)

    assert found[0] == found[1]
    assert said(local.last_word()) == said(remote.last_word())
    assert ranks_of(said(remote.last_word())) == [3]


# --- other versions, and hosts that are hostile ----------------------------------------------


class Altered(LocalClient):
    """Nodes whose messages are changed on their way."""

    change: Callable[[dict[str, Any]], object] = staticmethod(lambda message: None)

    def _changed(self, found: dict[int, bytes | str]) -> dict[int, bytes | str]:
        messages = {node: unpack(data) for node, data in found.items()}  # type: ignore[arg-type]
        self.change(messages[1])
        return {node: pack(message) for node, message in messages.items()}

    def summaries(self) -> dict[int, bytes | str]:
        return self._changed(super().summaries())

    def reports(self) -> dict[int, bytes | str]:
        return self._changed(super().reports())


@pytest.fixture
def altered(job: Job) -> Altered:
    untraced(job.node_of(3), 3)
    job.client = Altered(job.directories)
    return job.client


def test_a_node_of_an_older_version_names_none(job: Job, altered: Altered) -> None:
    altered.change = lambda message: message.pop("untraced", None)

    assert open_remote_run(Fleet(altered)).untraced == ()
    assert len(open_remote_run(Fleet(altered)).ranks) == 3
    _, watcher = job.watch()
    (found,) = polled(job, watcher)
    assert (found["ranks"]["read"], ranks_of(found)) == (3, [])
    assert not watcher.notes


def is_refused(job: Job, altered: Altered) -> bool:
    """Return whether the messages of a node cost it its ranks, and nobody else."""
    with contextlib.suppress(NcclscopeError):
        open_remote_run(Fleet(altered))
        return False
    _, watcher = job.watch()
    for node in range(2):
        job.client.restart(node)
    poll = watcher.poll()
    assert {cursor.rank for cursor in poll.ranks} >= {0, 1}
    return poll.silent == {"b": "it sent an invalid report"} and not watcher._rings.untraced


def test_a_field_of_another_type_costs_only_its_node(job: Job, altered: Altered) -> None:
    accepted = []
    (row,) = unpack(altered.summaries()[1])["untraced"]  # type: ignore[arg-type]
    for place in range(len(row)):
        for wrong in ({"a": 1}, 0.5, [[]], True, None):
            changed = [*row[:place], wrong, *row[place + 1 :]]
            altered.change = lambda message, changed=changed: message.update(untraced=[changed])
            if not is_refused(job, altered):
                accepted.append((place, wrong))
    # Times and further numbers may be absent, and whether it lives may be unknown.
    optional = {4, 5, 6, 10, 11, 12, 13}
    assert {*accepted} == {(6, True), *((place, None) for place in optional)}


@pytest.mark.parametrize("rows", [None, 3, "x", {"a": 1}, [None], ["x" * 16], [[]], [[0] * 99]])
def test_rows_that_are_none(job: Job, altered: Altered, rows: Any) -> None:
    altered.change = lambda message: message.update(untraced=rows)

    assert is_refused(job, altered)


def test_more_processes_than_a_job_has(
    job: Job, altered: Altered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ncclscope.remote.spelling.MAX_RANKS", 50)
    altered.change = lambda message: message.update(untraced=51 * message.get("untraced", []))

    assert is_refused(job, altered)


@pytest.mark.parametrize("number", [-1, -(1 << 40), 1 << 18, 1 << 62])
def test_a_number_that_is_no_rank(job: Job, altered: Altered, number: int) -> None:
    altered.change = lambda message: message["untraced"][0].__setitem__(0, number)

    run = open_remote_run(Fleet(altered))

    assert (run.expected, [one.rank for one in run.untraced]) == (SIZE, [-1])


def test_texts_are_escaped_and_cut(job: Job, altered: Altered) -> None:
    text = "\x1b[2J\n\u202e##[error]" + 1_000_000 * "x"

    def change(message: dict[str, Any]) -> None:
        row = message["untraced"][0]
        row[:] = [text if isinstance(field, str) else field for field in row]
        row[14] = [*range(5000)]

    altered.change = change

    run = open_remote_run(Fleet(altered))

    (one,) = run.untraced
    texts = (one.host, one.source, *(v for v in one.details.values() if isinstance(v, str)))
    assert all(field.isprintable() and "##[" not in field for field in texts)
    assert len(one.host) <= tombstone.PAGE
    assert sum(map(len, texts)) < 100_000
    assert len(one.details["ancestors"]) <= 64  # type: ignore[arg-type]
    assert diagnose(run).summary.isprintable()


def test_a_ring_on_a_node_cannot_claim_to_be_of_such_a_process(job: Job, altered: Altered) -> None:
    altered.change = lambda message: [
        row["details"].update(untraced="no") for row in message["ranks"]
    ]

    run = open_remote_run(Fleet(altered))

    assert [one.rank for one in run.untraced] == [3]
    assert [rank.rank for rank in run.ranks] == [0, 1, 2]


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"ncclscope_untraced": 99}', bytes(5000)])
@pytest.mark.parametrize("name", ["x.untraced", "x.ring"])
def test_a_file_that_cannot_be_read_may_be_that_of_the_missing_rank(
    job: Job, name: str, content: bytes
) -> None:
    (job.node_of(3) / name).write_bytes(content)

    local, remote = open_run(job.directory), open_remote_run(Fleet(job.client))

    assert (remote.untraced, remote.unreadable) == ((), (3,))
    assert len(remote.notes) == 1
    assert verdict_on(remote) == verdict_on(local)
    assert verdict_on(remote)["verdict"]["diverging_ranks"] == []


@pytest.mark.parametrize("kind", ["fifo", "link", "gigantic"])
@pytest.mark.parametrize("name", ["x.untraced", "x.ring"])
def test_what_is_no_file_is_not_waited_for(job: Job, name: str, kind: str) -> None:
    path = job.node_of(3) / name
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "link":
            path.symlink_to(job.directory / "absent")
        case "gigantic":
            path.touch()
            os.truncate(path, 1 << 40)

    local, remote = open_run(job.directory), open_remote_run(Fleet(job.client))

    assert verdict_on(remote) == verdict_on(local)
    assert remote.unreadable == (3,)


def test_hosts_that_share_a_directory_name_a_process_once(rings: Path) -> None:
    with (
        job_of(rings, 0, 1, 2) as job,
        subprocess.Popen(["sleep", "1000"]) as process,
    ):
        # It came long before the others, so that it counts only since it lives.
        untraced(job.node_of(3), 3, process.pid, started_ns=1)
        client = Altered({"a": rings, "b": rings})

        def of_another_host(message: dict[str, Any]) -> None:
            message["untraced"][0][5:7] = [1, None]

        client.change = of_another_host
        (one,) = open_remote_run(Fleet(client)).untraced
        process.kill()
    assert (one.rank, one.alive) == (3, True)


@pytest.mark.parametrize("lives", [False, True])
def test_collected_files_say_the_same(job: Job, tmp_path: Path, lives: bool) -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        path = untraced(job.node_of(3), 3, process.pid if lives else 0)
        target = io.BytesIO()
        write_node(target, Wanted((str(job.directory),), stacks=False))
        local = verdict_on(open_run(job.directory))
        process.kill()
    target.seek(0)
    unpack_archive(target.read, tmp_path, UnpackedArchive())

    run = open_run(tmp_path)

    assert [one.alive for one in run.untraced] == [lives]
    assert verdict_on(run) == local
    assert [*tmp_path.rglob(path.name)]


# --- real servers ----------------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_servers_behind_pipes_name_them(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    untraced(job.node_of(3), 3)
    nodes = [
        ProgramNode(
            name, (sys.executable, "-m", "ncclscope", "watch", "--serve", "--", str(directory))
        )
        for name, directory in job.directories.items()
    ]
    with contextlib.closing(ProgramClient(nodes, 60.0)) as client:
        local, remote = polled(job, *job.watch(client))
        assert remote == local
        assert ranks_of(remote) == [3]
        assert verdict_on(open_remote_run(Fleet(client))) == verdict_on(open_run(job.directory))
