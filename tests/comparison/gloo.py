"""Real gloo programs, their dumps as written and with what torch leaves out filled in."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.runners.dumps import pickled
from ncclscope.readers.flight_recorder.plain_pickle import load_plain
from tests.comparison.scenarios import Truth
from tests.integration.flight_recorder_programs import JSON, KILLED, LOST
from tests.integration.flight_recorder_truths import FAULTS, HEALTHY, play

__all__ = ["INCOMPLETE", "TRUTHS", "play_all", "repaired"]

_MEMBERS = {"default_pg": ((0, 1, 2, 3),), "ep": ((0, 1, 2, 3),), "tp": ((0, 1), (2, 3))}
_MORE = {
    "absent_and_wrong": Truth("op_mismatch", (1, 3), 10),
    "pair_absent": Truth("not_joined", (3,), 4, also=(10,)),
}
TRUTHS: dict[str, Truth | None] = {
    name: _MORE.get(name, Truth(truth.kind, truth.ranks, truth.seq))
    for name, truth in FAULTS.items()
    if name not in JSON
} | dict.fromkeys(name for name in HEALTHY if name not in JSON)
"""What the programs do whose dumps are pickles, as torch's analyzer needs them."""
INCOMPLETE = frozenset({*KILLED, *LOST})


def play_all(directory: Path) -> None:
    """Play the programs, and leave a folder of dumps for each."""
    play(directory, list(TRUTHS), waited=[name for name, truth in TRUTHS.items() if truth])


def repaired(directory: Path) -> Path:
    """Write the dumps of a folder again, with the members of the groups.

    torch 2.13 describes gloo's groups under an empty name and without members.
    """
    copy = directory.with_name(directory.name + "-repaired")
    copy.mkdir()
    for path in directory.iterdir():
        value = load_plain(path.read_bytes(), str(path))
        rank = int(path.name.rpartition("_")[2])
        groups = {tuple(entry["process_group"]) for entry in value["entries"]}
        value["pg_config"] = {
            name: {
                "name": name,
                "desc": desc,
                "ranks": str(list(next(own for own in _MEMBERS[desc] if rank in own))),
            }
            for name, desc in sorted(groups)
        }
        (copy / path.name).write_bytes(pickled(value))
        status = path.stat()
        os.utime(copy / path.name, ns=(status.st_atime_ns, status.st_mtime_ns))
    return copy
