"""A collective's timeout is explained in the job's own log, without `ncclscope run`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ncclscope.tracing import session
from ncclscope_patches.startup import timeouts
from ncclscope_patches.startup.timeouts import AbortHook, explain_timeout
from tests.support.hosts import until
from tests.support.nodes import environment

JOB = """
import datetime, os, sys, threading, time
import torch
import torch.distributed as dist

rank, store, catches = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "catch"
if sys.argv[3] == "abort":
    from ncclscope_patches.startup import timeouts
    timeouts._is_nccl = lambda module, group: True  # this torch has no NCCL
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = f"{store}.dump"
dist.init_process_group(
    "gloo", init_method=f"file://{store}", rank=rank, world_size=3,
    timeout=datetime.timedelta(seconds=100 if sys.argv[3] == "abort" else 3),
)
tensor = torch.ones(4)
for _ in range(5):
    dist.all_reduce(tensor)
if rank == 1:
    sys.stdin.read()
    os._exit(0)
if sys.argv[3] == "abort":
    # As torch's NCCL watchdog does in a thread of C++: it dumps, gives others time, and aborts.
    def watchdog():
        time.sleep(3)
        with open(f"{store}.dump{rank}", "w") as dump:
            dump.write("dump")
        time.sleep(2)
        os.abort()
    threading.Thread(target=watchdog, daemon=True).start()
try:
    dist.all_reduce(tensor)
except RuntimeError:
    if not catches:
        raise
    print("caught", flush=True)
"""


def job(directory: Path, store: Path, mode: str) -> list[str]:
    """Run three ranks, of which rank 1 sleeps; return what ranks 0 and 2 wrote to stderr."""
    bootstrap = Path(session.__file__).parent / "bootstrap"
    variables = environment()
    variables["PYTHONPATH"] = f"{bootstrap}{os.pathsep}{variables['PYTHONPATH']}"
    variables["NCCLSCOPE_DIR"] = str(directory)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", JOB, str(rank), str(store), mode],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        said = []
        for rank in (0, 2):
            stderr = ranks[rank].stderr
            assert stderr is not None
            said.append(stderr.read())  # ends when the process that explains has ended, too
        return said
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["raise", "catch", "abort"])
def test_a_timeout_is_followed_by_the_verdict_once(rings: Path, tmp_path: Path, mode: str) -> None:
    said = "".join(job(rings, tmp_path / "store", mode))
    assert said.count("ncclscope: more: ") == 1, said
    # With a limit of 3 s it is no hang yet; the sentence is the same.
    assert re.search(r"Rank 1 \(.*\) never joined call 6 on world of ranks 0-2", said), said
    assert ("Traceback" in said) == (mode == "raise")


@pytest.fixture
def explained(monkeypatch: pytest.MonkeyPatch, rings: Path) -> list[str]:
    """The directories for which a verdict was asked."""
    asked: list[str] = []
    monkeypatch.setenv("NCCLSCOPE_DIR", str(rings))
    monkeypatch.setattr(timeouts, "explain_to", lambda _, where: asked.append(where))
    return asked


@pytest.mark.parametrize(
    ("error", "is_explained"),
    [
        (RuntimeError("Timed out waiting 3000ms for recv operation to complete"), True),
        (RuntimeError("Connection closed by peer [127.0.0.1]:29500"), False),
        (TimeoutError("timed out"), False),  # of a socket, a queue or a store of the program
    ],
)
def test_only_timeouts_of_collectives_are(
    explained: list[str], rings: Path, error: Exception, is_explained: bool
) -> None:
    explain_timeout(error)
    assert explained == ([str(rings)] if is_explained else [])


def test_nothing_more_is_said_where_ncclscope_run_explains(
    explained: list[str], rings: Path
) -> None:
    holds = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{holds}; print(flush=True); sys.stdin.read()", str(rings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as run:
        assert run.stdout is not None
        run.stdout.readline()
        explain_timeout(RuntimeError("Timed out"))
        run.kill()
    assert explained == []
    explain_timeout(RuntimeError("Timed out"))
    assert explained == [str(rings)]


class Group:
    """Replaces a group over NCCL; only those of torch 2.15 on `nccl2` have such hooks."""

    def __init__(self, supports: bool) -> None:
        self.supports_abort_hooks = supports
        self.hooks: dict[int, Callable[[], None]] = {}

    def rank(self) -> int:
        return 5

    def register_abort_hook(self, number: int, hook: Callable[[], None]) -> None:
        assert self.supports_abort_hooks, "other backends raise"
        self.hooks[number] = hook


def test_the_verdict_follows_the_dump_of_torchs_nccl_watchdog(
    explained: list[str], rings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "fr_"))
    (tmp_path / "fr_5").write_text("dump of an earlier job")
    group = Group(False)
    world = SimpleNamespace(pg_backend_config={group: "cpu:gloo,cuda:nccl"})
    module: Any = SimpleNamespace(
        _world=world,
        _new_process_group_helper=lambda: (group, None),
        is_initialized=lambda: False,
        is_nccl_available=lambda: True,
    )
    patch = AbortHook()
    patch.active = True
    patch.install(module)
    module._new_process_group_helper()
    module._new_process_group_helper()
    threads = [thread for thread in threading.enumerate() if thread.name == "ncclscope-dump"]
    assert len(threads) == 1
    time.sleep(1.0)
    assert explained == []
    (tmp_path / "fr_5").write_text("dump of this job: a timeout")
    until(lambda: explained == [str(rings)], "the verdict is asked for", 30)
    patch.revert()
    threads[0].join(30)
    assert not threads[0].is_alive()


def test_the_verdict_comes_before_the_watchdog_aborts(
    rings: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    groups = [Group(True), Group(False)]
    waiting = iter(groups)
    module: Any = SimpleNamespace(
        _new_process_group_helper=lambda: (next(waiting), None), is_nccl_available=lambda: False
    )
    patch = AbortHook()
    patch.active = True
    patch.install(module)
    for _ in groups:
        module._new_process_group_helper()
    (hook,) = groups[0].hooks.values()
    assert not groups[1].hooks
    monkeypatch.setenv("NCCLSCOPE_DIR", str(rings))
    monkeypatch.setattr(timeouts, "_ABORT_SECONDS", 60.0)
    hook()
    assert "ncclscope: no verdict: " in capfd.readouterr().err  # there is no ring
    monkeypatch.setenv("NCCLSCOPE_DIR", str(rings / "removed"))
    hook()  # raises nothing
    patch.revert()
