"""Hangs of four processes on four GPUs, looked at while they stand: `pytest -m gpu tests/gpu`.

What NCCL's RAS says of the same hang stands beside it. With NCCLSCOPE_TRANSCRIPTS set to a
directory, everything that was said is kept there.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from pathlib import Path

import pytest

from ncclscope.lab.launcher import Laboratory
from ncclscope.lab.plan import Program
from ncclscope.live.ras import DEFAULT_ADDRESS
from tests.gpu.asking import ask, keep
from tests.integration.traced_server import NCCLSCOPE

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

PARTED = ["wrong_op", "skipped_call", "divergent_dispatch"]
STUCK = ["order_swap", "sleeping_rank"]
"""Here all calls agree, and only time tells a hang from a rank that is busy."""

PATIENCE = 32.0
"""Seconds after which living ranks that wait are called stuck, and two more."""


def _ask_ras() -> str:
    """Returns what `ncclras -v` prints."""
    with socket.create_connection(DEFAULT_ADDRESS, timeout=20) as connection:
        connection.sendall(b"VERBOSE STATUS\n")
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts).decode("utf-8", "replace")


@pytest.mark.parametrize("fault", [*PARTED, *STUCK])
def test_a_hang_on_nccl_is_named_while_it_stands(tmp_path: Path, fault: str) -> None:
    rings = tmp_path / "rings"
    rings.mkdir()
    program = Program(tp=2, dp=2, backend="nccl", fault=fault)
    planted = program.planted()
    watch_command = [*NCCLSCOPE, "watch", str(rings), "--until-divergence", "--json"]
    with Laboratory(program, rings) as laboratory:
        watch = subprocess.Popen(
            [*watch_command, "--stall", "5"], stdout=subprocess.PIPE, text=True
        )
        reported: float | None = None
        for _ in laboratory.watch(stall_after=PATIENCE if fault in STUCK else 5.0):
            if reported is None and watch.poll() is not None:
                reported = time.monotonic()
        assert laboratory.outcome == "stalled"
        seen, _ = watch.communicate(timeout=60)
        stood = time.monotonic() - reported if reported is not None else 0.0
        ras = _ask_ras()
        gpus = subprocess.run(
            [
                "nvidia-smi",
                "--query-gpu=index,utilization.gpu,utilization.memory,power.draw",
                "--format=csv,noheader",
            ],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        attached = ask(fault, "attach", "attach", *laboratory.pids)
        laboratory.kill()
    post_mortem = ask(fault, "diagnose", "diagnose", rings)
    keep(fault, "watch.jsonl", seen)
    keep(fault, "ras.txt", ras)
    keep(fault, "nvidia-smi.txt", gpus)
    last = json.loads(seen.splitlines()[-1])
    verdicts = {"watch": last, "attach": attached, "diagnose": post_mortem}
    found = {
        name: (document["verdict"]["kind"], document["verdict"]["diverging_ranks"])
        for name, document in verdicts.items()
    }
    keep(
        fault,
        "summary.json",
        json.dumps({"planted": planted, **found, "watch_ended_before": stood}, indent=1),
    )

    assert watch.returncode == 1
    expected = planted["kind"], planted["diverging_ranks"]
    assert found["diagnose"] == expected
    assert found["watch"][1] == expected[1]
    assert found["attach"][1] == expected[1]
    if fault in PARTED:
        quiet = last["quiet_seconds"]
        assert quiet is None or quiet < 1.0, "found by what was posted, and not by waiting"
    if fault == "order_swap":
        # Each rank has launched as much as its peers, in another order.
        assert "MISMATCH" not in ras
        assert "RUNNING" in ras
