"""`ncclscope collect` from nodes that are namespaces of this machine, by programs on PATH."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclscope import Tracer
from tests.support.nodes import SHARED, Nodes, can_unshare, ncclscope, two_nodes
from tests.support.standins import add_stand_ins

pytestmark = [
    pytest.mark.skipif(not can_unshare(), reason="needs the right to make namespaces"),
    pytest.mark.timeout(240),
]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with two_nodes(tmp_path_factory.mktemp("nodes")) as nodes:
        add_stand_ins(nodes)
        yield nodes


def report(done: Any) -> dict[str, dict[str, Any]]:
    document = json.loads(done.stdout)
    return {node["node"]: node for node in document["nodes"]}


def diagnosed(directory: Path) -> dict[str, Any]:
    done = ncclscope("diagnose", directory, "--json")
    assert done.returncode != 2, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def check_verdict(directory: Path) -> dict[str, Any]:
    """Check that the rings of both nodes give the verdict that one machine would give."""
    document = diagnosed(directory)
    assert document["status"] == "diverged"
    assert document["verdict"]["kind"] == "op_mismatch"
    assert document["verdict"]["diverging_ranks"] == [2]
    assert document["verdict"]["seq"] == 31
    assert document["verdict"]["confidence"] == "certain"
    assert document["ranks"] == {"expected": 4, "read": 4, "missing": []}
    assert [row["host"] for row in document["table"]] == ["node-a"] * 2 + ["node-b"] * 2
    return document


@pytest.mark.parametrize(
    "transport",
    [
        ("--ssh", "node-a,user@node-b"),
        ("--slurm", "77"),
        ("--kubernetes", "app=vllm", "--namespace", "serving"),
        ("--kubernetes", "pod/node-a,pod/node-b"),
    ],
    ids=["ssh", "slurm", "labels", "pods"],
)
def test_all_nodes_in_one_directory(nodes: Nodes, tmp_path: Path, transport: tuple[str]) -> None:
    target = tmp_path / "hang"
    command = f"{sys.executable} -m ncclscope"
    done = nodes.run(
        "collect", *transport, "--command", command, SHARED, "-o", target, "--json", "--gap", "0.2"
    )
    assert done.returncode == 0, done.stderr
    found = report(done)
    assert [node["status"] for node in found.values()] == ["delivered"] * 2
    assert all(node["received_bytes"] < 200_000 for node in found.values())  # of 14 MB
    assert all(node["unpacked_bytes"] > 14_000_000 for node in found.values())
    document = check_verdict(target)
    # Stacks of both nodes, too: all four ranks were sampled, and wait in the same place.
    assert "4 of 4" in json.dumps(document["witnesses"]) or len(document["stacks"]["tree"]) == 1
    assert document["stacks"]["tree"][0]["ranks"] == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_node_that_fails_costs_only_its_own_delivery(nodes: Nodes, tmp_path: Path) -> None:
    target = tmp_path / "hang"
    hosts = "gone,node-a,slow,bare,mute,cut,loud,node-b"
    began = time.monotonic()
    done = nodes.run(
        "collect", "--ssh", hosts, SHARED, "-o", target, "--json", "--no-stacks", "--timeout", "8"
    )
    assert time.monotonic() - began < 60
    assert done.returncode == 2
    found = report(done)
    assert {name: node["status"] for name, node in found.items()} == {
        "gone": "failed",
        "node-a": "delivered",
        "slow": "timed_out",
        "bare": "failed",
        "mute": "failed",
        "cut": "failed",
        "loud": "delivered",
        "node-b": "delivered",
    }
    assert found["gone"]["reason"].endswith("No route to host")
    assert found["slow"]["reason"] == "not finished after 8 s"
    assert found["bare"]["reason"].endswith("not found")
    assert found["mute"]["reason"] == "received no data"
    assert "broke off" in found["cut"]["reason"]
    assert "1 file arrived before that" in found["cut"]["reason"]
    lines = [line for line in done.stderr.splitlines() if line.startswith("ncclscope: slow")]
    assert lines == ["ncclscope: slow: timed out: not finished after 8 s"]
    assert not list(target.glob(".*"))
    check_verdict(target)  # node-a came twice, which is the same process


def test_an_ephemeral_container_is_started_and_entered(nodes: Nodes, tmp_path: Path) -> None:
    target = tmp_path / "hang"
    done = nodes.run(
        *("collect", "--kubernetes", "pod/node-b", "--container", "engine", "--image", "tools:1"),
        *("--command", f"{sys.executable} -m ncclscope", "--no-stacks"),
        *("-o", target, "--json", SHARED),
    )
    assert done.returncode == 0, done.stderr
    debugged = (nodes.folder / "debugged").read_text()
    assert "debug node-b --image=tools:1 --target=engine --container=ncclscope-" in debugged
    assert "--profile=sysadmin" in debugged
    # Its files are those of the container that it was started for.
    (ring, _) = sorted((target / "node-b" / "files").rglob("*.ring"))
    assert ring.stat().st_size > 7_000_000


def test_a_node_without_anything_says_so(nodes: Nodes, tmp_path: Path) -> None:
    done = nodes.run("collect", "--ssh", "node-a", "/nowhere", "-o", tmp_path / "t", "--no-stacks")
    assert done.returncode == 2
    assert "0 of 1 nodes delivered" in done.stdout
    assert "nothing found in /nowhere on node-a" in done.stdout


def test_a_node_without_processes_has_its_rings_and_says_so(nodes: Nodes, tmp_path: Path) -> None:
    nodes.start("node-c", 0, 0, 4, odd=2)
    tracer = Tracer(tmp_path / "rings", rank=0, world_size=1, heartbeat=False)
    tracer.record(tracer.communicator("K", "tp:0", [0]), "barrier")
    tracer.close()
    target = tmp_path / "hang"
    done = nodes.run("collect", "--ssh", "node-c", tmp_path / "rings", "-o", target, "--json")
    assert done.returncode == 0, done.stderr
    (note,) = report(done)["node-c"]["notes"]
    assert note.startswith("no process was sampled: no worker")
    assert note in done.stderr
    assert diagnosed(target)["ranks"]["read"] == 1


def test_this_node_as_a_stream_and_as_a_directory(nodes: Nodes, tmp_path: Path) -> None:
    where = "node-a"
    remote = f"{nodes.bin}/enter {where} {sys.executable} -m ncclscope"
    target = tmp_path / "hang"
    done = ncclscope("collect", "--local", "--command", remote, SHARED, "-o", target, "--no-stacks")
    assert done.returncode == 0, done.stderr
    assert "1 of 1 nodes delivered" in done.stdout
    assert diagnosed(target)["ranks"] == {"expected": 4, "read": 2, "missing": [2, 3]}
    again = ncclscope("collect", "--local", SHARED, "-o", target, "--no-stacks")
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == f"ncclscope: {target} is not empty; name a new directory with -o\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ssh", "-oProxyCommand=evil"), "'-oProxyCommand=evil' is not a host name"),
        (("--ssh", "a;b"), "'a;b' is not a host name"),
        (("--ssh", ""), "no host is named"),
        (("--ssh", "@/nowhere"), "/nowhere cannot be read"),
        (("--slurm", "1 --all"), "'1 --all' is not a Slurm job id"),
        (("--slurm", "78"), "squeue failed"),
        (("--kubernetes", "--all"), "must not begin with a dash"),
        (("--kubernetes", "app=none"), "kubectl failed"),
        (("--kubernetes", "pod/../x"), "is not a pod name"),
        (("--kubernetes", "pod/a", "--image", "x"), "add --container NAME"),
        ((), "no nodes to collect from"),
        (("--ssh", "a", "--timeout", "nan"), "--timeout must be"),
        (("--ssh", "a", "--parallel", "0"), "--parallel must be"),
        (("--ssh", "a", "--command", "'"), "--command: No closing quotation"),
    ],
)
def test_a_mistake_is_one_line(
    nodes: Nodes, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    target = tmp_path / "hang"
    done = nodes.run("collect", *[f"{one}" for one in arguments], "-o", target)
    if arguments[:1] == ("--ssh",) and arguments[1].startswith("-"):
        done = nodes.run("collect", f"--ssh={arguments[1]}", "-o", target)
    if arguments[:1] == ("--kubernetes",) and arguments[1].startswith("-"):
        done = nodes.run("collect", f"--kubernetes={arguments[1]}", "-o", target)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not target.exists()
