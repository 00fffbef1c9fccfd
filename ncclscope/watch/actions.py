"""Actions on a hang: write a bundle, run a command, kill the workers."""

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
from ncclscope.engine.verdict import Verdict
from ncclscope.errors import DamagedFileError, InputError, NcclscopeError, UsageError, os_reason
from ncclscope.private import (
    PACKED_SUFFIX,
    copy_private,
    make_private,
    pack_private,
    write_private,
)
from ncclscope.readers.ring.cursor import RingCursor
from ncclscope.ring import layout
from ncclscope.stamp import stamped
from ncclscope.watch.killing import unread_text
from ncclscope.watch.poll import Poll

SAMPLE_SECONDS = 0.5
"""Seconds between a bundle's first and last sample of the workers; `kill` runs after them."""
_MOST_BUNDLES = 1000


def _no_screen(verdict: Verdict) -> str:
    return verdict.summary + "\n"


@dataclass(frozen=True)
class Done:
    """Results of the actions on one hang.

    Attributes:
        bundle: Directory with the rings and the verdict; None if not requested or failed.
        killed: Pids of the workers that were killed.
        said: Messages for the user, one line each.
    """

    bundle: Path | None
    killed: tuple[int, ...]
    messages: tuple[str, ...]


@dataclass(frozen=True)
class Actions:
    """Actions to take, in this order, when a divergence or a hang is found.

    Attributes:
        bundles: Directory to write a bundle to; None for no bundle.
        command: Shell command to run and wait for; it gets the verdict as JSON on stdin.
        kill: Whether to kill the workers.
        screen: Return the text that ``ncclscope attach`` prints for a verdict.
    """

    bundles: Path | None = None
    command: str = ""
    kill: bool = False
    screen: Callable[[Verdict], str] = _no_screen

    def check(self) -> None:
        """Create the bundles' directory now, so that a mistake shows before a hang.

        Raises:
            UsageError: The directory cannot be created.
        """
        if self.bundles is None:
            return
        try:
            make_private(self.bundles)
        except OSError as error:
            raise UsageError(
                f"bundles cannot be written to {self.bundles}: {os_reason(error)}"
            ) from None

    def act(self, poll: Poll) -> Done:
        """Take all actions; one that fails is reported and does not stop the others."""
        messages: list[str] = []
        bundle = None
        assert poll.verdict is not None
        if self.bundles is not None:
            try:
                bundle = keep_bundle(self.bundles, poll.ranks, poll.verdict, self.screen)
                messages.append(f"bundle: {bundle}")
            except (OSError, InputError) as error:
                messages.append(f"the bundle could not be written: {error}")
        if self.command:
            messages += self._run(poll.verdict, bundle)
        killed: tuple[int, ...] = ()
        if self.kill and (why := unread_text(poll.verdict)):
            messages.append(f"no process is killed: {why}")
        elif self.kill:
            killed = kill(poll.ranks)
            pids = ", ".join(map(str, killed))
            messages.append(f"killed: {pids}" if killed else "no worker was left to kill")
        return Done(bundle, killed, tuple(messages))

    def _run(self, verdict: Verdict, bundle: Path | None) -> list[str]:
        cause = verdict.cause
        environment = {
            **os.environ,
            "NCCLSCOPE_STATUS": verdict.status,
            "NCCLSCOPE_KIND": cause.kind if cause is not None else "",
            "NCCLSCOPE_SUMMARY": verdict.summary if cause is not None else "",
        }
        if bundle is not None:
            environment["NCCLSCOPE_BUNDLE"] = str(bundle)
        else:
            environment.pop("NCCLSCOPE_BUNDLE", None)
        # stdout is for ncclscope's own results, so the command prints to stderr.
        done = subprocess.run(
            self.command,
            shell=True,
            env=environment,
            input=json.dumps(stamped(verdict.to_dict())),
            text=True,
            stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else None,
            check=False,
        )
        return [f"--on-hang exited with status {done.returncode}"] if done.returncode else []


