"""A real vLLM server on the CPU, small enough for a test.

Two tensor-parallel workers, dummy weights, token ids in and out: no model, no tokenizer and no
network. The weights depend on nothing but the seed and the shape, so two servers with the same
number of workers answer the same prompt with the same tokens; with a checkpoint, all servers do.

    with VllmServer(tmp_path, prefix=["ncclscope", "run", "--dir", str(rings), "--"]) as server:
        tokens = server.complete([1, 2, 3], max_tokens=8)

A hung vLLM ignores SIGTERM and leaves shared memory behind when it is killed. The server is
therefore started in a session of its own: whatever is in that session is ended with it, and the
shared memory that those processes had mapped is removed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPResponse
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from ncclscope.launch.rank_process import free_port
from tests.integration.tiny_moe import write_checkpoint, write_tokenizer

SHARED_MEMORY = Path("/dev/shm")
FORKING = Path(__file__).with_name("vllm_forking")
POLL_SECONDS = 0.2
VOCABULARY_SIZE = 512

# A head has 32 values because vLLM's CPU attention has no kernel for fewer.
TINY_QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "vocab_size": VOCABULARY_SIZE,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "hidden_act": "silu",
    "attention_bias": False,
    "initializer_range": 0.02,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class VllmServer:
    """One `vllm` OpenAI server with its engine and workers, from start to the last trace of it.

    Args:
        directory: An existing directory for the model's configuration and the log.
        tensor_parallel_size: Number of workers of a replica.
        data_parallel_size: Number of replicas, each with an engine of its own.
        checkpoint: Serve weights that are the same for every number of workers.
        tokenizer: Give it one, whose words are `w0`, `w1` and so on.
        eager: False for vLLM's default, torch.compile, which takes some 10 to 40 s longer to start.
        prefix: A command to run the server under, such as `["ncclscope", "run", "--"]`.
        environment: Variables set for the server on top of the test's own.
        arguments: Further options for the server; they win over those it is given anyway.
        config: The model's configuration.
        prepare: Called with the model's folder last of all; it may write other files.
        model: The model's folder, for servers that share one; below the directory by default.
        forks: Whether engines and workers are forks of the server; False for vLLM's own way on the
            CPU, which imports vLLM in each of them and takes three times as long to start.
    """

    def __init__(
        self,
        directory: Path,
        *,
        tensor_parallel_size: int = 2,
        data_parallel_size: int = 1,
        checkpoint: bool = False,
        tokenizer: bool = False,
        eager: bool = True,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        config: Mapping[str, Any] = TINY_QWEN3_MOE,
        prepare: Callable[[Path], None] | None = None,
        model: Path | None = None,
        forks: bool = True,
    ) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._tokenizer = tokenizer
        self._prepare = prepare
        self.log_path = directory / "server.log"
        self.model = model or directory / "tiny-moe"
        self._port = free_port()
        self._command = [
            *prefix,
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(self.model), "--served-model-name", "tiny-moe"),
            *("--host", "127.0.0.1", "--port", str(self._port)),
            *("--tensor-parallel-size", str(tensor_parallel_size)),
            *(["--data-parallel-size", str(data_parallel_size)] if data_parallel_size > 1 else []),
            *(["--load-format", "dummy"] if not checkpoint else []),
            *([] if tokenizer else ["--skip-tokenizer-init"]),
            *("--dtype", "float32"),
            *("--max-model-len", "256", "--max-num-seqs", "8", "--seed", "0"),
            *(["--enforce-eager"] if eager else []),
            *arguments,
        ]
        self._environment = _server_environment(tensor_parallel_size * data_parallel_size) | dict(
            environment or {}
        )
        if forks:
            search = [str(FORKING), *filter(None, [self._environment.get("PYTHONPATH")])]
            # A fork has read OpenMP's variables before vLLM sets them for each worker.
            self._environment |= {"PYTHONPATH": os.pathsep.join(search), "OMP_NUM_THREADS": "1"}
        self._process: subprocess.Popen[bytes] | None = None
        self._shared_memory_before: frozenset[Path] = frozenset()
        self._shared_memory: set[Path] = set()

    def __enter__(self) -> VllmServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, timeout: float = 240.0) -> None:
        """Start the server and return when it is healthy.

        Raises:
            RuntimeError: The server ended instead; the message holds the end of its log.
            TimeoutError: It was not healthy in time; likewise.
        """
        if self.model.exists():
            pass  # another server has written it
        elif self._checkpoint:
            self.model.mkdir()
            write_checkpoint(self.model, self._config)
        else:
            self.model.mkdir()
            (self.model / "config.json").write_text(json.dumps(self._config, indent=2))
        if self._tokenizer:
            write_tokenizer(self.model, VOCABULARY_SIZE)
        if self._prepare is not None:
            self._prepare(self.model)
        self._shared_memory_before = frozenset(SHARED_MEMORY.iterdir())
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_until_healthy(self._process, timeout)
        except BaseException:
            self.kill()
            raise

    def complete(
        self,
        prompt_ids: Sequence[int],
        max_tokens: int,
        timeout: float = 60.0,
        *,
        replica: int | None = None,
    ) -> list[int]:
        """Return the ids of the `max_tokens` most likely tokens after the prompt.

        Args:
            prompt_ids: The prompt.
            max_tokens: How many to generate.
            timeout: Seconds to wait for them.
            replica: Which one is to answer, by its data-parallel rank; by default vLLM chooses.

        Raises:
            TimeoutError: No answer in time, as from a hung engine.
            RuntimeError: The server refused; the message holds its answer.
        """
        token_ids: list[int] = self.choice(prompt_ids, max_tokens, timeout, replica=replica)[
            "token_ids"
        ]
        return token_ids

    def choice(
        self,
        prompt_ids: Sequence[int],
        max_tokens: int,
        timeout: float = 60.0,
        *,
        replica: int | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Return the whole first choice of such an answer.

        Args:
            prompt_ids: See :meth:`complete`, as the other arguments and exceptions.
            max_tokens: Likewise.
            timeout: Likewise.
            replica: Likewise.
            **more: Fields of the request, such as `vllm_xargs`.
        """
        choice: dict[str, Any] = self.answer(
            prompt_ids, max_tokens, timeout, replica=replica, **more
        )["choices"][0]
        return choice

    def answer(
        self,
        prompt_ids: Sequence[int] | Sequence[Sequence[int]],
        max_tokens: int,
        timeout: float = 60.0,
        *,
        replica: int | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """Return the whole of such an answer to one or several prompts; see :meth:`choice`."""
        body = {"prompt": list(prompt_ids), **more}
        with self._post("completions", body, max_tokens, timeout, replica) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def stream(
        self, prompt_ids: Sequence[int], max_tokens: int, timeout: float = 60.0, **more: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield the first choice of each chunk of a streamed answer; see :meth:`choice`."""
        body = {"prompt": list(prompt_ids), **more, "stream": True}
        with self._post("completions", body, max_tokens, timeout) as response:
            for chunk in _chunks(response):
                yield from chunk["choices"][:1]

    def chat(
        self, body: Mapping[str, Any], max_tokens: int, timeout: float = 60.0
    ) -> Iterator[dict[str, Any]]:
        """Yield the answer to a chat, or its chunks where the body asks for a stream."""
        with self._post("chat/completions", body, max_tokens, timeout) as response:
            yield from _chunks(response) if body.get("stream") else [json.load(response)]

    def _post(
        self,
        path: str,
        body: Mapping[str, Any],
        max_tokens: int,
        timeout: float,
        replica: int | None = None,
    ) -> HTTPResponse:
        whole = {
            "model": "tiny-moe",
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "return_token_ids": True,
            **body,
        }
        request = urllib.request.Request(
            f"{self.url}/v1/{path}",
            data=json.dumps(whole).encode(),
            headers={"Content-Type": "application/json"},
        )
        if replica is not None:
            request.add_header("X-data-parallel-rank", str(replica))
        try:
            response: HTTPResponse = urllib.request.urlopen(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")
            raise RuntimeError(f"vLLM answered {error.code}: {text}") from error
        return response

    def engine_pid(self) -> int:
        """Return the process id of the engine core."""
        (pid,) = self._titled("VLLM::EngineCore").values()
        return pid

    def pids(self) -> list[int]:
        """Return the process ids of all that vLLM has given a title: engines, workers, the rest."""
        return sorted(self._titled("VLLM::").values())

    def worker_pids(self) -> list[int]:
        """Return the process ids of the workers, by rank."""
        workers = self._titled("VLLM::Worker")
        return [workers[title] for title in sorted(workers)]

    @contextlib.contextmanager
    def stopped(self, title: str) -> Iterator[None]:
        """Stop the process with this title by a signal, and let it go on at the end."""
        (pid,) = self._titled(title).values()
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def wait(self, timeout: float) -> int:
        """Return the exit status of the server, once it has ended by itself.

        Raises:
            TimeoutError: It still runs.
        """
        assert self._process is not None
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"vLLM still runs:\n{self.log_tail()}") from None

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines that the server and its workers wrote."""
        text = self.log_path.read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def stop(self, timeout: float = 15.0) -> None:
        """Ask the server to end, then kill what is left. Does nothing the second time."""
        if self._process is not None:
            self._note_shared_memory()
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        self.kill()

    def kill(self, timeout: float = 15.0) -> None:
        """Send SIGKILL to everything the server started and remove the shared memory it leaves."""
        if self._process is None:
            return
        self._note_shared_memory()
        deadline = time.monotonic() + timeout
        trackers_deadline = time.monotonic() + timeout / 3
        while members := list(self._members()):
            for member in members:
                with contextlib.suppress(psutil.NoSuchProcess):
                    # A resource tracker that outlives its processes unlinks what they left, ends.
                    if not _is_resource_tracker(member) or time.monotonic() > trackers_deadline:
                        member.kill()
            if time.monotonic() > deadline:
                raise TimeoutError(f"still alive after SIGKILL: {members}")
            psutil.wait_procs(members, timeout=POLL_SECONDS)
        self._process.wait()
        self._process = None
        for path in self._shared_memory:
            path.unlink(missing_ok=True)

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._port}"

    def _wait_until_healthy(self, process: subprocess.Popen[bytes], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self._healthy():
            self._note_shared_memory()
            if process.poll() is not None:
                raise RuntimeError(
                    f"vLLM ended with status {process.returncode}:\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                raise TimeoutError(f"vLLM is not healthy after {timeout:g} s:\n{self.log_tail()}")
            time.sleep(POLL_SECONDS)
        self._note_shared_memory()

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5.0) as response:
                return bool(response.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False

    def _members(self) -> Iterator[psutil.Process]:
        """Yield the living processes of the server's session, whoever their parent is by now."""
        leader = self._process
        for process in psutil.process_iter() if leader is not None else ():
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if (
                    os.getsid(process.pid) == leader.pid
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    yield process

    def _titled(self, prefix: str) -> dict[str, int]:
        """Return the process ids of the members whose title begins so, by title."""
        titled = {}
        for member in self._members():
            with contextlib.suppress(psutil.NoSuchProcess):
                title = " ".join(member.cmdline()).strip()
                if title.startswith(prefix):
                    titled[title] = member.pid
        return titled

    def _note_shared_memory(self) -> None:
        """Remember the shared memory that the server's processes have mapped.

        Only what lies directly in /dev/shm and was not there before: rings live in directories of
        their own and are the test's to keep, and what other programs make meanwhile is theirs.
        """
        for member in self._members():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{member.pid}/maps").read_text().splitlines():
                    path = Path(line[line.find("/") :].removesuffix(" (deleted)"))
                    if path.parent == SHARED_MEMORY and path not in self._shared_memory_before:
                        self._shared_memory.add(path)


def _chunks(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield what a stream of server-sent events holds.

    Raises:
        RuntimeError: It holds an error; the message is that.
    """
    for line in response:
        if line.startswith(b"data: {"):
            chunk: dict[str, Any] = json.loads(line[len(b"data: ") :])
            if error := chunk.get("error"):
                raise RuntimeError(f"vLLM answered {error['code']}: {error['message']}")
            yield chunk


def _server_environment(workers: int) -> dict[str, str]:
    """Return the test's environment, its tracing and vLLM settings replaced by the server's."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NCCLSCOPE", "NCCL_SCOPE", "VLLM_"))
    }
    processors = itertools.cycle(sorted(os.sched_getaffinity(0)))
    return inherited | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(
            str(processor) for processor in itertools.islice(processors, workers)
        ),
        "VLLM_NO_USAGE_STATS": "1",
    }


def _is_resource_tracker(process: psutil.Process) -> bool:
    return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
