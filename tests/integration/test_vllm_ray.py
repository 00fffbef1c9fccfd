"""vLLM's Ray executor over two hosts, traced: a worker that leaves out a call is named.

The hosts are namespaces of this machine, each with a raylet. The job gets its switches by the names
that Ray passes on, and in the driver's environment alone. Of vLLM's CPU build only the name of the
Ray resource is ours (``vllm_ray_platform``).
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.ray_serving import PROMPT, TOKENS
from tests.integration.routing_reference import reference_routing
from tests.integration.tiny_moe import write_checkpoint
from tests.integration.vllm_server import TINY_QWEN3_MOE
from tests.support.hosts import Host, Hosts, missing, until
from tests.support.nodes import environment

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}"),
    pytest.mark.skipif(
        None in map(importlib.util.find_spec, ("ray", "vllm")), reason="needs ray and vllm"
    ),
]

HERE = Path(__file__).parent
NODES = ("node-a", "node-b")
RINGS = "/dev/shm/rings"
DIVERGING = 1
OPEN = {"RAY_AUTH_MODE": "disabled"}
"""Where the user has a token of Ray's, a cluster asks for it, but a node does not bring it."""
SWITCHES = {
    "NCCL_SCOPE_DIR": RINGS,
    "NCCL_SCOPE_VLLM_DISPATCH": "fixed",
    "NCCL_SCOPE_VLLM_ROUTED_EXPERTS": "1",
}


def raylet(hosts: Hosts, host: Host, *more: str, **variables: str) -> None:
    """Start Ray's processes on a host, and wait until they serve."""
    # Sessions of all nodes have the same name, and their sockets are files.
    subprocess.run(
        host.command("sh", "-c", "mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray"), check=True
    )
    log = f"{host.name}.ray.log"
    options = ("--num-cpus=2", "--num-gpus=1", "--object-store-memory=80000000", "--block")
    command = (sys.executable, "-m", "ray.scripts.scripts", "start", *options)
    address = f"--node-ip-address={host.address}"
    variables["VLLM_HOST_IP"] = host.address
    hosts.run(host, *command, address, f"--node-name={host.name}", *more, log=log, **variables)
    until(lambda: "Ray runtime started" in hosts.said(log), f"{host.name}'s raylet")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Hosts with a cluster between them, and a job that has served one request."""
    folder = tmp_path_factory.mktemp("hosts")
    with Hosts(folder, dict.fromkeys(NODES, 0.0), delay=1, loss=0) as hosts:
        plugins = (HERE / "vllm_fault", HERE / "vllm_ray_platform")
        search = [*map(str, plugins), environment()["PYTHONPATH"]]
        of_nodes = {
            "PYTHONPATH": os.pathsep.join(search),
            "NCCLSCOPE_TEST_FAULT": str(folder / "fault"),
            "RAY_USAGE_STATS_ENABLED": "0",
            **OPEN,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "net0",
        }
        head = hosts["node-a"]
        raylet(hosts, head, "--head", "--port=6379", "--include-dashboard=false", **of_nodes)
        address = f"{head.address}:6379"
        raylet(hosts, hosts["node-b"], f"--address={address}", **of_nodes)

        (folder / "model").mkdir()
        write_checkpoint(folder / "model", TINY_QWEN3_MOE)
        serving = (sys.executable, "-m", "tests.integration.ray_serving")
        of_driver = {"RAY_ADDRESS": address, "VLLM_HOST_IP": head.address} | SWITCHES
        of_driver |= {
            "VLLM_USE_RAY_V2_EXECUTOR_BACKEND": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
        }
        job = hosts.run(
            head,
            *(*serving, folder / "model", folder / "answer.npz"),
            log="job.log",
            **of_nodes | of_driver,
        )
        until(
            lambda: "all answered" in hosts.said("job.log") or job.poll() is not None,
            "the first answer",
            400,
        )
        assert job.poll() is None, hosts.said("job.log")[-4000:]
        yield hosts


def ask(hosts: Hosts, *words: str) -> subprocess.CompletedProcess[str]:
    """Ask all nodes of the cluster, from the head."""
    head = hosts["node-a"]
    ray = ("--ray", "--ray-address", f"{head.address}:6379")
    return head.ncclscope(*words, *ray, RINGS, **OPEN)


def test_the_switches_reach_workers_on_both_hosts(hosts: Hosts) -> None:
    """Each has recorded, as its node's files show, and the experts are those of the model."""
    found = np.load(hosts.folder / "answer.npz")
    truth = reference_routing(hosts.folder / "model", [*PROMPT, *found["tokens"]])[:-1]
    assert len(found["tokens"]) == TOKENS
    assert not found["missing"].any()
    assert np.array_equal(found["ids"], truth)

    done = ask(hosts, "diagnose", "--json")
    document: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, document["status"]) == (0, "ok"), done.stderr
    assert [row["host"] for row in document["table"]] == list(NODES)


def test_a_worker_that_leaves_out_a_call_is_named_by_watch(hosts: Hosts) -> None:
    (hosts.folder / "draft").write_text("skip")
    (hosts.folder / "draft").rename(hosts.folder / "fault")
    (hosts.folder / "answer.npz.go").touch()

    done = ask(hosts, "watch", "--json", "--until-divergence", "--stall", "5")

    assert done.returncode == 1, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])["verdict"]
    cause = json.loads(ask(hosts, "diagnose", "--json").stdout)["verdict"]
    for found in (seen, cause):
        # Of a pair, the rounds of the steps before show which one it is.
        assert (found["kind"], found["confidence"]) == ("missing_call", "likely")
        assert found["diverging_ranks"] == [DIVERGING]
        assert found["comm"]["label"] == "tp:0"
        assert found["peers"]["op"] == "all_reduce"
    assert seen["seq"] == cause["seq"]
