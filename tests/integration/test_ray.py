"""`--ray` on a real cluster of two nodes, which all tests of this file share."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclscope import Tracer
from ncclscope.ring.tombstone import page_of
from ncclscope.tracing.tracer import Comm
from tests.support.clusters import cluster
from tests.support.nodes import environment, ncclscope
from tests.support.programs import ROOT

pytestmark = [
    pytest.mark.ray,
    # A command starts a driver and an actor on each node: 5 s, and a minute on a busy machine.
    pytest.mark.timeout(300),
    # Ray's own; none of it is ours to mend.
    pytest.mark.filterwarnings("ignore"),
]

NAMES = ("node-a", "node-b")
RANKS = range(4)
DIVERGING = 3
ALL_RANKS = {"expected": 4, "read": 4, "missing": []}


def tracers_in(directories: dict[str, Path]) -> list[tuple[Tracer, Comm]]:
    """Start two ranks on each node, in this process."""
    found = []
    for rank in RANKS:
        name = NAMES[rank // 2]
        tracer = Tracer(
            directories[name],
            rank=rank,
            world_size=len(RANKS),
            heartbeat=False,
            # For a reader these are processes of other hosts.
            details={"host": name, "pid": 100 + rank, "boot_id": "another"},
        )
        found.append((tracer, tracer.communicator("K", "tp:0", RANKS, "nccl")))
    return found


def post(ranks: list[tuple[Tracer, Comm]], diverging: int | None = None) -> None:
    """Post one call on every rank; `diverging` posts another operation."""
    for rank, (tracer, comm) in enumerate(ranks):
        op = "all_gather" if rank == diverging else "all_reduce"
        tracer.record(comm, op, shape=(4, 8), dtype="float32", redop="sum")


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each node's directory of rings; nothing of one node is seen by another."""
    return {name: tmp_path_factory.mktemp(name) for name in NAMES}


@pytest.fixture(scope="module")
def ray_cluster(directories: dict[str, Path]) -> Iterator[Any]:
    with cluster(directories) as found:
        yield found


@pytest.fixture(scope="module")
def diverged(directories: dict[str, Path]) -> None:
    """Rings of a job in which rank 3 has left the sequence at call 31."""
    ranks = tracers_in(directories)
    for step in range(40):
        post(ranks, DIVERGING if step == 30 else None)
    for tracer, _ in ranks:
        tracer.close()


def ray(cluster: Any, *arguments: object) -> subprocess.CompletedProcess[str]:
    return ncclscope(*arguments, "--ray-address", cluster.address)


def documented() -> dict[str, list[str]]:
    """Return the commands that docs/many-nodes.md shows for Ray, by their first word."""
    text = (ROOT / "docs" / "many-nodes.md").read_text(encoding="utf-8")
    commands = re.findall(r"^    \$ ncclscope (.*--ray.*)$", text, re.MULTILINE)
    return {words[0]: words for words in map(shlex.split, commands)}


