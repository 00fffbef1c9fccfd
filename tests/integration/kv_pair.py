"""Two vLLM servers on the CPU, one for prefill and one for decode, joined by the NIXL connector."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from ncclscope import open_run
from ncclscope.launch.rank_process import free_port
from ncclscope.model import Transfer
from tests.integration.tiny_moe import write_checkpoint
from tests.integration.vllm_server import TINY_QWEN3_MOE, VllmServer

__all__ = ["NCCLSCOPE", "PATIENCE_SECONDS", "TOKENS", "Document", "KvPair", "ask", "wait_for"]

NCCLSCOPE = [sys.executable, "-m", "ncclscope"]
START_SECONDS = 600.0
PATIENCE_SECONDS = 120.0
TOKENS = 6
BLOCK_SIZE = 32
PLUGINS = tuple(map(Path(__file__).with_name, ("vllm_polling", "vllm_transfer_timing")))
POLLING_SECONDS = 0.5
POLLING_PRIORITY = 15
Document = dict[str, Any]
CONFIG = {**TINY_QWEN3_MOE, "num_hidden_layers": 2}
ASKED: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class KvPair:
    """A prefill server and a decode server, traced, each with rings in a directory of its own.

    Args:
        directory: Where the files of both go.
        lease_seconds: Time for which prefill keeps blocks that nobody pulls.
        blocks: Number of KV blocks of the decode server; vLLM's choice by default.
        decode: Further options for the decode server.
        traced: Names of the servers that ncclscope records.
        transfer: Further settings of the connector, for both servers.
        gpus: The GPUs of prefill and of decode, as in ``CUDA_VISIBLE_DEVICES``; none on the CPU.
            Then a server has a worker for each.
    """

    def __init__(
        self,
        directory: Path,
        *,
        lease_seconds: int = 30,
        blocks: int | None = None,
        decode: Sequence[str] = (),
        traced: Sequence[str] = ("prefill", "decode", "other"),
        transfer: Mapping[str, Any] | None = None,
        gpus: tuple[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._gpus = dict(zip(("prefill", "decode"), gpus, strict=True)) if gpus else {}
        self._lease = lease_seconds
        self._traced = traced
        self._transfer = transfer or {}
        self._timing = directory / "timing"
        self._timing.mkdir(exist_ok=True)
        # One folder, since NIXL refuses to join models of different names.
        self._model = directory / "model"
        if not self._model.exists() and not gpus:  # on GPUs the weights are random, by one seed
            self._model.mkdir()
            write_checkpoint(self._model, CONFIG)
        self.engines = {name: f"{name}-{uuid.uuid4().hex[:8]}" for name in ("prefill", "decode")}
        limited = ["--num-gpu-blocks-override", str(blocks)] if blocks else []
        self.prefill = self._server(directory, "prefill", "kv_producer", self._model)
        more = [*limited, *decode]
        self.decode = self._server(directory, "decode", "kv_consumer", self._model, more)

    def _server(
        self, directory: Path, name: str, role: str, model: Path, more: Sequence[str] = ()
    ) -> VllmServer:
        folder = directory / name
        folder.mkdir(exist_ok=True)
        transfer = {
            "kv_connector": "NixlConnector",
            "kv_role": role,
            "kv_buffer_device": "cuda" if self._gpus else "cpu",
            "engine_id": self.engines[name],
            "kv_connector_extra_config": {"kv_lease_duration": self._lease},
            **self._transfer,
        }
        given, environment = self._on_gpus(name) if self._gpus else self._on_cpu()
        environment |= {
            "VLLM_NIXL_ABORT_REQUEST_TIMEOUT": str(self._lease),  # before vLLM 0.30
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
            "NCCLSCOPE_TEST_TIMING": str(self._timing),
            "PYTHONPATH": os.pathsep.join(
                filter(None, (*map(str, PLUGINS), os.getenv("PYTHONPATH")))
            ),
        }
        return VllmServer(
            folder,
            model=model,
            prefix=[*NCCLSCOPE, "run", "--dir", str(folder / "rings"), "--"]
            if name in self._traced
            else [],
            environment=environment,
            arguments=[
                *given.pop("arguments", ()),
                *("--block-size", str(BLOCK_SIZE)),
                *("--distributed-executor-backend", "mp"),
                *("--kv-transfer-config", json.dumps(transfer)),
                *more,
            ],
            **given,
        )

    def _on_cpu(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Return options and environment of a server on the CPU."""
        environment = {
            "UCX_TLS": "tcp,sm,self",
            # Bound to one processor, threads of vLLM and UCX that poll keep others from it.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
        }
        return {"tensor_parallel_size": 1, "checkpoint": True, "config": CONFIG}, environment

    def _on_gpus(self, name: str) -> tuple[dict[str, Any], dict[str, str]]:
        """Return options and environment of a server on its GPUs."""
        from tests.gpu.deployment import options

        devices = self._gpus[name]
        given = options(eager=True, shape=(devices.count(",") + 1, 1), memory=0.3, shared=True)
        environment = given.pop("environment") | {"CUDA_VISIBLE_DEVICES": devices}
        return given, environment

    def __enter__(self) -> KvPair:
        with ThreadPoolExecutor(2) as pool:
            both = [self.prefill, self.decode]
            started = [pool.submit(one.start, START_SECONDS) for one in both]
        try:
            for one in started:
                one.result()
            for server in both:
                _yield_processors(server)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.prefill.stop()
        self.decode.stop()

    @contextlib.contextmanager
    def other(
        self, directory: Path, *options: str, role: str = "kv_consumer", renamed: bool = False
    ) -> Iterator[tuple[VllmServer, Path]]:
        """Run a further server; yield it and its rings.

        Args:
            directory: Where its files go.
            *options: Further options.
            role: Its role in transfers.
            renamed: Whether its model has another name, so that NIXL takes it for another model.
        """
        self.engines["other"] = f"other-{uuid.uuid4().hex[:8]}"
        model = self._model
        if renamed:
            model = directory / "another"
            model.symlink_to(self._model)
        server = self._server(directory, "other", role, model, options)
        with self._paused():  # the threads of UCX that poll would have the processors
            server.start(START_SECONDS)
        _yield_processors(server)
        try:
            yield server, directory / "other" / "rings"
        finally:
            server.stop()

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        """Stop the workers of both servers, which have nothing to do meanwhile."""
        workers = [*self.prefill.worker_pids(), *self.decode.worker_pids()]
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGCONT)

    @property
    def rings(self) -> list[Path]:
        """Return the directories of both servers' rings."""
        return [self.directory / name / "rings" for name in ("prefill", "decode")]

    def recording(self) -> tuple[float, int]:
        """Return the processor seconds of all processes for recording transfers, and the calls."""
        found = [path.read_text().split() for path in self._timing.iterdir()]
        return sum(int(one[0]) for one in found) / 1e9, sum(int(one[1]) for one in found)

    def prefilled(self, prompt: Sequence[int], server: VllmServer | None = None) -> Document:
        """Have the prompt prefilled; return the parameters of the transfer for decode."""
        answer = (server or self.prefill).answer(
            prompt, 1, PATIENCE_SECONDS, kv_transfer_params=ASKED
        )
        parameters: Document = answer["kv_transfer_params"]
        return parameters

    def decoded(
        self,
        prompt: Sequence[int],
        parameters: Mapping[str, Any],
        server: VllmServer | None = None,
    ) -> list[int]:
        """Return the tokens that decode generates from prefill's blocks."""
        tokens: list[int] = (server or self.decode).choice(
            prompt, TOKENS, PATIENCE_SECONDS, kv_transfer_params=dict(parameters)
        )["token_ids"]
        return tokens

    @contextlib.contextmanager
    def asked(
        self, prompt: Sequence[int], parameters: Mapping[str, Any]
    ) -> Iterator[Future[list[int]]]:
        """Ask decode for an answer, which may not come, and go on when its request has arrived."""
        number = parameters["remote_request_id"]
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(self.decoded, prompt, parameters)
            wait_for(lambda: any(one.id == number for one in self.ends("recv")))
            yield answer

    def join(self) -> None:
        """Have the engines shake hands, and complete a transfer before its lease ends.

        vLLM waits only 5 s for the handshake, and a busy machine may take longer than the lease.
        """
        for first in range(5, 10):  # what decode has in its cache is not transferred again
            prompt = list(range(first, first + 100))
            given = self.prefilled(prompt)
            try:
                self.decoded(prompt, given)
            except RuntimeError as error:
                failed = str(error)
                continue
            failed = "read after its lease"
            if self._final_state(given["remote_request_id"]) == "completed":
                return
        raise AssertionError(f"no transfer was completed in time: {failed}")

    def _final_state(self, number: str) -> str:
        """Wait until the sending end of a transfer has ended, and return its state."""
        found: list[str] = []

        def has_ended() -> bool:
            found[:] = [one.state for one in self.ends("send") if one.id == number and one.ended]
            return bool(found)

        wait_for(has_ended)
        return found[0]

    def ends(self, direction: str) -> list[Transfer]:
        """Return all ends in this direction that the rings hold."""
        processes = open_run(*filter(Path.exists, self.rings)).processes
        return [one for each in processes for one in each.transfers if one.direction == direction]

    def stalled(self, document: Document) -> Document:
        """Return a verdict on a transfer; check what each names: request, engine, since when."""
        verdict: Document = document["verdict"]
        assert verdict["kind"] == "transfer_stalled", document["summary"]
        assert verdict["transfer"]["request"] in verdict["summary"]
        assert self.engines["prefill"] in f"{verdict['summary']} {verdict['evidence']}"
        assert verdict["transfer"]["waited_seconds"] >= 0
        return verdict

    def kill_prefill(self) -> list[int]:
        """Kill all processes of the prefill server; return their PIDs."""
        pids = self.prefill.pids()
        gone = [psutil.Process(pid) for pid in pids]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        psutil.wait_procs(gone, timeout=10)
        return pids

    def prefill_has_ended(self, document: Document) -> Document:
        """Return a verdict on a transfer; check that it says that the sending engine has ended."""
        verdict = self.stalled(document)
        assert f"the sending engine {self.engines['prefill']}" in verdict["summary"]
        assert "has ended" in verdict["summary"]
        return verdict

    def diagnose(self, *options: str) -> tuple[int, Document]:
        """Return exit status and document of `ncclscope diagnose` of both directories."""
        return ask("diagnose", *map(str, self.rings), *options)


def ask(*words: str, timeout: float = 240.0) -> tuple[int, Document]:
    """Return exit status and document of an ncclscope command, given ``--json``."""
    done = subprocess.run(
        [*NCCLSCOPE, *words, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def wait_for(condition: Callable[[], bool]) -> None:
    """Return when the condition holds; fail if it does not in two minutes."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _yield_processors(server: VllmServer) -> None:
    """Lower the priority of the threads by which UCX polls without a pause, one for each worker.

    On two processors they delay all other processes, so that requests take seconds to minutes.
    """
    for pid in server.worker_pids():
        for one in psutil.Process(pid).threads():
            if one.id != pid and one.system_time > POLLING_SECONDS:
                os.setpriority(os.PRIO_PROCESS, one.id, POLLING_PRIORITY)
