"""Read dumps of torch's Flight Recorder, formats 2.9 to 2.11, as pickle or JSON.

A dump holds the last calls of one process. It does not name its rank, which only the file's name
does. It does not always name the members of a group: torch 2.13 omits them for gloo. So reading
takes two steps: :func:`read_dump` for each file, and
:mod:`ncclscope.readers.flight_recorder.job` for all dumps of a job together.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ncclscope.errors import DamagedFileError
from ncclscope.model import Rank
from ncclscope.readers.budget import Budget
from ncclscope.readers.flight_recorder.dump import Dump, DumpBuilder
from ncclscope.readers.flight_recorder.plain_pickle import load_plain
from ncclscope.resources import without_collection
from ncclscope.untrusted import MAX_RANKS, json_memory, open_regular, parse, rank_number, text

__all__ = ["Dump", "NoDumpError", "is_dump", "read_dump"]

MAX_SIZE = 1 << 30
"""Most bytes of a dump: forty times the size for a hundred thousand calls."""
_HEAD = 1 << 12
_MARKS = (b"entries", b"pg_config", b"pg_status", b"comm_lib_version", b"nccl_version")
_RANK = re.compile(r"rank[_.-]?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)\D*$")
_SUFFIX = re.compile(r"\.(json|pkl|pickle|bin|txt|dump|trace)$", re.IGNORECASE)


class NoDumpError(DamagedFileError):
    """A file that begins like a dump but is not one."""


def is_dump(path: Path) -> bool:
    """Return whether a file begins like a dump, whatever its name."""
    try:
        with open(open_regular(path), "rb") as file:
            head = file.read(_HEAD)
    except (OSError, DamagedFileError):
        return False
    if not (b"\x80\x02" <= head[:2] <= b"\x80\x05" or head.lstrip()[:1] == b"{"):
        return False
    return any(mark in head for mark in _MARKS)


def rank_of(path: Path) -> int | None:
    """Return the rank in a file's name, such as ``comm_lib_trace_rank_3`` or ``fr_rank3.json``."""
    stem = _SUFFIX.sub("", path.name)
    found = _RANK.findall(stem) or _NUMBER.findall(stem)
    number = int(found[-1][:9]) if found else -1
    return number if 0 <= number < MAX_RANKS else None


def read_dump(path: Path) -> Rank:
    """Read one process's dump.

    Returns:
        A rank without logs; its ``dump`` detail is for
        :func:`ncclscope.readers.flight_recorder.job.settle`.

    Raises:
        NoDumpError: The file is not a dump.
        DamagedFileError: It is truncated, or its rank is unknown.
        OSError: It cannot be read.
    """
    with open(open_regular(path), "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size > MAX_SIZE:
            raise DamagedFileError(f"{path} exceeds the limit of {MAX_SIZE >> 20} MB for a dump")
        budget = Budget(str(path), status.st_size)
        data = file.read(status.st_size)  # not more: read() allocates what it is asked for
    with without_collection():
        value, dump = _parsed(data, path, budget)
    own = rank_number(value.get("rank"))
    rank = own if own >= 0 else rank_of(path)
    if rank is None:
        raise DamagedFileError(
            f"the rank of {path} is unknown",
            "name the file as torch does, with the rank at the end: comm_lib_trace_rank_3",
        )
    kept = sum(len(held.calls) + len(held.sent) for held in dump.groups.values())
    return Rank(
        rank=rank,
        records=kept,
        source=str(path),
        details={
            "format": "flight_recorder",
            "version": text(value.get("version")) or "",
            "dump": dump,
            "written_ns": status.st_mtime_ns,
        },
    )


def _parsed(data: bytes, path: Path, budget: Budget) -> tuple[Any, Dump]:
    """Read a dump as any plain pickle or as JSON."""
    if data[:1] == b"\x80":
        value = load_plain(data, str(path), budget=budget)
    else:
        budget.check_estimate(json_memory(data))
        try:
            value = parse(data)
        except ValueError as error:
            raise DamagedFileError(f"{path} is not complete JSON: {error}"[:300]) from None
    if not isinstance(value, dict) or not (
        isinstance(value.get("entries"), list) or isinstance(value.get("pg_status"), dict)
    ):
        raise NoDumpError(f"{path} is not a Flight Recorder dump")
    return value, DumpBuilder(value, budget).build()
