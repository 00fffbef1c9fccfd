"""`collect --slurm` and `watch --slurm` on a real Slurm over hosts with networks of their own.

Two nodes and the controller are namespaces of this machine. Packets between them take 10 ms, and
the clock of one node is 2 s ahead (:mod:`tests.support.hosts`).

    apt-get install slurm-wlm munge openssh-server iproute2
    pytest -m slow tests/integration/test_slurm_hosts.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_collect_slurm import CONFIGURATION, PROGRAMS, munge
from tests.support.hosts import Host, Hosts, missing, until

LACKS = ", ".join(
    [*(name for name in PROGRAMS if shutil.which(name) is None), *filter(None, [missing()])]
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(LACKS), reason=f"needs {LACKS}"),
]

RINGS = "/dev/shm/rings"
SKEWS = {"node-a": 0.0, "node-b": 2.0, "node-c": 0.0}
ASLEEP = 1
PROGRAM = """\
import os, sys, time
import torch
import torch.distributed as dist

rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
os.environ.update(MASTER_ADDR="10.77.0.1", MASTER_PORT="29500", GLOO_SOCKET_IFNAME="net0")
dist.init_process_group("gloo", rank=rank, world_size=size)
tensor = torch.ones(4)
for _ in range(20):
    dist.all_reduce(tensor)
if rank == int(sys.argv[1]):
    print("asleep", flush=True)
    time.sleep(600)
work = dist.all_reduce(tensor, async_op=True)
print("posted", flush=True)
work.wait()
"""


class Slurm:
    """A cluster whose nodes are hosts; commands are typed on the control host.

    Args:
        hosts: The nodes, and the control host.
    """

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.folder = hosts.folder
        self.variables = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        nodes = (
            f"NodeName={one.name} NodeAddr={one.address} CPUs=2 State=UNKNOWN" for one in hosts
        )
        (self.folder / "state").mkdir()
        given = {
            "folder": self.folder,
            "controller": f"control({hosts.control.address})",
            "nodes": "\n".join(nodes),
        }
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(**given))
        self.daemon(hosts.control, "munged", *munge(self.folder))
        until((self.folder / "munge.socket").exists, "munged listens", 60)
        self.daemon(hosts.control, "slurmctld", "-D", "-i")
        for host in hosts:
            self.daemon(host, "slurmd", "-D", "-N", host.name)
        idle = ["idle", str(len(SKEWS))]
        until(lambda: self.output("sinfo", "-h", "-o", "%T %D").split() == idle, "idle nodes", 60)

    def daemon(self, host: Host, *command: str) -> subprocess.Popen[bytes]:
        log = f"{command[0]}-{host.name}.log"
        return self.hosts.run(host, *command, log=log, **self.variables)

    def output(self, *command: str) -> str:
        words = self.hosts.control.command(*command)
        environment = {**os.environ, **self.variables}
        return subprocess.run(
            words, capture_output=True, text=True, check=False, env=environment
        ).stdout

    def ncclscope(self, *words: object) -> subprocess.CompletedProcess[str]:
        return self.hosts.control.ncclscope(*words, **self.variables)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    folder = tmp_path_factory.mktemp("slurm-hosts")
    with Hosts(folder, SKEWS, delay=10, loss=0.0) as hosts:
        yield Slurm(hosts)


@pytest.fixture(scope="module")
def job(slurm: Slurm) -> Iterator[str]:
    """The id of a job of three ranks of which rank 1 sleeps, and the others wait for it."""
    (slurm.folder / "program.py").write_text(PROGRAM)
    traced = [sys.executable, "-m", "ncclscope", "run", "--no-explain", "--dir", RINGS, "--"]
    shape = [f"--nodes={len(SKEWS)}", f"--ntasks={len(SKEWS)}", "--ntasks-per-node=1"]
    log = "job.log"
    slurm.hosts.run(
        slurm.hosts.control,
        *("srun", *shape, f"--chdir={slurm.folder}", *traced),
        *(sys.executable, "program.py", ASLEEP),
        log=log,
        **slurm.variables,
    )
    until(lambda: slurm.hosts.said(log).count("posted") == 2, "two ranks wait", 120)
    until(lambda: "asleep" in slurm.hosts.said(log), "rank 1 sleeps", 60)
    yield slurm.output("squeue", "-h", "-o", "%i").strip()
    slurm.output("scancel", "--signal=KILL", "--full", "--user=root")


def is_named(document: dict[str, Any]) -> bool:
    cause = document["verdict"]
    return document["status"] == "hung" and cause["diverging_ranks"] == [ASLEEP]


def test_collect_brings_the_rings_of_all_nodes(slurm: Slurm, job: str, tmp_path: Path) -> None:
    numbers = iter(range(20))

    def names_the_sleeper() -> bool:
        target = tmp_path / f"hang-{next(numbers)}"
        done = slurm.ncclscope("collect", "--slurm", job, RINGS, "-o", target)
        assert done.returncode == 0, done.stdout + done.stderr
        assert {path.name for path in target.iterdir()} == {"collect.json", *SKEWS}
        found = json.loads(slurm.ncclscope("diagnose", target, "--json").stdout)
        assert found["ranks"] == {"expected": 3, "read": 3, "missing": []}
        assert [row["host"] for row in found["table"]] == list(SKEWS)
        return is_named(found)

    until(names_the_sleeper, "a verdict on three nodes", 120)


def test_watch_names_the_sleeping_rank(slurm: Slurm, job: str) -> None:
    done = slurm.ncclscope("watch", "--slurm", job, RINGS, "--json", "--until-divergence")
    assert done.returncode == 1, done.stdout + done.stderr
    assert is_named(json.loads(done.stdout.splitlines()[-1])), done.stdout
