"""Ranks of a torch program, as real processes over gloo, with probes that write real rings.

A test module is its own program: started with the name of one of its functions, it runs that
function as one rank. What the ranks recorded is then read back by the test:

    def exchange(rank: int) -> None: ...

    def test_exchange(rings: Path) -> None:
        run = run_ranks(__file__, "exchange", rings)

    if __name__ == "__main__":
        main(globals())
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ncclscope import open_run
from ncclscope.launch.rank_process import free_port
from ncclscope.model import Call, Rank, Run
from tests.support import fork_server

ROOT = Path(__file__).resolve().parents[2]
SIZE = 2
TORCH = tuple(map(int, version("torch").split(".")[:2])) if find_spec("torch") else ()
"""Of torch 2.6, the oldest that is supported, gloo and the fake group lack some calls."""


def run_ranks(
    file: str,
    function: str,
    rings: Path,
    *,
    size: int = SIZE,
    environment: Mapping[str, str] | None = None,
    timeout: float = 100.0,
    interpreters: Container[int] = (),
    preload: Sequence[str] | None = None,
) -> Run:
    """Run a function of a test module on all ranks at once, and read what they recorded.

    Args:
        file: The test module.
        function: Its function, which is called with the rank.
        rings: Directory of the rings.
        size: Number of ranks.
        environment: Variables on top of the test's own.
        timeout: Seconds for each rank.
        interpreters: Ranks that are new interpreters, in which the probes wait for torch.
        preload: Modules that the ranks have imported before; None for torch.

    Raises:
        AssertionError: A rank failed; the message is what it wrote.
    """
    processes = [
        start(
            file,
            function,
            {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "MEETING_POINT": str(rings / "store"),
                "NCCLSCOPE_DIR": str(rings),
                **(environment or {}),
            },
            interpreter=rank in interpreters,
            preload=preload,
        )
        for rank in range(size)
    ]
    try:
        output = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:  # what it wrote was not read if a rank hung
                process.stdout.close()
    for process, text in zip(processes, output, strict=True):
        assert process.returncode == 0, text
    return open_run(rings)


def start(
    file: str,
    function: str,
    environment: Mapping[str, str],
    *,
    interpreter: bool = False,
    preload: Sequence[str] | None = None,
) -> subprocess.Popen[str] | fork_server.Popen:
    """Start one process that runs a function of a test module.

    It is a fork of a process that has imported torch, unless it has to be a new interpreter.

    Args:
        file: The test module.
        function: Its function.
        environment: Variables on top of the test's own.
        interpreter: Whether it has to be a new interpreter.
        preload: Modules that the process it is a fork of has imported; None for torch.
    """
    path = [str(ROOT), str(ROOT / "patches"), str(ROOT / "analyzers")]
    popen: Any = subprocess.Popen if interpreter else partial(fork_server.Popen, preload=preload)
    process: subprocess.Popen[str] | fork_server.Popen = popen(
        [sys.executable, file, function],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return process


def meeting(rings: Path, size: int) -> dict[str, str]:
    """Return the variables of a job whose ranks meet at a port of their own, and record there."""
    return {
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "MEETING_POINT": str(rings / "store"),
        "NCCLSCOPE_DIR": str(rings),
        "TORCHELASTIC_RUN_ID": "",
    }


def main(functions: Mapping[str, Callable[[int], None]]) -> None:
    """Run the function that the command line names, with the probes waiting for torch."""
    from ncclscope_patches import registry

    registry.install_all()
    functions[sys.argv[1]](int(os.environ.get("RANK", "0")))
    # Torch aborts now and then where gloo's threads outlive the interpreter, destroyed or not.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def join() -> Any:
    """Import torch, join the group of all ranks, and return ``torch.distributed``."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=f"file://{os.environ['MEETING_POINT']}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    return dist


def calls(rank: Rank, label: str = "world") -> Sequence[Call]:
    """Return the collectives that a rank recorded on the communicator of that name."""
    (log,) = [log for log in rank.logs.values() if log.communicator.label == label]
    return log.span(1, log.calls + 1)


def messages(rank: Rank, label: str = "world") -> Sequence[Call]:
    """Return the sends and receives that a rank recorded on the communicator of that name."""
    (key,) = [key for key, log in rank.logs.items() if log.communicator.label == label]
    return rank.p2p.get(key, ())


def fields(call: Call, *names: str) -> tuple[Any, ...]:
    """Return some fields of a call."""
    return tuple(getattr(call, name) for name in names)
