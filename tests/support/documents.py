"""Documents whose commands are run: what their blocks contain, and what came of it.

A block that begins with ```` ```console ```` is a session: lines that begin with ``$`` are
commands, those below them what they print. All sessions of a document are one, in one shell and one
folder. ``...`` alone on a line matches any number of lines, and what differs from run to run
(pids, hosts, times, sizes) counts as equal. A command whose status is not 0 must be followed by
``echo $?``.

Blocks that begin with ```` ```console vllm ```` want vLLM's environment, those that begin with
```` ```console elsewhere ```` machines that a test has not.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from tests.support.programs import ROOT

__all__ = ["Command", "Outcome", "Session", "blocks", "differences", "sessions", "words"]

_FENCE = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "\x1e"
_ANY = "..."
_HOME = "/home/you/ncclscope"

_FRAME = re.compile(r"[│╭╮╰╯─]+")
_VARIES = (
    (re.compile(r"\([\w.-]+, pid \d+\)"), "(HOST, pid N)"),
    (re.compile(r"\bpids? \d+"), "pid N"),
    # The second column of a table of ranks.
    (re.compile(r"^(\s*\d+\s+)\d+(\s+(?:world|[a-z]+:\d+))", re.MULTILINE), r"\1N\2"),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "TIME"),
    (re.compile(r"[\w.-]+-\d+-[0-9a-f]{6,}\.ring"), "RING"),
    (re.compile(r"\b\d+(\.\d+)? (s|ms|kB|KB|MB)\b"), r"N \2"),
    (re.compile(r"\bin \d+\.\d+s\b(?: \(\d+:\d\d:\d\d\))?"), "in N s"),
    (re.compile(r"ncclscope-demo-\w+"), "ncclscope-demo-X"),
)


@dataclass(frozen=True)
class Command:
    """One command of a session.

    Attributes:
        text: What is typed.
        shown: What the document says that it prints.
    """

    text: str
    shown: str


@dataclass(frozen=True)
class Outcome:
    """Outcome of a command.

    Attributes:
        command: The command.
        output: What it printed, on both streams.
        status: Its exit status; -1 where it did not come to its end.
    """

    command: Command
    output: str
    status: int


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield the fenced blocks of a document: what follows the fence, and the content."""
    for found in _FENCE.finditer(text):
        yield found["info"].strip(), found["body"]


def sessions(text: str, info: str = "console") -> list[Command]:
    """Return the commands of all blocks of one mark, in order.

    Raises:
        ValueError: A block begins with output.
    """
    commands: list[Command] = []
    for found, body in blocks(text):
        if found == info:
            commands += _commands(body)
    return commands


def _commands(body: str) -> Iterator[Command]:
    lines = body.splitlines()
    if not lines or not lines[0].startswith("$ "):
        raise ValueError(f"a session begins with a command: {lines[:1]}")
    while lines:
        typed = [lines.pop(0)[2:]]
        while typed[-1].endswith("\\"):
            typed.append(lines.pop(0))
        shown = []
        while lines and not lines[0].startswith("$ "):
            shown.append(lines.pop(0))
        yield Command("\n".join(typed), "\n".join(shown))


