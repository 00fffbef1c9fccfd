"""Python stacks of other processes, read by py-spy.

``py-spy dump --nonblocking`` reads the memory of a process and neither stops it nor runs
code in it. A stack that changes during the read may be inconsistent; two equal samples rule
that out. Of local variables, integers named like loop counters are kept, since they show how
far a loop is, and in frames of torch.distributed the peer of a transfer and whether a process
group is given; all other values are dropped at once.
"""

from __future__ import annotations

import re
import shutil
import sysconfig
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from ncclscope.attach.limited import run_limited
from ncclscope.attach.source_lines import called_before, called_names, loop_around, makers
from ncclscope.model import sites
from ncclscope.model.snapshot import NO_PERMISSION, Frame, Stacks, Thread
from ncclscope.untrusted import number, parse, printable

TIME_LIMIT = 4.0
"""Seconds allowed per process; a healthy one takes a hundredth of a second."""
AT_ONCE = 8

_OWN = re.compile(r"(?:^|/)(?:ncclscope_patches|ncclscope/(?:tracing|guard))/")
"""Frames of ncclscope's own probes, which are no part of the program."""
_C10D = re.compile(r"(?:^|/)torch/distributed/(?:distributed_c10d|c10d_logger)\.py$")
_GROUP = re.compile(r"\bProcessGroup\w* at ")
_LONGEST_RANK = 8
_MOST_FRAMES = 1000
_MOST_LINES = 1 << 31
_COUNTER = re.compile(
    r"(?:|.*_)(?:i|j|k|n|idx|index|step|steps|iter|iteration|it|epoch|layer|layer_id|round|"
    r"microbatch|micro_batch|call|seq)|layer_?i(?:dx|ndex|d)|global_step|step_num(?:ber)?",
    re.IGNORECASE,
)


def find_py_spy() -> str | None:
    """Return py-spy's path in this installation, else on PATH; None if there is none."""
    beside = Path(sysconfig.get_path("scripts"), "py-spy")
    if beside.is_file():
        return str(beside)
    try:
        distribution = metadata.distribution("py-spy")
        files = [file for file in distribution.files or () if file.name == "py-spy"]
        # `pip install --target` places programs elsewhere than the metadata says.
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
        time_limit: Seconds allowed per process.
    """

    def __init__(self, program: str, time_limit: float = TIME_LIMIT) -> None:
        self._program = program
        self._time_limit = time_limit

    def read(self, pids: Iterable[int]) -> dict[int, Stacks]:
        """Return the stacks of each process by pid; `Stacks.error` says why any are missing."""
        wanted = list(pids)
        with ThreadPoolExecutor(max_workers=max(1, min(AT_ONCE, len(wanted)))) as pool:
            return dict(zip(wanted, pool.map(self.read_one, wanted), strict=True))

    def read_one(self, pid: int) -> Stacks:
        """Return the stacks of one process; `Stacks.error` says why they are missing."""
        status, output, errors = self._dump(pid, "--locals")
        if status not in (0, None):  # py-spy cannot read locals of some interpreters
            status, output, errors = self._dump(pid)
        if status is None:
            return Stacks(error=f"py-spy did not finish within {self._time_limit:g} s")
        if status != 0:
            return Stacks(error=_reason(errors))
        try:
            return _with_calls(pid, parse_dump(output))
        except ValueError as error:
            return Stacks(error=f"py-spy's output cannot be read: {error}")

    def _dump(self, pid: int, *options: str) -> tuple[int | None, bytes, str]:
        """Run py-spy; return status (None after a timeout), stdout and stderr."""
        command = [self._program, "dump", "--nonblocking", "--json", *options, "--pid", str(pid)]
        return run_limited(command, self._time_limit)


def parse_dump(data: bytes) -> Stacks:
    """Parse the output of ``py-spy dump --json``.

    Raises:
        ValueError: The output has another form.
    """
    threads = parse(data)
    if not isinstance(threads, list):
        raise ValueError("it is not a list of threads")
    found = []
    for thread in threads:
        if not isinstance(thread, dict):
            raise ValueError("a thread is not an object")
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


def with_source(pid: int, stacks: Stacks) -> Stacks:
    """Add what the source files show: loops around a line, and what a line waits for.

    Args:
        pid: The process.
        stacks: Its stacks.
    """
    return Stacks(
        tuple(
            replace(thread, frames=tuple(_with_source(pid, one) for one in thread.frames))
            for thread in stacks.threads
        ),
        stacks.error,
    )


def _with_source(pid: int, one: Frame) -> Frame:
    if one.installed:
        return one
    waits = any(name.endswith(".wait") for name in one.calls)
    return replace(
        one,
        loop=loop_around(pid, one.path, one.line),
        before=called_before(pid, one.path, one.line),
        makers=makers(pid, one.path, one.line) if waits else (),
    )


def _with_calls(pid: int, stacks: Stacks) -> Stacks:
    """Add the names that its source line calls to the innermost frame of each thread.

    A call into C has no Python frame, so only the source line names it. The frame of a torch
    operator (torch/_ops.py) does not name the operator either.
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


def _group(variables: Mapping[str, str]) -> str:
    """Return whether a call of torch.distributed names a process group: ``default`` or ``given``.

    The function replaces None by the default group, but its logger has the arguments as passed.

    Args:
        variables: Local variables of a frame of torch.distributed, as py-spy prints them.
    """
    if "args" in variables and "kwargs" in variables:
        passed = f"{variables['args']} {variables['kwargs']}"
        if _GROUP.search(passed):
            return "given"
        return "" if "..." in passed else "default"
    return "default" if variables.get("group") == "None" else ""


def _peers(variables: Mapping[str, str]) -> tuple[int, ...]:
    """Return the rank that a frame of torch.distributed sends to or receives from."""
    ranks = [value for name in ("src", "dst") if (value := variables.get(name, "")).isdecimal()]
    return tuple(int(value) for value in ranks if len(value) < _LONGEST_RANK)


def _frame(frame: Any) -> Frame:
    if not isinstance(frame, dict):
        raise ValueError("a frame is not an object")
    path = printable(str(frame.get("filename") or ""))
    file = printable(str(frame.get("short_filename") or path or "?"))
    listed = frame.get("locals")
    variables = {
        str(one.get("name")): str(one.get("repr"))
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, dict)
    }
    is_c10d = bool(_C10D.search(file))
    return Frame(
        function=printable(str(frame.get("name") or "?")),
        file=file,
        line=number(frame.get("line"), _MOST_LINES),
        counters=_counters(variables),
        path=path,
        installed=sites.role(path) != sites.OWN if path else None,
        group=_group(variables) if is_c10d else "",
        peers=_peers(variables) if is_c10d else (),
    )


def _counters(variables: Mapping[str, str]) -> dict[str, int]:
    return {
        printable(name): int(value)
        for name, value in variables.items()
        if _COUNTER.fullmatch(name) and value.isdecimal() and len(value) < 16
    }


def _reason(errors: str) -> str:
    """Return the meaning of py-spy's error output."""
    lowered = errors.lower()
    if "permission" in lowered or "not permitted" in lowered or "sudo" in lowered:
        return NO_PERMISSION
    if "no such file" in lowered or "no such process" in lowered or "os error 3" in lowered:
        return "the process has ended"
    if "find" in lowered and ("python" in lowered or "interpreter" in lowered):
        return "py-spy finds no Python interpreter in it"
    first = errors.strip().partition("\n")[0].removeprefix("Error: ")
    return printable(first[:200]) or "py-spy failed without a message"
