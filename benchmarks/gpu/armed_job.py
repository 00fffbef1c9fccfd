"""Arm a dormant profiler plugin on a live job of four ranks on one GPU.

    python -m benchmarks.gpu.armed_job --nccl /tmp/libnccl.so.2

The job runs without probes. `attach --arm` is asked once while it is healthy and once while rank 2
leaves out an all_gather. Prints both screens. It needs NCCL 2.31 or newer.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ncclscope.launch.gpus import SHARED
from ncclscope.native import plugin_path

RANKS, FAULTY_RANK = 4, 2
_STARTING = 120.0

_PROGRAM = """
import os, sys, time, torch, torch.distributed as dist
rank, scratch = int(os.environ["RANK"]), sys.argv[1]
torch.cuda.set_device(0)
dist.init_process_group("nccl")
values, gathered = torch.ones(1024, device="cuda"), torch.empty(4096, device="cuda")
step = 0
while True:
    dist.all_reduce(values)
    if not (rank == FAULTY and os.path.exists(scratch + "/fault")):
        dist.all_gather_into_tensor(gathered, values)
    torch.cuda.synchronize()
    values.fill_(1.0)
    step += 1
    if step == 20:
        open(f"{scratch}/ready{rank}", "w").close()
    time.sleep(0.05)
""".replace("FAULTY", str(FAULTY_RANK))


def main() -> int:
    """Run the job and ask twice; return 1 if an answer is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nccl", required=True, metavar="FILE", help="library that is preloaded")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="armed-job-") as scratch:
        jobs = [_start(rank, options.nccl, scratch) for rank in range(RANKS)]
        try:
            end = time.monotonic() + _STARTING
            while len([*Path(scratch).glob("ready*")]) < RANKS:
                if time.monotonic() > end or any(job.poll() is not None for job in jobs):
                    print("the job did not start")
                    return 1
                time.sleep(0.2)
            pids = [str(job.pid) for job in jobs]
            print(_attach(5, pids).communicate()[0], flush=True)
            asked = _attach(15, pids)
            time.sleep(6)
            Path(scratch, "fault").touch()
            print(asked.communicate()[0], flush=True)
            return asked.returncode != 1
        finally:
            for job in jobs:
                with contextlib.suppress(ProcessLookupError):
                    job.send_signal(signal.SIGKILL)
                job.wait()


def _start(rank: int, nccl: str, scratch: str) -> subprocess.Popen[bytes]:
    """Start a rank whose plugin is dormant."""
    environment = {name: value for name, value in os.environ.items() if name != "NCCLSCOPE_DIR"}
    environment |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": "0"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611", "NCCL_NVLS_ENABLE": "0"}
    environment |= {SHARED: "1", "LD_PRELOAD": nccl, "NCCLSCOPE_ARM": scratch}
    environment["NCCL_PROFILER_PLUGIN"] = str(plugin_path())
    return subprocess.Popen([sys.executable, "-c", _PROGRAM, scratch], env=environment)


def _attach(seconds: int, pids: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ncclscope", "attach", "--arm", str(seconds), *pids]
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


if __name__ == "__main__":
    sys.exit(main())