class Session:
    """A shell in a folder that looks like a checkout, with an environment of its own.

    ``pip install`` puts packages into the folder, not into the environment of the tests.

    Args:
        folder: Empty.
    """

    def __init__(self, folder: Path) -> None:
        self.place = folder / "ncclscope"
        shutil.copytree(
            ROOT / "examples",
            self.place / "examples",
            ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache", ".hypothesis"),
        )
        packages, self._programs = folder / "packages", folder / "bin"
        self._programs.mkdir()
        python = shlex.quote(sys.executable)
        target = f"--no-build-isolation --no-deps --target {shlex.quote(str(packages))}"
        for name, line in {
            "python": f'{python} "$@"',
            "ncclscope": f'{python} -m ncclscope "$@"',
            "torchrun": f'{python} -m torch.distributed.run "$@"',
            "pytest": f'{python} -m pytest "$@"',
            "pip": f'shift; exec {python} -m pip install -q {target} "$@" 2>/dev/null',
        }.items():
            program = self._programs / name
            program.write_text(f"#!/bin/sh\n{'' if name == 'pip' else 'exec '}{line}\n")
            program.chmod(0o755)
        self._environment = {
            **{name: value for name, value in os.environ.items() if "NCCL" not in name},
            "PATH": f"{self._programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(
                [str(packages), *(str(ROOT / part) for part in ("", "analyzers", "patches"))]
            ),
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "80",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTEST_ADDOPTS": "-p no:cacheprovider --rootdir=.",
        }

    def run(self, commands: Sequence[Command], timeout: float) -> list[Outcome]:
        """Type all commands, one after the other.

        Args:
            commands: What is typed.
            timeout: Seconds for all of them.
        """
        script = self.place.parent / "session.sh"
        lines = [":"]
        for number, command in enumerate(commands):
            mark = f"printf '{_MARK}%s {number} %d{_MARK}'"
            # The next command is to see this one's status.
            lines += [f"__s=$?; {mark} begin 0; (exit $__s)", command.text]
            lines += [f"__s=$?; {mark} end $__s; (exit $__s)"]
        script.write_text("\n".join(lines) + "\n")
        log = self.place.parent / "log"
        with log.open("wb") as output:
            shell = subprocess.Popen(
                [*_alone(), "bash", str(script)],
                cwd=self.place,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                shell.wait(timeout)
            except subprocess.TimeoutExpired:
                for process in psutil.Process(shell.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
        return _outcomes(commands, log.read_text(errors="replace"), str(self.place))


@cache
def _alone() -> tuple[str, ...]:
    """Return a way to hide other processes: `attach` asks which of two jobs is meant."""
    options = ("--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")
    command = ("unshare", *options)
    try:
        done = subprocess.run([*command, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return ()
    return command if done.returncode == 0 else ()


def _outcomes(commands: Sequence[Command], log: str, place: str) -> list[Outcome]:
    log = log.replace(place, _HOME)
    found = []
    for number, command in enumerate(commands):
        _, begun, rest = log.partition(f"{_MARK}begin {number} 0{_MARK}")
        output, ended, rest = rest.partition(f"{_MARK}end {number} ")
        status = int(rest.partition(_MARK)[0]) if begun and ended else -1
        found.append(Outcome(command, output, status))
    return found


def words(text: str) -> list[str]:
    """Return the words of a text that must be the same in each run."""
    for pattern, instead in _VARIES:
        text = pattern.sub(instead, text)
    return _FRAME.sub(" ", text).split()


def _matches(shown: str, output: str) -> bool:
    """Return whether a text is what a document shows, with ``...`` for any lines."""
    # A frame may break its lines elsewhere, where a pid has another length: words count.
    parts: list[list[str]] = [[]]
    for line in words_by_line(shown):
        if line == [_ANY]:
            parts.append([])
        else:
            parts[-1] += line
    printed = words(output)
    first, *others = parts
    if printed[: len(first)] != first:
        return False
    printed = printed[len(first) :]
    if not others:
        return not printed
    *between, last = others
    for part in between:
        place = _find(printed, part)
        if place < 0:
            return False
        printed = printed[place + len(part) :]
    return not last or (len(last) <= len(printed) and printed[-len(last) :] == last)


def words_by_line(text: str) -> list[list[str]]:
    """Return :func:`words` of each line."""
    for pattern, instead in _VARIES:
        text = pattern.sub(instead, text)
    return [_FRAME.sub(" ", line).split() for line in text.splitlines()]


def _find(printed: Sequence[str], part: Sequence[str]) -> int:
    for place in range(len(printed) - len(part) + 1):
        if printed[place : place + len(part)] == part:
            return place
    return -1


def differences(outcomes: Sequence[Outcome]) -> list[str]:
    """Say of each command that did something else than its document says, what."""
    found = []
    for outcome, following in zip(outcomes, [*outcomes[1:], None], strict=True):
        name = f"$ {outcome.command.text}"
        is_checked = following is not None and following.command.text.startswith("echo $?")
        if outcome.status < 0:
            found.append(f"{name}\ndid not come to its end:\n{outcome.output}")
        elif outcome.status and not is_checked:
            found.append(f"{name}\nended with {outcome.status}:\n{outcome.output}")
        elif not _matches(outcome.command.shown, outcome.output):
            found.append(
                f"{name}\nprinted:\n{outcome.output}\nand not:\n{outcome.command.shown}\n"
                f"as words: {words(outcome.output)}"
            )
    return found
