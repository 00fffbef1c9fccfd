"""`collect --slurm` and `watch --slurm` on a real Slurm of two nodes.

Needs root, slurmctld, slurmd and munged:

    apt-get install slurm-wlm munge && python -m pytest tests/integration/test_collect_slurm.py

Both nodes are on this machine, each with processes and a /dev/shm of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from ncclscope import diagnose, open_run
from ncclscope.launch.rank_process import free_port

PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "squeue", "unshare")
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""
NODES = """\
SlurmctldPort=27017
NodeName=node[0-1] NodeHostname={host} NodeAddr=127.0.0.1 Port=[27018-27019] CPUs=2 State=UNKNOWN
"""
PROGRAM = """\
import os, time
import torch
import torch.distributed as dist

rank = int(os.environ["SLURM_PROCID"])
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PORT"])
dist.init_process_group("gloo", rank=rank, world_size=2)
tensor = torch.ones(4)
for _ in range(20):
    dist.all_reduce(tensor)
if rank == 1:
    print("asleep", flush=True)
    time.sleep(600)
work = dist.all_reduce(tensor, async_op=True)
print("posted", flush=True)
work.wait()
"""

TOOL = [sys.executable, "-m", "ncclscope"]

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        os.getuid() != 0 or any(shutil.which(name) is None for name in PROGRAMS),
        reason=f"needs root and {' '.join(PROGRAMS)}",
    ),
]


def until(holds: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            pytest.fail(f"not within {seconds:g} s: {what}")
        time.sleep(0.1)


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def end(process: subprocess.Popen[bytes]) -> None:
    """End a daemon with all that it has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        whole = psutil.Process(process.pid).children(recursive=True)
        for one in whole:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    process.kill()
    process.wait()


def munge(folder: Path) -> list[str]:
    """Return the options of a munged that keeps all its files in a folder."""
    folder.chmod(0o711)
    for parent in folder.parents[:2]:
        parent.chmod(0o711)  # munged wants no folder on the way that others may write
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    files = {"key-file": "key", "pid-file": "pid", "seed-file": "see", "socket": "socket"}
    own = (f"--{name}={folder}/munge.{end}" for name, end in files.items())
    return ["--foreground", "--force", *own]


@pytest.fixture
def cluster(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    configuration = folder / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    nodes = NODES.format(host=host)
    configuration.write_text(
        CONFIGURATION.format(folder=folder, controller=f"{host}(127.0.0.1)", nodes=nodes)
    )
    monkeypatch.setenv("SLURM_CONF", str(configuration))
    apart = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c"]
    daemons: list[Sequence[str]] = [
        ["munged", *munge(folder)],
        ["slurmctld", "-D", "-i"],
        *(
            [*apart, f"mount -t tmpfs tmpfs /dev/shm && exec slurmd -D -N node{n}"]
            for n in range(2)
        ),
    ]
    with contextlib.ExitStack() as running:
        for number, command in enumerate(daemons):
            log = running.enter_context((folder / f"daemon{number}.log").open("wb"))
            daemon = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            running.callback(end, daemon)
            if number == 0:
                until((folder / "munge.socket").exists, "munged listens")
        until(
            lambda: output_of("sinfo", "-h", "-o", "%T %D").split() == ["idle", "2"],
            "two idle nodes",
        )
        yield folder


@pytest.fixture
def job(cluster: Path, tmp_path: Path) -> Iterator[str]:
    """The id of a job of which rank 1 sleeps, and rank 0 waits for it."""
    (cluster / "program.py").write_text(PROGRAM)
    traced = [*TOOL, "run", "--dir", "/dev/shm/rings", "--", sys.executable, "program.py"]
    log = (tmp_path / "job.log").open("wb")
    job = subprocess.Popen(
        ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", f"--chdir={cluster}", *traced],
        stdout=log,
        stderr=log,
        env={**os.environ, "PORT": str(free_port())},
    )
    try:
        for word, what in ((b"asleep", "rank 1 sleeps"), (b"posted", "rank 0 waits for it")):
            until(lambda word=word: word in (tmp_path / "job.log").read_bytes(), what)
        yield output_of("squeue", "-h", "-o", "%i").strip()
    finally:
        output_of("scancel", "--signal=KILL", *output_of("squeue", "-h", "-o", "%i").split())
        job.kill()
        job.wait()
        log.close()


@pytest.mark.slow
def test_a_job_whose_rank_sleeps(job: str, tmp_path: Path) -> None:
    target = tmp_path / "hang"
    collect = [*TOOL, "collect", "--slurm", job, "/dev/shm/rings", "-o", str(target)]
    done = subprocess.run(collect, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in target.iterdir()) == ["collect.json", "node0", "node1"]
    # Each task was started by an `ncclscope run` of its own, and both nodes have the same name.
    run = open_run(target)
    assert [rank.alive for rank in run.ranks] == [True, True]
    assert run.snapshot is not None
    assert [worker.rank for worker in run.snapshot.workers] == [0, 1]
    # Two samples, two seconds apart, lie between the call and the copy: no need to wait for longer.
    verdict = diagnose(run, live_stall_seconds=0.1)
    assert verdict.cause is not None
    # Of two ranks, either may be wrong: a pair has no majority.
    assert (verdict.cause.kind, verdict.cause.candidate_ranks) == ("not_joined", (0, 1))


def servers() -> list[int]:
    """Return the processes that serve a watch on a node of this cluster."""
    words = ("watch", "--serve", "--", "/dev/shm/rings")
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if tuple(process.info["cmdline"] or ())[-4:] == words
        and process.ppid() != os.getpid()
        and "slurmstepd" in {one.name() for one in process.parents()}
    ]


@pytest.mark.slow
def test_a_watch_of_a_job_whose_rank_sleeps(job: str) -> None:
    command = [*TOOL, "watch", "--slurm", job, "/dev/shm/rings", "--stall", "1", "--json"]
    done = subprocess.run(
        [*command, "--until-divergence"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (1, "")
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["ranks"] == {"expected": 2, "read": 2, "missing": []}
    cause = document["verdict"]
    assert (cause["kind"], cause["candidate_ranks"]) == ("not_joined", [0, 1])
    until(lambda: servers() == [], "the end of the servers")

    watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert watch.stdout is not None
    with watch.stdout:
        assert watch.stdout.readline()
        assert len(servers()) == 2
        watch.kill()
        watch.wait()
    until(lambda: servers() == [], "the end of the servers of a watch that was killed")
