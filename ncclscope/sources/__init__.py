"""Anything that records collectives -> :class:`~ncclscope.model.Run`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from ncclscope.errors import DamagedFileError, InputError, NothingFoundError
from ncclscope.model import Communicator, Rank, Run
from ncclscope.ring import layout
from ncclscope.sources.jsonl import is_trace, read_trace
from ncclscope.sources.replicas import separate_replicas
from ncclscope.sources.ring import read_ring
from ncclscope.sources.windows import infer_windows

__all__ = ["assemble", "open_run"]


def open_run(*paths: str | os.PathLike[str]) -> Run:
    """Reads every ring and trace at or below the given paths.

    Args:
        *paths: Files or directories.

    Returns:
        One run; where the input holds several, the newest.

    Raises:
        InputError: A path does not exist or cannot be read.
        NothingFoundError: There is nothing in it that can be read.
    """
    notes: list[str] = []
    ranks: list[Rank] = []
    empty = 0
    for path in _files(paths):
        reader = read_trace if is_trace(path) else read_ring
        try:
            if path.stat().st_size == 0:
                empty += 1
                continue
            ranks.append(reader(path))
        except DamagedFileError as error:
            notes.append(str(error))
        except OSError as error:
            notes.append(f"{path} cannot be read: {error.strerror}")
    given = tuple(os.fspath(path) for path in paths)
    if not ranks:
        if notes:
            raise InputError(notes[0], "nothing else was found")
        what = "only empty files" if empty else "no ring and no trace"
        raise NothingFoundError(
            f"{', '.join(given)}: {what} found",
            "give the directory that NCCLSCOPE_DIR or `ncclscope run --dir` named",
        )
    return assemble(ranks, notes=notes, sources=given)


def assemble(
    processes: Iterable[Rank], *, notes: Iterable[str] = (), sources: Iterable[str] = ()
) -> Run:
    """Makes one run of what several processes recorded."""
    said = list(notes)
    processes = infer_windows(_newest_run(list(processes), said))
    others = tuple(process for process in processes if process.rank < 0)
    ranks = separate_replicas([process for process in processes if process.rank >= 0], said)
    ranks.sort(key=lambda rank: rank.rank)
    communicators: dict[str, Communicator] = {}
    for rank in ranks:
        for key, log in rank.logs.items():
            known = communicators.get(key)
            # Members are all of one mind about the ranks, unless one knew fewer.
            if known is None or len(log.communicator.ranks) > len(known.ranks):
                communicators[key] = log.communicator
            elif not known.label and log.communicator.label:
                communicators[key] = replace(known, label=log.communicator.label)
    expected = max(
        [rank.world_size for rank in ranks]
        + [rank.rank + 1 for rank in ranks]
        + [max(comm.ranks, default=-1) + 1 for comm in communicators.values()],
        default=0,
    )
    return Run(
        ranks=tuple(ranks),
        communicators=communicators,
        expected=expected,
        notes=tuple(said),
        sources=tuple(sources),
        others=others,
    )


def _files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    for given in paths:
        path = Path(given)
        if path.is_dir():
            for folder, _, names in os.walk(path):
                for name in sorted(names):
                    found = Path(folder, name)
                    if name.endswith(layout.MOVED_SUFFIX):
                        yield from _moved(found)
                    elif name.endswith(layout.SUFFIX) or is_trace(found):
                        yield found
        elif path.exists():
            yield path
        else:
            raise InputError(f"{path} does not exist")


def _moved(pointer: Path) -> Iterator[Path]:
    """Follows the note that a ring leaves where there was no room for it."""
    try:
        target = Path(pointer.read_text(encoding="utf-8").strip())
        if target.suffix == layout.SUFFIX and target.stat().st_uid == pointer.stat().st_uid:
            yield target
    except (OSError, ValueError):
        return


def _newest_run(processes: list[Rank], notes: list[str]) -> list[Rank]:
    """Leaves out what earlier runs left in the same directory."""
    runs: dict[str, list[Rank]] = {}
    for process in processes:
        runs.setdefault(str(process.details.get("run") or ""), []).append(process)
    if len(runs) < 2:
        return processes
    newest = max(runs, key=lambda run: max(rank.started_ns or 0 for rank in runs[run]))
    left_out = len(processes) - len(runs[newest])
    notes.append(f"{left_out} rings of {len(runs) - 1} earlier run(s) were left out")
    return runs[newest]
