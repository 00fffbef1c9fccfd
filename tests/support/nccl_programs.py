"""Programs that use NCCL and no Python, on machines without a GPU.

A stand-in for libnccl (`tests/native/programs/libnccl_stand_in.c`) loads the profiler plugin and
calls it as libnccl does. The programs speak its commands, one a line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "ncclscope" / "native" / "src"
PLUGIN_SOURCES = [
    *(SOURCES / f"{name}.c" for name in ("ring", "comm", "text", "room", "file", "sign")),
    *SOURCES.glob("profiler*.c"),
]
PROGRAMS = ROOT / "tests" / "native" / "programs"
VERSIONS = (4, 5, 6, 7)
MASK, MASK_OF_4 = 0x604, 0x6
"""What the plugin asks NCCL for: collApi, p2pApi and p2p; in version 4 coll and p2p."""


class Built(NamedTuple):
    """Files that a test run has compiled.

    Attributes:
        plugin: The profiler plugin.
        library: The stand-in for libnccl.
        program: A program linked with it.
        folder: Where they are.
    """

    plugin: Path
    library: Path
    program: Path
    folder: Path

    def next_plugin(self, version: int) -> Path:
        """Return another plugin, which has only one version of the interface."""
        path = self.folder / f"libnccl-profiler-next{version}.so"
        if not path.exists():
            _compile("-shared", "-fPIC", f"-DVERSION={version}", PROGRAMS / "next_plugin.c", path)
        return path


def build(folder: Path) -> Built:
    """Compile the plugin from its sources, and what the tests run it with."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    plugin = folder / "libnccl-profiler-ncclscope.so"
    hidden = ("-fvisibility=hidden", "-Wl,-z,nodelete", "-Wl,-z,defs")
    _compile("-shared", "-fPIC", *hidden, *PLUGIN_SOURCES, plugin)
    library = folder / "libnccl_stand_in.so"
    _compile("-shared", "-fPIC", PROGRAMS / "libnccl_stand_in.c", library)
    program = folder / "nccl_program"
    _compile(PROGRAMS / "nccl_program.c", library, program)
    return Built(plugin, library, program, folder)


def _compile(*arguments: object) -> None:
    *given, output = map(str, arguments)
    flags = ("-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread")
    command = ["gcc", *flags, f"-I{SOURCES}", *given, "-o", output]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Program:
    """One running program.

    Args:
        built: What was compiled.
        variables: Environment on top of the test's own.
    """

    def __init__(self, built: Built, variables: Mapping[str, object]) -> None:
        self._process = subprocess.Popen(
            [built.program],
            env={**os.environ, **{name: str(value) for name, value in variables.items()}},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def send(self, *lines: str) -> None:
        """Send commands; the answers are not waited for."""
        assert self._process.stdin is not None
        self._process.stdin.writelines(f"{line}\n" for line in lines)
        self._process.stdin.flush()

    def ask(self, *lines: str) -> list[int]:
        """Send commands and return the program's answers: NCCL's mask after each."""
        assert self._process.stdout is not None
        answers = []
        for line in lines:
            self.send(line)
            answers.append(int(self._process.stdout.readline()))
        return answers

    def kill(self) -> None:
        """End it as the OOM killer would."""
        self._process.kill()
        self._process.communicate()

    def end(self, *lines: str) -> tuple[int, str]:
        """Send commands that end the program, then the end of input; return status and stderr."""
        try:
            _, complained = self._process.communicate("".join(f"{line}\n" for line in lines), 60)
        finally:
            self._process.kill()
        return self._process.returncode, complained


def run(built: Built, lines: Iterable[str], **variables: object) -> tuple[int, str]:
    """Run a program to its end; return its status and what it wrote to stderr."""
    return Program(built, variables).end(*lines)


def comm(rank: int, ranks: int = 4, *, at: int = 0, hash: int = 0xABC, name: str = "") -> str:
    """Return the command that makes a communicator."""
    return f"init {at} {hash:#x} 1 {ranks} {rank} {name}"


def call(func: str = "AllReduce", count: int = 1, dtype: str = "Float32", **more: object) -> str:
    """Return the command for a collective.

    Args:
        func: NCCL's name of it.
        count: Elements as passed to NCCL.
        dtype: NCCL's name of the element type, without its prefix.
        **more: ``at``: number of the communicator; ``root``; ``captured``.
    """
    captured = " captured" if more.get("captured") else ""
    at, root = more.get("at", 0), more.get("root", 0)
    return f"call {at} {func} {count} nccl{dtype} {root}{captured}"
