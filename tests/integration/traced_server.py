"""A vLLM server under `ncclscope run`, and the switch that makes one worker diverge."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.integration.vllm_server import VllmServer

NCCLSCOPE = [sys.executable, "-m", "ncclscope"]
FAULT_PLUGIN = Path(__file__).with_name("vllm_fault")


class TracedServer:
    """One traced server.

    Args:
        directory: Where its files go.
        rings: Where its rings go; by default below the directory.
        environment: Variables for the server.
        **options: Those of :class:`VllmServer`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        rings: Path | None = None,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.rings = rings or directory / "rings"
        self.switch = directory / "fault"
        search = [str(FAULT_PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.server = VllmServer(
            directory,
            prefix=[*NCCLSCOPE, "run", "--dir", str(self.rings), "--"],
            environment={
                "NCCLSCOPE_TEST_FAULT": str(self.switch),
                "PYTHONPATH": os.pathsep.join(search),
                **(environment or {}),
            },
            **options,
        )

    def plant(self, fault: str) -> None:
        """Make one worker apply the fault to its next collective; the switch file appears whole."""
        draft = self.switch.with_suffix(".draft")
        draft.write_text(fault)
        draft.rename(self.switch)

    def diagnose(self) -> tuple[int, dict[str, Any]]:
        """Return exit status and document of `ncclscope diagnose --json`."""
        command = [*NCCLSCOPE, "diagnose", str(self.rings), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        return done.returncode, json.loads(done.stdout)

    def attach(self) -> tuple[int, dict[str, Any]]:
        """Return exit status and document of `ncclscope attach --json`, given all its processes.

        The engine cores and the coordinator are among them, as in the list that ps prints.
        """
        pids = map(str, self.server.pids())
        command = [*NCCLSCOPE, "attach", "--json", *pids]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, json.loads(done.stdout)

    @contextlib.contextmanager
    def watching(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """Run `ncclscope watch --json` on the rings, which need not be there yet."""
        watch = subprocess.Popen(
            [*NCCLSCOPE, "watch", str(self.rings), "--json", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield watch
        finally:
            watch.kill()
            watch.communicate()

    def kill_workers(self) -> list[int]:
        """Send SIGKILL to the workers and wait for their end; return their process ids."""
        pids = self.server.worker_pids()
        _kill(pids)
        return pids

    def kill_all(self) -> list[int]:
        """Send SIGKILL to all that records, the engines first; return the workers' process ids.

        An engine that outlived its workers would note that it waits for them no longer.
        """
        pids = self.server.worker_pids()
        _kill([*set(self.server.pids()) - set(pids), *pids])
        return pids


def _kill(pids: Sequence[int]) -> None:
    """Kill processes that would end by themselves, and say so, when they miss one another."""
    processes = [psutil.Process(pid) for pid in pids]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    psutil.wait_procs(processes, timeout=10)
