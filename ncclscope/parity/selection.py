"""Arguments of ``ncclscope diff``: a run, or one rank of a run such as ``DIR#3``."""

from __future__ import annotations

import os

from ncclscope.errors import InputError, UsageError
from ncclscope.model import Rank, Run
from ncclscope.readers import open_run


def open_selection(text: str) -> Run | Rank:
    """Open a run or a rank.

    Args:
        text: A file (one rank), a directory (a run), or either of them with ``#`` and the number
            of a rank. An existing path is used as it is.

    Raises:
        InputError: The path cannot be read, or has no such rank.
        UsageError: The text after the ``#`` is not a number.
    """
    if not text:
        raise UsageError(
            "a path is empty", "write DIR, FILE, or DIR#3 for rank 3 of the run in DIR"
        )
    path, mark, number = text.rpartition("#")
    if not mark or os.path.exists(text):
        run = open_run(text)
        return run if os.path.isdir(text) else _only(run, text)
    if not path or not number.isdecimal() or len(number) > 9:
        raise UsageError(f"{text} names no rank", "write DIR#3 for rank 3 of the run in DIR")
    run = open_run(path)
    rank = run.by_rank.get(int(number))
    if rank is None:
        known = " ".join(str(rank.rank) for rank in run.ranks[:16])
        more = " ..." if len(run.ranks) > 16 else ""
        raise InputError(f"{path} has no rank {int(number)}", f"it has: {known}{more}")
    return rank


def _only(run: Run, path: str) -> Rank:
    found = [*run.ranks, *run.others]
    if len(found) != 1:
        raise InputError(f"{path} holds {len(found)} processes", f"name one: {path}#3")
    return found[0]
