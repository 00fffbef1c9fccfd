"""`watch --ssh` and `--slurm` as a program, on nodes of this machine that stand-ins reach."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.support.hosts import until
from tests.support.nodes import SHARED, Nodes, can_unshare, environment, two_nodes
from tests.support.standins import add_stand_ins

pytestmark = [
    pytest.mark.skipif(not can_unshare(), reason="needs the right to make namespaces"),
    pytest.mark.timeout(240),
]

WHOLE = {"expected": 4, "read": 4, "missing": []}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Ranks 0 and 1 on node-a, 2 and 3 on node-b; rank 2 has left the sequence at call 31."""
    with two_nodes(tmp_path_factory.mktemp("nodes")) as nodes:
        add_stand_ins(nodes)
        yield nodes


def check(document: dict[str, Any]) -> None:
    """Check that the rings of both nodes give the verdict that one machine would give."""
    assert document["status"] == "diverged"
    assert document["ranks"] == WHOLE
    cause = document["verdict"]
    assert (cause["kind"], cause["diverging_ranks"], cause["seq"]) == ("op_mismatch", [2], 31)
    assert cause["confidence"] == "certain"
    assert [row["host"] for row in document["table"]] == ["node-a"] * 2 + ["node-b"] * 2


@pytest.mark.parametrize(
    "hosts", [("--ssh", "node-a,user@node-b"), ("--slurm", "77")], ids=["ssh", "slurm"]
)
@pytest.mark.parametrize("option", ["--once", "--until-divergence"])
def test_ranks_of_all_nodes_are_compared(nodes: Nodes, hosts: tuple[str], option: str) -> None:
    done = nodes.run("watch", *hosts, SHARED, option, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    check(json.loads(done.stdout.splitlines()[-1]))
    assert servers(nodes) == []


def servers(nodes: Nodes) -> list[int]:
    """Return the servers that run on these nodes now."""
    pids = [path.read_text() for path in nodes.folder.glob("*.pid")]
    ours = {os.readlink(f"/proc/{pid}/ns/pid") for pid in pids}
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(OSError):
            if "--serve" in (process.info["cmdline"] or ()) and (
                os.readlink(f"/proc/{process.pid}/ns/pid") in ours
            ):
                found.append(process.pid)
    return found


def test_several_directories_are_one_system(nodes: Nodes) -> None:
    done = nodes.run("watch", "--ssh", "node-a,node-b", "/nowhere", SHARED, "--once", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    check(json.loads(done.stdout))


@pytest.mark.slow
def test_hosts_that_fail_are_named_and_cost_only_themselves(nodes: Nodes) -> None:
    hosts = "gone,node-a,slow,bare,mute,cut,loud,node-b"
    path = f"{nodes.bin}{os.pathsep}{os.environ['PATH']}"
    watch = subprocess.Popen(
        [sys.executable, "-m", "ncclscope", "watch", "--ssh", hosts, SHARED, "--json"],
        env=environment(PATH=path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wanted = {
        "gone does not report: ssh: connect to host gone port 22: No route to host",
        "slow does not report: no answer yet",
        "slow does not report: no answer for 20 s",
        "bare does not report: sh: 1: ncclscope: not found",
        "mute does not report: it sent nothing",
    }
    found: set[str] = set()
    try:
        assert watch.stderr is not None
        while not wanted <= found and (line := watch.stderr.readline()):
            found.add(line.removeprefix("ncclscope: ").strip())
        assert wanted <= found
        # node-a and loud are the same node, whose banner is skipped.
        assert not [line for line in found if line.startswith(("node-", "loud "))]
    finally:
        watch.terminate()
        printed, _ = watch.communicate(timeout=30)
    last = json.loads(printed.splitlines()[-1])
    assert last["status"] == "diverged"
    assert last["verdict"]["diverging_ranks"] == [2]
    until(lambda: servers(nodes) == [], "the end of all servers", 30)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ssh", "a", "--ray"], "argument --ray: not allowed with argument --ssh"),
        (["--ssh", ""], "no host is named; --ssh node1,node2 or --ssh @FILE"),
        (["--ssh", "-oProxyCommand=x"], "expected one argument"),
        (["--ssh=-oProxyCommand=x"], "'-oProxyCommand=x' is not a host name"),
        (["--ssh", "a;b"], "'a;b' is not a host name"),
        (["--ssh", "a", "--ssh-command", "'"], "--ssh-command: No closing quotation"),
        (["--ssh", "a", "--command", "'"], "--command: No closing quotation"),
        (["--slurm", "7;8"], "'7;8' is not a Slurm job id"),
        (["--slurm", "78"], "squeue failed: status 1"),
        (["--ssh", "a,b", "--kill"], "--on-hang 'ncclscope collect --ssh a,b -o DIR'"),
        (["--slurm", "77", "--kill-after", "9"], "'ncclscope collect --slurm 77 -o DIR'"),
        (["--ssh", "node-a", "/nowhere", "--once"], "no ring found"),
        (["--ssh", "gone", SHARED, "--once"], "No route to host"),
    ],
)
def test_a_mistake_is_one_line(nodes: Nodes, arguments: list[str], message: str) -> None:
    done = nodes.run("watch", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert message in line
