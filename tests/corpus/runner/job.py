"""A running program of the corpus, and when it stops moving."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from ncclscope.launch.gpus import SHARED
from ncclscope.launch.rank_process import free_port
from ncclscope.ring import layout
from ncclscope.ring.reader import RingFile
from tests.corpus.runner.truth import Program

__all__ = ["ENDED", "MOVING", "STILL", "Job", "running"]

ROOT = Path(__file__).parents[3]
SOURCES = Path(__file__).parents[1]
LAUNCHER = Path(__file__).with_name("launcher.py")
STILL, ENDED, MOVING = "still", "ended", "moving"
_ACTIVE = 0.8
"""Seconds of running, or of waiting for a core, from which on a rank counts as moving."""
_RUNS = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
_POLL = 0.5


class Job:
    """The ranks of one program.

    Args:
        program: Which.
        folder: For its output; made when absent.
        faulty: Whether its mistake is switched on.
        traced: Whether it runs under ``ncclscope run``.
        python: Interpreter of the program.
        nccl: An NCCL over which the program runs; preloaded where it is a path.
        variables: Further environment variables of the program.

    Attributes:
        rings: Where its rings go; in shared memory, removed by `end`.
    """

    def __init__(
        self,
        program: Program,
        folder: Path,
        *,
        faulty: bool,
        traced: bool,
        python: str = "",
        nccl: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.program = program
        self.nccl = nccl
        self.home = Path(tempfile.mkdtemp(prefix=f"corpus-{program.name}-"))
        self.rings = Path(tempfile.mkdtemp(prefix=f"corpus-{program.name}-", dir="/dev/shm"))
        folder.mkdir(parents=True, exist_ok=True)
        self.output = folder / "output.txt"
        path = os.pathsep.join(str(ROOT / part) for part in ("", "analyzers", "patches"))
        environment = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self.home),
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        # Modules that no run before this one has compiled are compiled once, not by each rank.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        interpreter = python or sys.executable
        mode = "faulty" if faulty else "healthy"
        source = [str(SOURCES / program.folder / f"{program.name}.py")]
        if nccl:
            if not program.chooses_backend:
                source = [str(LAUNCHER.with_name("on_nccl.py")), *source]
            environment |= {"NCCL_NVLS_ENABLE": "0", SHARED: "1"}
            if os.sep in nccl:
                environment["LD_PRELOAD"] = nccl
        environment |= variables or {}
        if program.launch == "torchrun":
            launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(program.world)]
            launch += ["--master-port", environment["MASTER_PORT"], *source, mode]
        else:
            launch = [str(LAUNCHER), str(program.world), *source, mode]
        prefix = []
        if traced:
            before = os.environ.get("PYTHONPATH")
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (path, before)))
            prefix = [interpreter, "-m", "ncclscope", "run", "--dir", str(self.rings), "--"]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*prefix, interpreter, *launch],
                env=environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.ranks: dict[int, psutil.Process] = {}

    def find_ranks(self) -> dict[int, psutil.Process]:
        """Return the ranks that have been started, by rank."""
        if len(self.ranks) < self.program.world:
            with contextlib.suppress(psutil.Error):
                started = psutil.Process(self.process.pid).children(recursive=True)
                for process in started:
                    with contextlib.suppress(psutil.Error):
                        rank = process.environ().get("RANK")
                        parent = process.parent()
                        if rank and parent and "RANK" not in parent.environ():
                            self.ranks.setdefault(int(rank), process)
        return self.ranks

    @property
    def pids(self) -> list[int]:
        """Process ids of the living ranks, in their order."""
        ranks = sorted(self.find_ranks().items())
        return [process.pid for _, process in ranks if _lives(process)]

    def positions(self) -> dict[str, int]:
        """Return the number of records in each ring."""
        found = {}
        for path in sorted(self.rings.glob(f"*{layout.SUFFIX}")):
            with contextlib.suppress(Exception):  # not written far enough yet
                found[path.name] = RingFile(path).head
        return found

    def wait(self, seconds: float = 12.0, limit: float = 300.0) -> str:
        """Wait until no rank of the job moves.

        Args:
            seconds: For how long it has to.
            limit: After which it is given up.

        Returns:
            `STILL`, `ENDED` when all ranks have ended, or `MOVING` at the limit.
        """
        if not self.program.hangs:
            limit = 40.0
        if self.nccl:
            return self._wait_for_records(2 * seconds, min(limit, 100.0))
        begun = time.monotonic()
        seen: deque[tuple[float, dict[int, float], object]] = deque()
        while time.monotonic() - begun < limit:
            if self.process.poll() is not None:
                return ENDED
            now, times = time.monotonic(), self._times()
            positions = (self.positions(), self._active())
            if len(self.ranks) == self.program.world:
                while seen and (
                    seen[-1][1].keys() != times.keys()
                    or seen[-1][2] != positions
                    or any(spent - seen[0][1][rank] > _ACTIVE for rank, spent in times.items())
                ):
                    seen.popleft()
                seen.append((now, times, positions))
                if now - seen[0][0] >= seconds:
                    return STILL
            time.sleep(_POLL)
        return MOVING

    def _wait_for_records(self, seconds: float, limit: float) -> str:
        """Wait until no rank records anything any more: one that waits for a GPU uses its core."""
        begun = since = time.monotonic()
        seen: dict[str, int] = {}
        while time.monotonic() - begun < limit:
            if self.process.poll() is not None:
                return ENDED
            positions = self.positions()
            if positions != seen or len(self.find_ranks()) < self.program.world or not positions:
                seen, since = positions, time.monotonic()
            if time.monotonic() - since >= seconds:
                return STILL
            time.sleep(_POLL)
        return MOVING

    def _times(self) -> dict[int, float]:
        """Return for how long each living rank's main thread, and its children's, used a core.

        Seconds that they waited for one are counted as well, once it was given to them.
        """
        found = {}
        for rank, process in self.find_ranks().items():
            with contextlib.suppress(psutil.Error):
                if rank not in self.program.busy and _lives(process):
                    family = [process, *process.children(recursive=True)]
                    found[rank] = sum(_time_of(member) for member in family)
        return found

    def _active(self) -> set[object]:
        """Return what the ranks have started, and a new object if one runs, waits to or reads."""
        found: set[object] = set()
        for rank, process in self.find_ranks().items():
            with contextlib.suppress(psutil.Error):
                family = [process, *process.children(recursive=True)]
                found.update(member.pid for member in family)
                if rank not in self.program.busy and any(
                    member.status() in _RUNS for member in family
                ):
                    found.add(object())
        return found

    def kill(self) -> None:
        """End all processes of the job at once with SIGKILL."""
        children = []
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self.process.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in children:  # workers of torchrun have sessions of their own
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait(30)
        psutil.wait_procs(children, timeout=30)

    def end(self) -> None:
        """Kill what still runs and remove what it has left."""
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.rmtree(self.rings, ignore_errors=True)


@contextlib.contextmanager
def running(
    program: Program,
    folder: Path,
    *,
    faulty: bool,
    traced: bool,
    python: str = "",
    nccl: str = "",
    variables: Mapping[str, str] | None = None,
) -> Iterator[Job]:
    """Run a program for as long as it is needed."""
    job = Job(
        program,
        folder,
        faulty=faulty,
        traced=traced,
        python=python,
        nccl=nccl,
        variables=variables,
    )
    try:
        yield job
    finally:
        job.end()


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _time_of(process: psutil.Process) -> float:
    with contextlib.suppress(OSError):
        ran, waited, _ = Path(f"/proc/{process.pid}/schedstat").read_text().split()
        return (int(ran) + int(waited)) / 1e9
    return 0.0
