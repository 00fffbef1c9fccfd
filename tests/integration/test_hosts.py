"""A torch job over four hosts, each with a network, processes, a /dev/shm and a clock of its own.

The hosts are namespaces of this machine. Packets between them take 50 ms, and 1 % is lost; the
clock of one host is 2 s ahead, and another's jumps an hour back (:mod:`tests.support.hosts`).

    apt-get install openssh-server iproute2; pytest -m slow tests/integration/test_hosts.py
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.hosts import Host, Hosts, missing, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}"),
]

RINGS = "/dev/shm/rings"
SKEWS = {"node-a": 0.0, "node-b": 2.0, "node-c": 0.0, "node-d": 0.0}
DIVERGING = 2
JUMPED = 3
PROGRAM = """\
import os, sys, time
import torch
import torch.distributed as dist

rank, size, diverging, jumps = map(int, sys.argv[1:])
os.environ.update(MASTER_ADDR="10.77.0.1", MASTER_PORT="29500", GLOO_SOCKET_IFNAME="net0")
dist.init_process_group("gloo", rank=rank, world_size=size)
tensor = torch.ones(4)
for _ in range(10):
    dist.all_reduce(tensor)
if jumps:
    print("calling", time.time(), flush=True)
    while not os.path.exists(sys.path[0] + "/go"):
        time.sleep(0.05)
for _ in range(10):
    dist.all_reduce(tensor)
print("calls done", time.time(), flush=True)
if rank == diverging:
    time.sleep(100000)
work = dist.all_reduce(tensor, async_op=True)
print("posted", flush=True)
work.wait()
"""


def start(hosts: Hosts, *, sleeper: int, jumps: bool = False) -> None:
    """Start a rank on each host; `sleeper` never makes its last call."""
    program = hosts.folder / "program.py"
    program.write_text(PROGRAM)
    traced = (sys.executable, "-m", "ncclscope", "run", "--no-explain", "--dir", RINGS, "--")
    for rank, host in enumerate(hosts):
        arguments = (rank, len(hosts.hosts), sleeper, int(jumps))
        hosts.run(host, *traced, sys.executable, program, *arguments, log=f"rank{rank}.log")


def wait_for(hosts: Hosts, word: str, ranks: set[int]) -> None:
    until(
        lambda: all(word in hosts.said(f"rank{rank}.log") for rank in ranks),
        f"{word!r} in the logs of {sorted(ranks)}",
        240,
    )


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Hosts of a job that hangs: rank 2 sleeps, and the clock of node-d has jumped an hour back."""
    with Hosts(tmp_path_factory.mktemp("hosts"), SKEWS) as hosts:
        start(hosts, sleeper=DIVERGING, jumps=True)
        wait_for(hosts, "calling", set(range(4)))
        hosts["node-d"].set_clock(-3600.0)
        (hosts.folder / "go").touch()
        wait_for(hosts, "calls done", set(range(4)))
        wait_for(hosts, "posted", {0, 1, 3})
        yield hosts


def collect(hosts: Hosts, target: Path, *more: object) -> tuple[int, dict[str, dict[str, Any]]]:
    """Collect from the control host by ssh; return the exit status, and what came of each host."""
    words = ("collect", *hosts.ssh, RINGS, "-o", target, "--json", *more)
    done = hosts.control.ncclscope(*words)
    assert done.stdout, done.stderr
    names = {host.address: host.name for host in hosts}
    nodes = json.loads(done.stdout)["nodes"]
    return done.returncode, {names[node["node"]]: node for node in nodes}


def diagnosed(hosts: Hosts, target: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        hosts.control.ncclscope("diagnose", target, "--json").stdout
    )
    return document


