"""Python stacks of other processes, read by py-spy.

``py-spy dump --nonblocking`` reads the memory of a process and neither stops it nor runs
anything in it. A stack that changes while it is read may come out torn, which two samples
that are alike rule out. Of local variables, only integers whose names count rounds are kept,
since they tell how often a loop has gone round; everything else is dropped where it is read.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from ncclscope.attach.source_lines import called_names
from ncclscope.model import sites
from ncclscope.model.snapshot import Frame, Stacks, Thread
from ncclscope.untrusted import number, parse, printable

__all__ = ["PySpy", "find_py_spy", "parse_dump"]

TIME_LIMIT = 4.0
"""Seconds that one process may take: a healthy one takes a hundredth of one."""
AT_ONCE = 8

_OWN = re.compile(r"(?:^|/)(?:ncclscope_patches|ncclscope/(?:tracing|guard))/")
"""Our probes: where the program is, they are not."""
_MOST_BYTES = 1 << 24
_MOST_FRAMES = 1000
_MOST_LINES = 1 << 31
_COUNTER = re.compile(
    r"(?:|.*_)(?:i|j|k|n|idx|index|step|steps|iter|iteration|it|epoch|layer|layer_id|round|"
    r"microbatch|micro_batch|call|seq)|layer_?i(?:dx|ndex|d)|global_step|step_num(?:ber)?",
    re.IGNORECASE,
)


def find_py_spy() -> str | None:
    """Returns py-spy's program: of this installation, else from the path; None without one."""
    beside = Path(sysconfig.get_path("scripts"), "py-spy")
    if beside.is_file():
        return str(beside)
    try:
        distribution = metadata.distribution("py-spy")
        files = [file for file in distribution.files or () if file.name == "py-spy"]
        # `pip install --target` puts programs elsewhere than it notes.
        for place in (*(str(file) for file in files), "bin/py-spy"):
            program = Path(str(distribution.locate_file(place)))
            if program.is_file():
                return str(program.resolve())
    except metadata.PackageNotFoundError:
        pass
    return shutil.which("py-spy")


class PySpy:
    """Reads the stacks of many processes at once.

    Args:
        program: py-spy's path.
        time_limit: Seconds that one process may take.
    """

    def __init__(self, program: str, time_limit: float = TIME_LIMIT) -> None:
        self._program = program
        self._time_limit = time_limit

    def read(self, pids: Iterable[int]) -> dict[int, Stacks]:
        """Returns the stacks of each process, or why there are none."""
        wanted = list(pids)
        with ThreadPoolExecutor(max_workers=max(1, min(AT_ONCE, len(wanted)))) as pool:
            return dict(zip(wanted, pool.map(self.read_one, wanted), strict=True))

    def read_one(self, pid: int) -> Stacks:
        """Returns the stacks of one process, or why there are none."""
        status, said, complained = self._dump(pid, "--locals")
        if status not in (0, None):  # some interpreters' locals cannot be read
            status, said, complained = self._dump(pid)
        if status is None:
            return Stacks(error=f"py-spy did not come back within {self._time_limit:g} s")
        if status != 0:
            return Stacks(error=_reason(complained))
        try:
            return _with_calls(pid, parse_dump(said))
        except ValueError as error:
            return Stacks(error=f"py-spy's answer cannot be read: {error}")

    def _dump(self, pid: int, *options: str) -> tuple[int | None, bytes, str]:
        """Runs py-spy; the status is None where it had to be given up.

        It writes to files and is never waited for without a limit: a reader of a process
        that hangs in the kernel can hang there itself, where not even SIGKILL ends it.
        """
        with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
            command = [self._program, "dump", "--nonblocking", "--json", *options]
            try:
                process = subprocess.Popen(
                    [*command, "--pid", str(pid)],
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=complained,
                    start_new_session=True,
                )
            except OSError as error:
                return -1, b"", str(error)
            try:
                status = process.wait(self._time_limit)
            except subprocess.TimeoutExpired:
                process.kill()
                _reap(process)
                return None, b"", ""
            said.seek(0)
            complained.seek(0)
            return (
                status,
                said.read(_MOST_BYTES),
                complained.read(_MOST_BYTES).decode("utf-8", "replace"),
            )


def parse_dump(data: bytes) -> Stacks:
    """Reads what ``py-spy dump --json`` prints.

    Raises:
        ValueError: It is something else.
    """
    threads = parse(data)
    if not isinstance(threads, list):
        raise ValueError("it is no list of threads")
    found = []
    for thread in threads:
        if not isinstance(thread, dict):
            raise ValueError("a thread is no object")
        frames = thread.get("frames")
        listed = frames[:_MOST_FRAMES] if isinstance(frames, list) else []
        read = [_frame(frame) for frame in reversed(listed)]
        found.append(
            Thread(
                name=printable(str(thread.get("thread_name") or "")),
                tid=number(thread.get("os_thread_id"), 1 << 32),
                frames=tuple(frame for frame in read if not _OWN.search(frame.file)),
            )
        )
    return Stacks(tuple(found))


def _with_calls(pid: int, stacks: Stacks) -> Stacks:
    """Adds to the innermost frame of each thread what its source line calls.

    A call into C leaves no frame of its own, and what is waited for there is then known by the
    name in the line only. An operator of torch has a frame that says nothing of it.
    """
    return Stacks(tuple(replace(t, frames=_called(pid, t.frames)) for t in stacks.threads))


def _called(pid: int, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    last = len(frames) - 1
    while last > 0 and frames[last].file == "torch/_ops.py":
        last -= 1
    if last < 0 or frames[last].installed:
        return frames
    one = frames[last]
    one = replace(one, calls=called_names(pid, one.path, one.line))
    return (*frames[:last], one, *frames[last + 1 :])


def _frame(frame: Any) -> Frame:
    if not isinstance(frame, dict):
        raise ValueError("a frame is no object")
    path = printable(str(frame.get("filename") or ""))
    file = printable(str(frame.get("short_filename") or path or "?"))
    return Frame(
        function=printable(str(frame.get("name") or "?")),
        file=file,
        line=number(frame.get("line"), _MOST_LINES),
        counters=_counters(frame.get("locals")),
        path=path,
        installed=sites.role(path) != sites.OWN if path else None,
    )


def _counters(variables: Any) -> dict[str, int]:
    counters = {}
    for variable in variables if isinstance(variables, list) else ():
        if not isinstance(variable, dict):
            continue
        name, value = str(variable.get("name")), str(variable.get("repr"))
        if _COUNTER.fullmatch(name) and value.isdecimal() and len(value) < 16:
            counters[printable(name)] = int(value)
    return counters


def _reason(complained: str) -> str:
    """Says what py-spy's complaint means and what helps."""
    said = complained.lower()
    if "permission" in said or "not permitted" in said or "sudo" in said:
        return "no permission to read its memory"
    if "no such file" in said or "no such process" in said or "os error 3" in said:
        return "the process has ended"
    if "find" in said and ("python" in said or "interpreter" in said):
        return "it runs no Python that py-spy knows"
    first = complained.strip().partition("\n")[0].removeprefix("Error: ")
    return printable(first[:200]) or "py-spy failed without a word"


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Collects a process that was killed, if it goes at once."""
    deadline = time.monotonic() + 0.2
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
