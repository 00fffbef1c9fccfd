"""Messages where reading a process is not allowed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclscope.attach import environment
from ncclscope.attach.environment import permission_help
from ncclscope.attach.stacks import PySpy, find_py_spy

NOBODY = 65534


@pytest.fixture
def unprivileged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "has_ptrace_capability", lambda: False)
    monkeypatch.setattr(environment, "is_container", lambda: False)
    monkeypatch.setattr(environment, "ptrace_scope", lambda: None)


@pytest.mark.usefixtures("unprivileged")
@pytest.mark.parametrize("scope", [1, 2])
def test_yama_is_named(scope: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "ptrace_scope", lambda: scope)
    assert "sysctl kernel.yama.ptrace_scope=0" in permission_help([os.getpid()])


@pytest.mark.usefixtures("unprivileged")
def test_in_a_container_the_hint_names_the_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "is_container", lambda: True)
    assert "--cap-add SYS_PTRACE" in permission_help([os.getpid()])


@pytest.mark.usefixtures("unprivileged")
def test_other_peoples_processes_are_named_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "is_container", lambda: True)
    monkeypatch.setattr(os, "geteuid", lambda: os.stat("/proc/self").st_uid + 1)
    assert "another user" in permission_help([os.getpid()])


def test_who_may_read_everything_needs_no_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "has_ptrace_capability", lambda: True)
    assert permission_help([os.getpid()]) == ""


@pytest.fixture
def of_root() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(1000)"],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_refusal_is_a_sentence(of_root: int, tmp_path: Path) -> None:
    program = find_py_spy()
    assert program is not None
    as_nobody = tmp_path / "py-spy"
    drop = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups"
    as_nobody.write_text(f'#!/bin/sh\nexec {drop} {program} "$@"\n')
    as_nobody.chmod(0o755)
    if subprocess.run(f"{drop} {program} --version", shell=True, capture_output=True).returncode:
        pytest.skip("py-spy lies where nobody may run it")

    stacks = PySpy(str(as_nobody)).read_one(of_root)

    assert stacks.error == "no permission to read its memory"