@contextlib.contextmanager
def watching(hosts: Hosts, log: str, *more: object) -> Iterator[Watch]:
    """Watch all hosts from the control host by ssh."""
    words = ("watch", *hosts.ssh, RINGS, "--json", "--interval", "0.2", *more)
    command = (sys.executable, "-m", "ncclscope", *words)
    watch = Watch(hosts, hosts.run(hosts.control, *command, log=log), log)
    try:
        yield watch
    finally:
        # The process that was started only enters the host's namespaces.
        (own,) = psutil.Process(watch.process.pid).children()
        own.terminate()
        assert watch.process.wait(30) == 128 + signal.SIGTERM


class Watch:
    """A running watch, whose lines of JSON and of text go to the same file."""

    def __init__(self, hosts: Hosts, process: subprocess.Popen[bytes], log: str) -> None:
        self.hosts = hosts
        self.process = process
        self.log = log

    @property
    def lines(self) -> list[str]:
        return self.hosts.said(self.log).split("\n")[:-1]  # the last may be half a line

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    def until_document(self, holds: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        def last_holds() -> bool:
            assert self.process.poll() is None, self.lines
            return bool(self.documents) and holds(self.documents[-1])

        until(last_holds, what, 120)
        return self.documents[-1]

    def until_line(self, begins: str) -> None:
        until(
            lambda: any(line.startswith(f"ncclscope: {begins}") for line in self.lines),
            f"a line {begins!r}",
            120,
        )


def test_hosts_have_clocks_of_their_own(hosts: Hosts) -> None:
    """The other tests prove nothing about clocks unless these differ."""
    now = [
        float(hosts.said(f"rank{rank}.log").split("calling ")[1].split()[0]) for rank in range(4)
    ]
    after = [
        float(hosts.said(f"rank{rank}.log").split("calls done ")[1].split()[0]) for rank in range(4)
    ]
    assert 1.0 < after[1] - after[0] < 3.0, after
    assert after[JUMPED] < now[JUMPED] - 3000, (now, after)


def test_the_network_is_slow_and_loses_packets(hosts: Hosts) -> None:
    """A handshake takes a round trip."""
    probe = "import socket, time; t = time.monotonic(); socket.create_connection(('10.77.0.1', 22))"
    done = hosts["node-b"].start(
        sys.executable, "-c", f"{probe}; print(time.monotonic() - t)", log=hosts.folder / "rtt.log"
    )
    assert done.wait(60) == 0
    assert float(hosts.said("rtt.log")) >= 0.1


def test_the_sleeping_rank_is_named_from_all_hosts(hosts: Hosts, tmp_path: Path) -> None:
    deadline, number, document = time.monotonic() + 100, 0, {"status": "unknown"}
    while document["status"] == "unknown" and time.monotonic() < deadline:
        # Ranks that have waited for less than 10 s may only be late.
        number += 1
        status, nodes = collect(hosts, tmp_path / f"hang-{number}")
        assert status == 0, nodes
        assert {name: node["status"] for name, node in nodes.items()} == dict.fromkeys(
            SKEWS, "delivered"
        )
        document = diagnosed(hosts, tmp_path / f"hang-{number}")
    assert document["ranks"] == {"expected": 4, "read": 4, "missing": []}
    assert [row["host"] for row in document["table"]] == list(SKEWS)
    assert document["status"] == "hung"
    assert document["verdict"]["kind"] == "not_joined"
    assert document["verdict"]["diverging_ranks"] == [DIVERGING]
    assert document["verdict"]["seq"] == 21


def test_an_unreachable_host_costs_only_its_own_delivery(hosts: Hosts, tmp_path: Path) -> None:
    lost = hosts["node-b"]
    hosts.cut(lost)
    began = time.monotonic()
    status, nodes = collect(hosts, tmp_path / "without", "--timeout", "60")
    assert time.monotonic() - began < 120
    assert status == 2
    assert {name: node["status"] for name, node in nodes.items() if name != lost.name} == (
        dict.fromkeys(["node-a", "node-c", "node-d"], "delivered")
    )
    assert nodes[lost.name]["status"] in ("failed", "timed_out")
    assert nodes[lost.name]["reason"]
    document = diagnosed(hosts, tmp_path / "without")
    assert document["ranks"] == {"expected": 4, "read": 3, "missing": [1]}
    # Rank 1 may be asleep as well: nobody has seen it.
    assert document["status"] in ("hung", "incomplete", "unknown")
    cause = document["verdict"]
    assert cause is None or set(cause["diverging_ranks"]) <= {DIVERGING}

    hosts.join(lost)
    status, nodes = collect(hosts, tmp_path / "again")
    assert status == 0, nodes
    assert diagnosed(hosts, tmp_path / "again")["verdict"]["diverging_ranks"] == [DIVERGING]


WHOLE = {"expected": 4, "read": 4, "missing": []}


def names_the_sleeper(document: dict[str, Any]) -> bool:
    return (
        document["status"] == "hung"
        and document["ranks"] == WHOLE
        and document["verdict"]["diverging_ranks"] == [DIVERGING]
    )


def test_watch_names_the_sleeping_rank_of_all_hosts(hosts: Hosts) -> None:
    with watching(hosts, "watch.log") as watch:
        document = watch.until_document(names_the_sleeper, "a verdict on four hosts")
        assert document["verdict"]["kind"] == "not_joined"
        assert document["verdict"]["seq"] == 21
        # Nothing was said before that proved wrong, such as of the clock that is an hour off.
        for earlier in watch.documents[:-1]:
            assert earlier["status"] in ("incomplete", "unknown", "ok"), earlier
        assert [line for line in watch.lines if "does not report" in line] == []
    servers = ("sh", "-c", "ps -eo args | grep -c '[w]atch --serve'")
    for host in hosts:
        log = hosts.folder / "servers.log"

        def is_empty(host: Host = host, log: Path = log) -> bool:
            host.start(*servers, log=log).wait(30)
            return log.read_text().strip() == "0"

        until(is_empty, f"the end of the server on {host.name}", 60)


def test_a_host_that_is_lost_while_watched_is_reported_and_comes_back(hosts: Hosts) -> None:
    lost = hosts["node-b"]
    with watching(hosts, "watch-lost.log") as watch, contextlib.ExitStack() as after:
        after.callback(hosts.join, lost)
        watch.until_document(names_the_sleeper, "a verdict on four hosts")
        printed = len(watch.documents)
        hosts.cut(lost)
        watch.until_line(f"{lost.address} does not report: no answer for 10 s")
        # All that was found still holds: nobody else has moved.
        assert len(watch.documents) == printed
        hosts.join(lost)
        watch.until_line(f"{lost.address} reports again")
        assert all(names_the_sleeper(document) for document in watch.documents[printed:])


def test_a_host_that_is_lost_from_the_start_is_blamed_for_nothing(hosts: Hosts) -> None:
    lost = hosts["node-b"]
    with contextlib.ExitStack() as after:
        hosts.cut(lost)
        after.callback(hosts.join, lost)
        watch = after.enter_context(watching(hosts, "watch-without.log"))
        document = watch.until_document(
            lambda one: one["status"] == "hung" and one["ranks"]["read"] == 3, "a hang"
        )
        assert document["ranks"] == {"expected": 4, "read": 3, "missing": [1]}
        # Rank 1 may be asleep as well: nobody has seen it.
        assert set(document["verdict"]["diverging_ranks"]) <= {DIVERGING}
        assert any(note.startswith(f"{lost.address} does not report") for note in document["notes"])
        hosts.join(lost)
        document = watch.until_document(names_the_sleeper, "a verdict on four hosts")
        assert not any("does not report" in note for note in document["notes"])
        watch.until_line(f"{lost.address} reports again")


def test_one_verdict_on_all_hosts(hosts: Hosts) -> None:
    done = hosts.control.ncclscope("watch", *hosts.ssh, RINGS, "--once", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    assert names_the_sleeper(json.loads(done.stdout))
