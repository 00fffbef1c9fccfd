"""The lines of torch's and NCCL's logs in docs/symptoms.md, from ranks over NCCL: `pytest -m gpu`.

A test of its own shows what gloo and stores print: tests/integration/test_symptoms.py.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ncclscope import diagnose, open_run
from tests.gpu.asking import keep
from tests.gpu.host import SEATS
from tests.integration.c10d_ranks import ROOT, main, meeting, start

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(240),
    pytest.mark.skipif(SEATS < 4, reason="needs room for four ranks"),
]

SIZE, DIVERGING = 4, 3
TIMEOUT_SECONDS = 15
DEADLINE = 150.0
BY_SOCKETS = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NET": "Socket",
    "NCCL_DEBUG": "WARN",
}


def meet(rank: int) -> Any:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("nccl", timeout=timedelta(seconds=TIMEOUT_SECONDS))
    return dist


def reduce(dist: Any) -> None:
    import torch

    dist.all_reduce(torch.ones(1 << 20, device="cuda"))
    torch.cuda.synchronize()


def comes_too_late(rank: int) -> None:
    """Never join the second call on one rank."""
    dist = meet(rank)
    reduce(dist)
    if rank == DIVERGING:
        signal.pause()
    reduce(dist)


def is_gone(rank: int) -> None:
    """Kill one rank between two calls."""
    dist = meet(rank)
    reduce(dist)
    if rank == DIVERGING:
        os.kill(os.getpid(), signal.SIGKILL)
    reduce(dist)


def opens_nothing(rank: int) -> None:
    """Have one rank reach its limit of open files before it creates a communicator."""
    dist = meet(rank)
    if rank == DIVERGING:
        used = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, used + 1))
    reduce(dist)


def printed_by(function: str, rings: Path, more: dict[str, str], awaited: list[int]) -> str:
    """Run a job until these ranks have ended, end the others; return what all printed."""
    search = [ROOT, ROOT / "patches", ROOT / "analyzers", os.environ.get("PYTHONPATH", "")]
    common = {
        "PYTHONPATH": os.pathsep.join(map(str, search)),
        **meeting(rings, SIZE),
        "TORCH_FR_DUMP_TEMP_FILE": str(rings / "fr_"),
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(rings / "fr_"),
        **more,
    }
    ranks: list[subprocess.Popen[str]] = [
        start(
            __file__,
            function,
            {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            interpreter=True,
        )
        for rank in range(SIZE)
    ]
    with ThreadPoolExecutor(SIZE) as pool:  # what is not read would block who writes it
        reading = [pool.submit(process.communicate) for process in ranks]
        try:
            for rank in awaited:
                reading[rank].result(DEADLINE)
        finally:
            for process in ranks:
                process.kill()
        printed = [one.result()[0] for one in reading]
    text = "\n".join(filter(None, printed))
    keep(f"symptom_{function}", "log.txt", text)
    return text


def named(function: str, rings: Path) -> tuple[str, tuple[int, ...]]:
    """Return kind and ranks of the verdict on the records."""
    verdict = diagnose(open_run(rings))
    keep(f"symptom_{function}", "diagnose.txt", verdict.summary)
    assert verdict.cause is not None, verdict.summary
    return verdict.cause.kind, tuple(verdict.cause.diverging_ranks)


def test_a_real_watchdogs_timeout_is_explained_in_the_jobs_own_log(rings: Path) -> None:
    waiting = [rank for rank in range(SIZE) if rank != DIVERGING]
    text = printed_by("comes_too_late", rings, {}, waiting)

    assert "Watchdog caught collective operation timeout" in text
    assert text.count("ncclscope: more: ") == 1, "the verdict, once a job"
    assert re.search(r"Rank 3 \(.*\) never joined call 2 on world of ranks 0-3", text)
    assert named("comes_too_late", rings) == ("not_joined", (DIVERGING,))


def test_a_lost_connection_is_a_rank_that_is_gone(rings: Path) -> None:
    text = printed_by("is_gone", rings, BY_SOCKETS, [DIVERGING, 0])

    assert re.search(r"NCCL WARN .*(Connection closed by remote peer|Connection reset)", text)
    assert "ncclRemoteError" in text or "remote process exited" in text
    assert named("is_gone", rings) == ("dead_rank", (DIVERGING,))


def test_a_system_error_is_of_the_rank_that_reports_it(rings: Path) -> None:
    text = printed_by("opens_nothing", rings, BY_SOCKETS, [DIVERGING])

    assert "unhandled system error" in text
    assert re.search(r"NCCL WARN .*[Tt]oo many open files", text)
    assert named("opens_nothing", rings) == ("dead_rank", (DIVERGING,))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(globals())
