"""Rings whose damage shows when their records are asked for.

A ring is not read whole when it is opened. One that turns out to be damaged later must not take
the others with it: it becomes a note, and its rank is missing.
"""

from __future__ import annotations

from dataclasses import replace

from ncclscope.errors import DamagedFileError
from ncclscope.model import Run
from ncclscope.untrusted import printable

__all__ = ["readable", "without_damaged"]


def without_damaged(run: Run, error: DamagedFileError) -> Run:
    """Return a run without the ring that an error is about.

    Raises:
        DamagedFileError: The same error, where nothing else is left.
    """
    ranks = tuple(rank for rank in run.ranks if not _is_about(error, rank.source))
    others = tuple(rank for rank in run.others if not _is_about(error, rank.source))
    left_out = len(run.ranks) + len(run.others) - len(ranks) - len(others)
    if not left_out or not ranks:
        raise error
    return replace(run, ranks=ranks, others=others, notes=(*run.notes, printable(str(error))))


def readable(run: Run) -> Run:
    """Return a run without the rings of which not all that they keep can be read.

    Raises:
        DamagedFileError: Nothing is left.
    """
    for rank in (*run.ranks, *run.others):
        try:
            for log in rank.logs.values():
                log.positions(log.first, log.calls + 1)
        except DamagedFileError as error:
            run = without_damaged(run, error)
    return run


def _is_about(error: DamagedFileError, source: str) -> bool:
    return bool(error.path) and printable(error.path) == source
