"""Start a rank as a new interpreter, for test runs that cannot be forked.

A process that has used CUDA cannot be forked, and neither can some libraries' threads. A new
interpreter receives the function by its name and the arguments by value, through a nameless file
that only the two processes hold.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pickle
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NoReturn

from ncclscope.errors import UsageError
from ncclscope.launch.rank_process import Job, RankPlace, be_rank

_PROGRAM = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from ncclscope.launch.spawn import be_spawned
be_spawned(json.loads(sys.argv[2]))
"""


def pack(job: Job, file: IO[bytes]) -> None:
    """Write the job's function and arguments to ``file``, for :func:`spawn`.

    Raises:
        UsageError: They cannot be pickled.
    """
    check_name(job.function)
    try:
        pickle.dump((job.function, job.arguments, job.keywords), file)
    except Exception as error:
        raise UsageError(
            f"the arguments of run_ranks cannot be sent to a new process: {error}",
            "give plain values, or use start_method='fork'",
        ) from None
    file.flush()


def check_name(function: Callable[..., Any]) -> None:
    """Check that a new process can import a function.

    Raises:
        UsageError: It is a lambda, a closure, or of a program that is not a module.
    """
    name = getattr(function, "__qualname__", None)
    module = getattr(function, "__module__", None)
    found: Any = sys.modules.get(module) if isinstance(module, str) else None
    for part in name.split(".") if isinstance(name, str) else ():
        found = getattr(found, part, None)
    if module == "__main__" or found is None or found is not function:
        raise UsageError(
            f"start_method='spawn' needs a function that can be imported, and "
            f"{name or repr(function)} cannot",
            "define it at the top of a module",
        )


def spawn(job: Job, place: RankPlace, packed: IO[bytes]) -> int:
    """Start a rank; return its process id.

    Args:
        job: The function and how to run it.
        place: Rank and connection of the new process.
        packed: File that :func:`pack` has written.
    """
    module = job.function.__module__
    path = getattr(sys.modules[module], "__file__", None)
    # Use higher numbers than all open descriptors, so that no copy overwrites another.
    held = [place.control.fileno(), place.result, packed.fileno()]
    numbers = [max(held) + 1 + index for index in range(len(held))]
    order = {
        "rank": place.rank,
        "parent": place.parent,
        "descriptors": numbers,
        "ranks": job.ranks,
        "backend": job.backend,
        "workplace": str(job.workplace),
        "rings": None if job.rings is None else str(job.rings),
        "port": job.port,
        "module": module,
        "path": path,
    }
    output = str(job.output(place.rank))
    actions = [
        *((os.POSIX_SPAWN_DUP2, own, number) for own, number in zip(held, numbers, strict=True)),
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    command = [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), json.dumps(order)]
    return os.posix_spawn(sys.executable, command, os.environ, file_actions=actions, setpgroup=0)


def be_spawned(order: dict[str, Any]) -> NoReturn:
    """Run a rank in the new interpreter."""
    control, result, packed = order["descriptors"]
    place = RankPlace(order["rank"], order["parent"], socket.socket(fileno=control), result)
    job = Job(
        _nothing,
        (),
        order["ranks"],
        order["backend"],
        Path(order["workplace"]),
        None if order["rings"] is None else Path(order["rings"]),
        port=order["port"],
    )

    def load() -> Job:
        _import(order["module"], order["path"])
        # The ranks share the file's offset, so each reads at an explicit one.
        content = os.pread(packed, os.fstat(packed).st_size, 0)
        # It comes from the test run that started this process, in a file that nobody else can open.
        function, arguments, keywords = pickle.loads(content)
        return replace(job, function=function, arguments=arguments, keywords=keywords)

    be_rank(job, place, load)


def _nothing(rank: int) -> None:
    """Placeholder for the function until it is imported."""


def _import(name: str, path: str | None) -> None:
    """Import a module, from its file if it is not on the path, as pytest's importlib mode does."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if path is None or not (name == missing or name.startswith(f"{missing}.")):
            raise
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