def keep_bundle(
    directory: Path,
    rings: Sequence[RingCursor],
    verdict: Verdict,
    screen: Callable[[Verdict], str] = _no_screen,
) -> Path:
    """Write a new folder with a job's rings, its verdict and a sample of its live workers.

    The rings come first, since they hold the evidence. Then the live workers are sampled,
    as ``ncclscope attach -o`` does.

    Args:
        directory: Directory in which the folder is created.
        rings: Rings to copy; their live processes are sampled.
        verdict: The verdict, written as ``verdict.json``.
        screen: Return the text that ``ncclscope attach`` prints for a verdict.

    Returns:
        The folder, which ``ncclscope diagnose`` reads.

    Raises:
        OSError: The folder cannot be written.
    """
    kind = verdict.cause.kind if verdict.cause is not None else verdict.status
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{re.sub('[^a-z0-9_]', '', kind)}"
    bundle = _new_folder(directory, name)
    make_private(bundle / "rings")
    untraced = (Path(one.source) for one in verdict.run.untraced)
    for path in (*(cursor.path for cursor in rings), *untraced):
        try:
            packed = PACKED_SUFFIX if path.name.endswith(layout.SUFFIX) else ""
            keep = pack_private if packed else copy_private
            keep(path, bundle / "rings" / (path.name + packed))
        except (FileNotFoundError, DamagedFileError):
            continue  # the worker's supervisor may have removed it
        except OSError as error:
            if error.errno != errno.ELOOP:  # a symbolic link has replaced the ring
                raise
    document = json.dumps(stamped(verdict.to_dict()), indent=2)
    write_private(bundle / "verdict.json", document + "\n")
    pids = sorted({cursor.pid for cursor in rings if _is_process_of(cursor)})
    _add_snapshot(bundle, pids, verdict, screen)
    return bundle


def _add_snapshot(
    bundle: Path, pids: Sequence[int], verdict: Verdict, screen: Callable[[Verdict], str]
) -> None:
    """Add a process snapshot of the workers to a bundle; skip it if that fails.

    Args:
        bundle: Directory of the bundle.
        pids: Pids of the live workers.
        verdict: The verdict from the rings, to which the snapshot is added.
        screen: Return the text that ``ncclscope attach`` prints for a verdict.
    """
    from ncclscope.attach import bundle as bundles
    from ncclscope.attach.session import Options, sample_job

    if not pids:
        return
    with contextlib.suppress(NcclscopeError, OSError):
        seen = sample_job(Options(pids=tuple(pids), gap=SAMPLE_SECONDS))
        seen = replace(seen, rings=(), run=replace(seen.run, untraced=()))  # copied already
        with_snapshot = replace(verdict, run=replace(verdict.run, snapshot=seen.snapshot))
        bundles.write_bundle(bundle, seen, with_snapshot.to_dict(), screen(with_snapshot))


def _new_folder(directory: Path, name: str) -> Path:
    make_private(directory)
    for number in range(_MOST_BUNDLES):
        folder = directory / (f"{name}-{number}" if number else name)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
    raise InputError(f"{directory} already has {_MOST_BUNDLES} bundles of this second")


def kill(rings: Sequence[RingCursor]) -> tuple[int, ...]:
    """Send SIGKILL to the processes that write some rings; hung ones ignore other signals.

    The kernel may have reused a pid. So start time, boot id and pid namespace must equal those
    in the ring, and a pidfd pins the process while they are compared.

    Returns:
        The pids that were killed.
    """
    killed = []
    for cursor in rings:
        if cursor.pid <= 1 or cursor.pid == os.getpid() or cursor.pid in killed:
            continue
        try:
            descriptor = os.pidfd_open(cursor.pid)
        except OSError:
            continue  # it has ended, or the pid is of another namespace
        try:
            if _is_process_of(cursor):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                killed.append(cursor.pid)
        except OSError:  # it has just ended, or belongs to another user
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
    """Return a process's uid: in a shared directory, any user may leave a ring that names it."""
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