def test_watch_ends_at_a_divergence_between_nodes(
    ray_cluster: Any, directories: dict[str, Path]
) -> None:
    """The first test: the rings of its job are gone when it ends."""
    ranks = tracers_in(directories)
    agreed, left = threading.Event(), threading.Event()

    def run() -> None:
        while not agreed.wait(0.05):
            post(ranks)
        post(ranks, DIVERGING)
        left.set()

    job = threading.Thread(target=run)
    job.start()
    command = [sys.executable, "-m", "ncclscope", "watch", "--ray", "--until-divergence", "--json"]
    watch = subprocess.Popen(
        [*command, "--ray-address", ray_cluster.address],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert watch.stdout is not None
        said = [json.loads(watch.stdout.readline())]
        # A node that is slow to start is in the notes, and its ranks are missing, until it reports.
        while not (said[-1]["status"] == "ok" and said[-1]["ranks"] == ALL_RANKS):
            assert said[-1]["status"] in ("ok", "unknown", "incomplete"), said[-1]
            said.append(json.loads(watch.stdout.readline()))
        agreed.set()
        said += map(json.loads, watch.stdout)
        assert watch.wait(60) == 1
    finally:
        agreed.set()
        job.join()
        watch.kill()
        watch.wait()
        for tracer, _ in ranks:
            tracer.close()
        for directory in directories.values():
            for path in directory.iterdir():
                path.unlink()
    assert left.is_set()
    assert said[-1]["status"] == "diverged"
    assert said[-1]["verdict"]["diverging_ranks"] == [DIVERGING]
    assert said[-1]["verdict"]["kind"] == "op_mismatch"


@pytest.mark.usefixtures("diverged")
def test_each_node_delivers(ray_cluster: Any, tmp_path: Path) -> None:
    target = tmp_path / "hang"
    words = [str(target) if word == "hang/" else word for word in documented()["collect"]]
    done = ray(ray_cluster, *words, "--json")
    assert done.returncode == 0, done.stderr
    nodes = json.loads(done.stdout)["nodes"]
    assert [node["node"] for node in nodes] == list(NAMES)
    assert [node["status"] for node in nodes] == ["delivered"] * 2
    assert all(node["unpacked_bytes"] > 14_000_000 for node in nodes)
    assert all(node["received_bytes"] < 300_000 for node in nodes)
    verdict = json.loads(ncclscope("diagnose", target, "--json").stdout)
    assert verdict["verdict"]["diverging_ranks"] == [DIVERGING]
    assert verdict["ranks"] == ALL_RANKS


@pytest.mark.usefixtures("diverged")
def test_nodes_examine_their_own_rings(ray_cluster: Any, directories: dict[str, Path]) -> None:
    done = ray(ray_cluster, *documented()["diagnose"], "--json")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    local = json.loads(ncclscope("diagnose", *directories.values(), "--json").stdout)
    for one in (document, local):
        del one["time_ns"]
    assert document == local
    assert document["verdict"]["diverging_ranks"] == [DIVERGING]
    assert document["ranks"] == ALL_RANKS


@pytest.mark.usefixtures("diverged")
def test_nodes_name_ranks_without_a_record(ray_cluster: Any, directories: dict[str, Path]) -> None:
    path = directories["node-b"] / "4.untraced"
    about = {"rank": 4, "world_size": 5, "host": "node-b", "pid": 104, "boot_id": "another"}
    path.write_bytes(page_of(about, "no place takes a ring"))
    try:
        there = json.loads(ray(ray_cluster, *documented()["diagnose"], "--json").stdout)
        local = json.loads(ncclscope("diagnose", *directories.values(), "--json").stdout)
    finally:
        path.unlink()
    for name in ("status", "ranks", "verdict", "coverage", "notes"):
        assert there[name] == local[name]
    assert [one["rank"] for one in there["ranks"]["untraced"]] == [4]


def test_a_directory_that_no_node_has(ray_cluster: Any, tmp_path: Path) -> None:
    target = tmp_path / "hang"
    done = ray(ray_cluster, "collect", "--ray", "/nowhere", "--no-stacks", "-o", target, "--json")
    assert done.returncode == 2
    for node in json.loads(done.stdout)["nodes"]:
        assert node["status"] == "failed"
        assert "nothing found in /nowhere on " in node["reason"]
    nothing = ray(ray_cluster, "diagnose", "--ray", "/nowhere")
    assert nothing.returncode == 2
    assert "no ring found on 2 nodes: /nowhere does not exist on " in nothing.stderr


def test_a_node_that_takes_too_long_is_left(ray_cluster: Any, tmp_path: Path) -> None:
    done = ray(
        ray_cluster,
        *("collect", "--ray", "--command", "sh -c 'sleep 1000'", "--timeout", "3"),
        *("-o", tmp_path / "hang", "--json"),
    )
    assert done.returncode == 2
    assert [node["status"] for node in json.loads(done.stdout)["nodes"]] == ["timed_out"] * 2


def test_without_a_cluster(tmp_path: Path) -> None:
    done = ncclscope("collect", "--ray", "--ray-address", "127.0.0.1:1", "-o", tmp_path / "hang")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith(
        "ncclscope: there is no Ray cluster at 127.0.0.1:1"
    )


@pytest.mark.usefixtures("diverged")
def test_a_node_that_is_lost_costs_only_its_own_delivery(ray_cluster: Any, tmp_path: Path) -> None:
    """The last test of this cluster: it takes a node away."""
    (lost,) = [node for node in ray_cluster.worker_nodes if node._ray_params.node_name == "node-b"]
    ray_cluster.remove_node(lost, allow_graceful=False)
    target = tmp_path / "hang"
    done = ray(ray_cluster, "collect", "--ray", "--no-stacks", "-o", target, "--json")
    assert done.returncode == 2, done.stderr
    nodes = {node["node"]: node for node in json.loads(done.stdout)["nodes"]}
    assert [nodes[name]["status"] for name in NAMES] == ["delivered", "failed"]
    assert nodes["node-b"]["reason"]
    verdict = json.loads(ncclscope("diagnose", target, "--json").stdout)
    assert verdict["ranks"] == {"expected": 4, "read": 2, "missing": [2, 3]}
    there = json.loads(ray(ray_cluster, "diagnose", "--ray", "--json").stdout)
    assert there["ranks"] == verdict["ranks"]
    assert there["verdict"] == verdict["verdict"]
    assert any(note.startswith("node-b did not answer: ") for note in there["notes"])
