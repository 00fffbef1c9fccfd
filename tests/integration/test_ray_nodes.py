"""`--ray` on a real cluster of three nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclscope import Tracer
from tests.support.clusters import cluster
from tests.support.nodes import ncclscope
from tests.support.programs import ROOT

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.timeout(240),
    # Ray's own; none of it is ours to mend.
    pytest.mark.filterwarnings("ignore"),
]

NAMES = ("node-a", "node-b", "node-c")
DIVERGING = 3


def record(tracer: Tracer, rank: int, steps: int = 40) -> None:
    comm = tracer.communicator(key="K", label="tp:0", ranks=range(6), backend="nccl")
    for step in range(steps):
        op = "all_gather" if rank == DIVERGING and step == 30 else "all_reduce"
        tracer.record(comm, op, shape=(step + 1, 8), dtype="float32", redop="sum")


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two ranks on each node; nothing of one node is seen by another."""
    found = {name: tmp_path_factory.mktemp(name) for name in NAMES}
    for rank in range(6):
        name = NAMES[rank // 2]
        tracer = Tracer(
            found[name],
            rank=rank,
            world_size=6,
            heartbeat=False,
            details={"host": name, "pid": 100 + rank, "boot_id": "another"},
        )
        record(tracer, rank)
        tracer.close()
    return found


@pytest.fixture(scope="module")
def ray_cluster(directories: dict[str, Path]) -> Iterator[Any]:
    with cluster(directories) as found:
        yield found


def ray(address: str, *arguments: object) -> Any:
    return ncclscope(*arguments, "--ray", "--ray-address", address)


def test_each_node_delivers(ray_cluster: Any, tmp_path: Path) -> None:
    target = tmp_path / "hang"
    done = ray(ray_cluster.address, "collect", "--no-stacks", "-o", target, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [node["node"] for node in document["nodes"]] == list(NAMES)
    assert [node["status"] for node in document["nodes"]] == ["delivered"] * 3
    assert all(node["unpacked_bytes"] > 14_000_000 for node in document["nodes"])
    assert all(node["received_bytes"] < 300_000 for node in document["nodes"])
    verdict = json.loads(ncclscope("diagnose", target, "--json").stdout)
    assert verdict["verdict"]["diverging_ranks"] == [DIVERGING]
    assert verdict["ranks"] == {"expected": 6, "read": 6, "missing": []}


def test_the_commands_of_the_text(ray_cluster: Any, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "many-nodes.md").read_text(encoding="utf-8")
    for command in re.findall(r"^    \$ ncclscope (.*--ray.*)$", text, re.MULTILINE):
        words = [str(tmp_path / "hang") if word == "hang/" else word for word in command.split()]
        done = ncclscope(*words, RAY_ADDRESS=ray_cluster.address)
        assert done.returncode == (1 if words[0] == "diagnose" else 0), done.stderr
        assert ("3 of 3 nodes delivered" in done.stdout) or "rank 3" in done.stdout


def test_a_node_that_cannot_deliver_says_why(ray_cluster: Any, tmp_path: Path) -> None:
    target = tmp_path / "hang"
    done = ray(
        ray_cluster.address,
        *("collect", "/nowhere", "--no-stacks", "-o", target, "--json"),
    )
    assert done.returncode == 2
    for node in json.loads(done.stdout)["nodes"]:
        assert node["status"] == "failed"
        assert "nothing found in /nowhere on " in node["reason"]


def test_a_node_that_takes_too_long_is_left(ray_cluster: Any, tmp_path: Path) -> None:
    done = ray(
        ray_cluster.address,
        *("collect", "--command", "sh -c 'sleep 1000'", "--timeout", "3"),
        *("-o", tmp_path / "hang", "--json"),
    )
    assert done.returncode == 2
    assert [node["status"] for node in json.loads(done.stdout)["nodes"]] == ["timed_out"] * 3


def test_nodes_examine_their_own_rings(
    ray_cluster: Any, directories: dict[str, Path], tmp_path: Path
) -> None:
    done = ray(ray_cluster.address, "diagnose", "--json")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    local = json.loads(ncclscope("diagnose", *directories.values(), "--json").stdout)
    assert document == local
    assert document["verdict"]["diverging_ranks"] == [DIVERGING]
    assert document["ranks"]["read"] == 6
    nothing = ray(ray_cluster.address, "diagnose", "/nowhere")
    assert nothing.returncode == 2
    assert "no ring found on 3 nodes: /nowhere does not exist on " in nothing.stderr


def test_without_a_cluster(tmp_path: Path) -> None:
    done = ray("127.0.0.1:1", "collect", "-o", tmp_path / "hang")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith(
        "ncclscope: there is no Ray cluster at 127.0.0.1:1"
    )


def test_a_node_that_is_lost_costs_only_its_own_delivery(ray_cluster: Any, tmp_path: Path) -> None:
    """The last test of this cluster: it takes a node away."""
    (lost,) = [node for node in ray_cluster.worker_nodes if node._ray_params.node_name == "node-c"]
    ray_cluster.remove_node(lost, allow_graceful=False)
    target = tmp_path / "hang"
    done = ray(ray_cluster.address, "collect", "--no-stacks", "-o", target, "--json")
    assert done.returncode == 2, done.stderr
    nodes = {node["node"]: node for node in json.loads(done.stdout)["nodes"]}
    assert [nodes[name]["status"] for name in NAMES] == ["delivered", "delivered", "failed"]
    assert nodes["node-c"]["reason"]
    verdict = json.loads(ncclscope("diagnose", target, "--json").stdout)
    assert verdict["ranks"] == {"expected": 6, "read": 4, "missing": [4, 5]}
    assert verdict["verdict"]["diverging_ranks"] == [DIVERGING]
    there = json.loads(ray(ray_cluster.address, "diagnose", "--json").stdout)
    assert there["ranks"] == verdict["ranks"]
    assert there["verdict"] == verdict["verdict"]
    assert any(note.startswith("node-c did not answer: ") for note in there["notes"])
