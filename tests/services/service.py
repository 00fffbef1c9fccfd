"""A real vLLM service, traced or not, with the means to plant a fault in any of its processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.integration.traced_server import FAULT_PLUGIN
from tests.integration.vllm_server import VllmServer

__all__ = ["PROMPT", "SERVER", "Service"]

SERVICE_PLUGIN = Path(__file__).with_name("vllm_service_fault")
PROMPT = [1, 2, 3, 4]
SERVER = "API server"
_FOR_EVER = 600.0


class OfflineEngine(VllmServer):
    """A program without a server, which generates offline.

    Args:
        directory: Where its files go.
        prefix: A command to run it under.
        **options: Those of `VllmServer`.
    """

    def __init__(self, directory: Path, *, prefix: Sequence[str] = (), **options: Any) -> None:
        super().__init__(directory, prefix=prefix, **options)
        self._ready = directory / "ready"
        program = str(Path(__file__).with_name("offline.py"))
        self._command = [*prefix, sys.executable, program, str(self.model), str(self._ready)]

    def complete(self, *_: Any, **__: Any) -> list[int]:
        """Return nothing: the program has generated once when it is ready."""
        return []

    def _healthy(self) -> bool:
        return self._ready.exists()


class Service:
    """One service.

    Args:
        directory: Where its files go.
        traced: Whether `ncclscope run` starts it.
        options: Of `VllmServer`; `{directory}` in an argument becomes that directory.
        environment: Variables of the server.
    """

    def __init__(
        self,
        directory: Path,
        *,
        traced: bool,
        options: Mapping[str, Any],
        environment: Mapping[str, str],
    ) -> None:
        self.traced = traced
        self.rings = directory / "rings"
        self.switch = directory / "fault"
        run = [sys.executable, "-m", "ncclscope", "run", "--no-explain", "--dir", str(self.rings)]
        inherited = filter(None, [os.environ.get("PYTHONPATH")])
        self._kept: list[object] = []
        self._clients: list[threading.Thread] = []
        self._api_server: psutil.Process | None = None
        options = dict(options)
        options["arguments"] = [
            word.replace("{directory}", str(directory)) for word in options.get("arguments", ())
        ]
        self.server = (OfflineEngine if options.pop("offline", False) else VllmServer)(
            directory,
            prefix=[*run, "--"] if traced else [],
            environment={
                "NCCLSCOPE_TEST_FAULT": str(self.switch),
                "PYTHONPATH": os.pathsep.join([str(SERVICE_PLUGIN), str(FAULT_PLUGIN), *inherited]),
                "VLLM_SERVER_DEV_MODE": "1",
                **environment,
            },
            **options,
        )

    def plant(self, fault: str) -> None:
        """Let the part that the fault concerns apply it; the switch file appears whole."""
        draft = self.switch.with_suffix(".draft")
        draft.write_text(fault)
        draft.rename(self.switch)

    def ask(self, max_tokens: int = 200, *, timeout: float = _FOR_EVER, **more: Any) -> None:
        """Send a request, and leave it to itself."""
        self.leave(lambda: self.server.answer(PROMPT, max_tokens, timeout, **more))

    def post(self, path: str, body: object = None) -> None:
        """Send a POST request to a path of the server, and leave it to itself."""
        self.leave(lambda: self.posted(path, body))

    def posted(self, path: str, body: object = None, timeout: float = _FOR_EVER) -> None:
        """Send such a request, and wait for the answer."""
        request = urllib.request.Request(
            self.server.url + path,
            data=json.dumps(body or {}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout):
            pass

    def load(self, clients: int, seconds: float, *, tokens: int) -> None:
        """Let clients send one request after the other for some seconds."""
        self.repeat(clients, seconds, lambda: self.server.complete(PROMPT, tokens))

    def repeat(self, clients: int, seconds: float, call: Callable[[], object]) -> None:
        """Let clients repeat a call for some seconds."""
        deadline = time.monotonic() + seconds

        def again() -> None:
            while time.monotonic() < deadline:
                call()

        for _ in range(clients):
            self.leave(again)

    def keep(self, thing: object) -> None:
        """Keep a thing, such as a connection, as long as the service."""
        self._kept.append(thing)

    def leave(self, call: Callable[[], object]) -> None:
        """Run a call in a thread that nobody waits for."""

        def run() -> None:
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                call()

        client = threading.Thread(target=run, daemon=True)
        client.start()
        self._clients.append(client)

    @property
    def waiting(self) -> int:
        """How many clients wait for an answer."""
        return sum(client.is_alive() for client in self._clients)

    def processes(self) -> dict[str, int]:
        """Return the process ids of all that vLLM runs, by title."""
        titled = {title.removeprefix("VLLM::"): pid for title, pid in self._titles()}
        for title, pid in titled.items():
            # The one that started the engines: a helper of `ncclscope run` has its command line.
            if title.startswith("EngineCore") and self._api_server is None:
                self._api_server = psutil.Process(pid).parent()
        if self._api_server and self._api_server.is_running():
            titled[SERVER] = self._api_server.pid
        return titled

    def pid(self, title: str) -> int:
        """Return the process id of the first process whose title begins so."""
        processes = self.processes()
        return processes[min(each for each in processes if each.startswith(title))]

    def signal(self, title: str, number: signal.Signals) -> None:
        """Send a signal to that process."""
        os.kill(self.pid(title), number)

    def kill(self) -> None:
        """End all processes of the service at once, as a host does that goes down."""
        pids = self.processes().values()
        gone = [psutil.Process(pid) for pid in pids]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        psutil.wait_procs(gone, timeout=10)

    def _titles(self) -> Iterator[tuple[str, int]]:
        yield from self.server._titled("VLLM::").items()
