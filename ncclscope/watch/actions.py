"""What is done about a job that hangs: keep what it left, tell somebody, end its processes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from ncclscope import procfs
from ncclscope.analysis.verdict import Verdict
from ncclscope.errors import DamagedFileError, InputError, NcclscopeError, UsageError
from ncclscope.private import copy_private, make_private, write_private
from ncclscope.readers.ring.cursor import RingCursor
from ncclscope.watch.watch import Poll

__all__ = ["Actions", "Done", "keep_bundle", "kill"]

LOOKED_SECONDS = 0.5
"""Between the two samples of a bundle's look at the workers; killing them waits for it."""
_MOST_BUNDLES = 1000


def _no_screen(verdict: Verdict) -> str:
    return verdict.summary + "\n"


@dataclass(frozen=True)
class Done:
    """What was done about one hang.

    Attributes:
        bundle: Where the rings and the verdict were put; None when nobody asked for it.
        killed: Process ids of the workers that were ended.
        said: What a person should know, a line each.
    """

    bundle: Path | None
    killed: tuple[int, ...]
    said: tuple[str, ...]


@dataclass(frozen=True)
class Actions:
    """What is to be done when trouble begins, in this order.

    Attributes:
        bundles: Where to put a bundle; None for none.
        command: What to run in a shell, and wait for; the verdict is on its standard input.
        kill: Whether to end the workers.
        screen: Makes the text of ``ncclscope attach`` for a bundle from a verdict.
    """

    bundles: Path | None = None
    command: str = ""
    kill: bool = False
    screen: Callable[[Verdict], str] = _no_screen

    def check(self) -> None:
        """Finds out at once what would fail when it is needed.

        Raises:
            UsageError: The bundles' directory cannot be made.
        """
        if self.bundles is None:
            return
        try:
            make_private(self.bundles)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UsageError(f"bundles cannot go to {self.bundles}: {reason}") from None

    def act(self, poll: Poll) -> Done:
        """Does it. What fails is said and keeps nothing else from being done."""
        said: list[str] = []
        bundle = None
        assert poll.verdict is not None
        if self.bundles is not None:
            try:
                bundle = keep_bundle(self.bundles, poll.ranks, poll.verdict, self.screen)
                said.append(f"bundle: {bundle}")
            except (OSError, InputError) as error:
                said.append(f"no bundle could be written: {error}")
        if self.command:
            said += self._run(poll.verdict, bundle)
        killed: tuple[int, ...] = ()
        if self.kill:
            killed = kill(poll.ranks)
            pids = ", ".join(map(str, killed))
            said.append(f"killed: {pids}" if killed else "no worker was left to be killed")
        return Done(bundle, killed, tuple(said))

    def _run(self, verdict: Verdict, bundle: Path | None) -> list[str]:
        cause = verdict.cause
        environment = {
            **os.environ,
            "NCCLSCOPE_STATUS": verdict.status,
            "NCCLSCOPE_KIND": cause.kind if cause is not None else "",
            "NCCLSCOPE_SUMMARY": cause.summary if cause is not None else "",
        }
        if bundle is not None:
            environment["NCCLSCOPE_BUNDLE"] = str(bundle)
        else:
            environment.pop("NCCLSCOPE_BUNDLE", None)
        # Our results go to stdout, and what it prints is none of them.
        done = subprocess.run(
            self.command,
            shell=True,
            env=environment,
            input=json.dumps(verdict.to_dict()),
            text=True,
            stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else None,
            check=False,
        )
        return [f"--on-hang ended with status {done.returncode}"] if done.returncode else []


def keep_bundle(
    directory: Path,
    rings: Sequence[RingCursor],
    verdict: Verdict,
    screen: Callable[[Verdict], str] = _no_screen,
) -> Path:
    """Copies the rings of a job, and what else can be seen of it, into a folder of their own.

    The rings come first, since they say what happened; then one look at the workers that
    still live, as ``ncclscope attach -o`` takes it.

    Args:
        directory: Where the folder is made.
        rings: What to copy, and whose workers to look at.
        verdict: What to write beside it, as ``verdict.json``.
        screen: Makes the text of ``ncclscope attach`` from a verdict.

    Returns:
        The folder, which ``ncclscope diagnose`` reads.

    Raises:
        OSError: It cannot be written.
    """
    kind = verdict.cause.kind if verdict.cause is not None else verdict.status
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{re.sub('[^a-z0-9_]', '', kind)}"
    bundle = _new_folder(directory, name)
    make_private(bundle / "rings")
    for cursor in rings:
        try:
            copy_private(cursor.path, bundle / "rings" / cursor.path.name)
        except (FileNotFoundError, DamagedFileError):
            continue  # a worker's own supervisor may clean up
        except OSError as error:
            if error.errno != errno.ELOOP:  # a link was put in its place
                raise
    document = json.dumps(verdict.to_dict(), indent=2)
    write_private(bundle / "verdict.json", document + "\n")
    pids = sorted({cursor.pid for cursor in rings if _is_process_of(cursor)})
    _look_closer(bundle, pids, verdict, screen)
    return bundle


def _look_closer(
    bundle: Path, pids: Sequence[int], verdict: Verdict, screen: Callable[[Verdict], str]
) -> None:
    """Adds stacks, GPUs and RAS of the workers, as far as they can be had now."""
    from ncclscope.attach import bundle as bundles
    from ncclscope.attach.session import Options, sample_job

    if not pids:
        return
    with contextlib.suppress(NcclscopeError, OSError):
        seen = replace(sample_job(Options(pids=tuple(pids), gap=LOOKED_SECONDS)), rings=())
        with_snapshot = replace(verdict, run=replace(verdict.run, snapshot=seen.snapshot))
        bundles.write_bundle(bundle, seen, with_snapshot.to_dict(), screen(with_snapshot))


def _new_folder(directory: Path, name: str) -> Path:
    make_private(directory)
    for number in range(_MOST_BUNDLES):
        folder = directory / (f"{name}-{number}" if number else name)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
    raise InputError(f"{directory} is full of bundles of this second")


def kill(rings: Sequence[RingCursor]) -> tuple[int, ...]:
    """Ends the processes that write some rings, with SIGKILL: a hung one heeds nothing else.

    A pid alone may by now be another process's. It is held against the start time, the boot and
    the numbering of processes that the ring names, while a descriptor keeps the process from
    being replaced.

    Returns:
        The pids that were ended.
    """
    killed = []
    for cursor in rings:
        if cursor.pid <= 1 or cursor.pid == os.getpid() or cursor.pid in killed:
            continue
        try:
            descriptor = os.pidfd_open(cursor.pid)
        except OSError:
            continue  # gone, or a pid of another numbering
        try:
            if _is_process_of(cursor):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                killed.append(cursor.pid)
        except OSError:  # it ended just now, or belongs to somebody else
            continue
        finally:
            os.close(descriptor)
    return tuple(killed)


def _is_process_of(cursor: RingCursor) -> bool:
    about = cursor.about
    ticks = procfs.start_ticks(cursor.pid)
    return (
        ticks > 0
        and about.get("start_ticks") == ticks
        and about.get("boot_id") == procfs.boot_id() != ""
        and about.get("pid_namespace") == procfs.pid_namespace()
        and cursor.owner in (0, _user_of(cursor.pid))
    )


def _user_of(pid: int) -> int:
    """Returns whose a process is: in a shared directory, anybody may leave a ring that names it."""
    try:
        return psutil.Process(pid).uids().effective
    except psutil.Error:
        return -1


def _has_descriptor(stream: object) -> bool:
    try:
        stream.fileno()  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
    return True
