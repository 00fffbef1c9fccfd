"""`ncclscope collect --ssh` through a real server, where one is installed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclscope import Tracer
from ncclscope.launch.rank_process import free_port
from ncclscope.ring.tombstone import page_of
from tests.support.nodes import environment, ncclscope

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"

pytestmark = pytest.mark.skipif(
    not (os.path.exists(SSHD) and shutil.which("ssh") and shutil.which("ssh-keygen")),
    reason="needs sshd, ssh and ssh-keygen",
)


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[str]:
    """How a server of our own is reached, with keys of its own."""
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)],
            check=True,
            timeout=30,
        )
    shutil.copy(tmp_path / "user.pub", tmp_path / "authorized")
    port = free_port()
    config = tmp_path / "sshd_config"
    config.write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {tmp_path}/host\nPidFile none\n"
        f"AuthorizedKeysFile {tmp_path}/authorized\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nPermitRootLogin prohibit-password\n"
    )
    os.makedirs("/run/sshd", exist_ok=True) if os.geteuid() == 0 else None
    server = subprocess.Popen(
        [SSHD, "-D", "-e", "-f", str(config)], stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        if server.poll() is not None:
            assert server.stderr is not None
            pytest.skip(f"sshd does not start: {server.stderr.read()[-200:]!r}")
        time.sleep(0.05)
    yield (
        f"ssh -F none -p {port} -i {tmp_path}/user -o BatchMode=yes -o IdentitiesOnly=yes "
        f"-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    )
    server.send_signal(signal.SIGTERM)
    server.wait(10)
    assert server.stderr is not None
    server.stderr.close()


def test_rings_come_by_ssh(ssh: str, tmp_path: Path, rings: Path) -> None:
    for rank in range(2):
        tracer = Tracer(rings / "a job's", rank=rank, world_size=2, heartbeat=False)
        comm = tracer.communicator("K", "tp:0", [0, 1], "nccl")
        for step in range(10):
            op = "all_gather" if step == 6 and rank else "all_reduce"
            tracer.record(comm, op, shape=(4,), dtype="float32")
        tracer.close()
    target = tmp_path / "hang"
    path = environment()["PYTHONPATH"]
    done = ncclscope(
        *("collect", "--ssh", "127.0.0.1", "--ssh-command", ssh, "--no-stacks", "--json"),
        *("--command", f"env PYTHONPATH={path} {sys.executable} -m ncclscope"),
        *("--timeout", "60", "-o", target, rings / "a job's"),
    )
    assert done.returncode == 0, done.stderr + done.stdout
    (node,) = json.loads(done.stdout)["nodes"]
    assert node["unpacked_bytes"] > 14_000_000
    assert node["received_bytes"] < 300_000
    verdict = ncclscope("diagnose", target, "--json")
    assert json.loads(verdict.stdout)["verdict"]["seq"] == 7


@pytest.mark.parametrize("recorded", [3, 0])
def test_ranks_without_a_record_are_known_by_ssh(
    ssh: str, tmp_path: Path, rings: Path, recorded: int
) -> None:
    """One verdict by a watch on the host, one on what was collected, one on the directory."""
    for rank in range(4):
        if rank < recorded:
            tracer = Tracer(rings, rank=rank, world_size=4, heartbeat=False)
            tracer.record(tracer.communicator("K", "tp:0", range(4), "nccl"), "barrier")
            tracer.close()
        else:
            about = {"rank": rank, "world_size": 4, "host": "node-b", "pid": 100 + rank}
            page = page_of({**about, "boot_id": "another"}, "no place takes a ring")
            (rings / f"{rank}.untraced").write_bytes(page)
    reach = ("--ssh", "127.0.0.1", "--ssh-command", ssh, "--command")
    command = f"env PYTHONPATH={environment()['PYTHONPATH']} {sys.executable} -m ncclscope"
    done = ncclscope("collect", *reach, command, "--no-stacks", "-o", tmp_path / "hang", rings)
    assert done.returncode == 0, done.stderr + done.stdout
    found = [
        ncclscope("watch", *reach, command, "--once", "--json", rings),
        ncclscope("watch", "--once", "--json", rings),
        ncclscope("diagnose", tmp_path / "hang", "--json"),
        ncclscope("diagnose", rings, "--json"),
    ]
    documents = [json.loads(one.stdout) for one in found]
    for document in documents:
        assert document["status"] == documents[-1]["status"]
        assert document["verdict"] == documents[-1]["verdict"]
        assert document["ranks"] == documents[-1]["ranks"]
    assert [one["rank"] for one in documents[0]["ranks"]["untraced"]] == [*range(recorded, 4)]


def test_a_host_that_refuses_says_so(ssh: str, tmp_path: Path) -> None:
    (tmp_path / "authorized").write_text("")
    done = ncclscope(
        *("collect", "--ssh", "127.0.0.1", "--ssh-command", ssh, "--no-stacks"),
        *("--timeout", "60", "-o", tmp_path / "hang", "/dev/shm"),
    )
    assert done.returncode == 2
    assert "Permission denied" in done.stdout
