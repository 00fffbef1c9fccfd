"""What the programs of ``flight_recorder_programs.py`` do, and how they are played."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support import fork_server

__all__ = ["FAULTS", "HEALTHY", "Truth", "play"]

PROGRAM = Path(__file__).with_name("flight_recorder_programs.py")
SECONDS = 240
PRELOAD = ("torch.distributed", "torch._inductor.codecache")
HEALTHY = (
    "healthy",
    "healthy_json",
    "root_collectives",
    "running",
    "send_and_receive",
    "under_way",
    "uneven",
    "wrapped",
    "wrapped_away",
)


@dataclass(frozen=True)
class Truth:
    """Outcome of a scenario.

    Attributes:
        kind: What its verdict should be.
        ranks: The ranks that did it.
        seq: Where.
        label: On which communicator.
        status: What the run should be called.
    """

    kind: str
    ranks: tuple[int, ...]
    seq: int
    label: str = "default_pg"
    status: str = "diverged"


FAULTS = {
    "absent": Truth("not_joined", (1,), 10, status="hung"),
    "absent_active": Truth("not_joined", (1,), 10, status="hung"),
    "absent_and_wrong": Truth("op_mismatch", (3,), 10),
    "circle": Truth("not_joined", (3,), 4, status="hung"),
    "circle_of_pairs": Truth("not_joined", (3,), 4, status="hung"),
    "extra": Truth("extra_call", (1,), 6),
    "killed": Truth("dead_rank", (2,), 10, status="hung"),
    "pair_absent": Truth("not_joined", (3,), 4, "tp:1", status="hung"),
    "pair_mismatch": Truth("op_mismatch", (3,), 4, "tp:1"),
    "skip": Truth("missing_call", (2,), 6),
    "swapped": Truth("comm_swap", (3,), 6, "ep:0"),
    "wrapped_wrong": Truth("op_mismatch", (0,), 21),
    "wrong_dtype": Truth("dtype_mismatch", (0,), 10),
    "wrong_op": Truth("op_mismatch", (3,), 10),
    "wrong_op_json": Truth("op_mismatch", (3,), 10),
    "wrong_size": Truth("size_mismatch", (3,), 10),
}


def play(directory: Path, names: Sequence[str], waited: Iterable[str]) -> None:
    """Run scenarios, and leave a folder of dumps for each.

    Two processes play them, since most of the time is waiting.

    Args:
        directory: Where to.
        names: Of the scenarios.
        waited: Those whose files are to be as old as if somebody had waited before he
            dumped. At once it would be a snapshot.
    """
    environment = {key: value for key, value in os.environ.items() if "TORCH" not in key}
    players = [
        fork_server.Popen(
            [sys.executable, str(PROGRAM), str(directory), *names[part::2]],
            preload=PRELOAD,
            env=environment,
            stderr=subprocess.PIPE,
        )
        for part in range(2)
    ]
    try:
        deadline = time.monotonic() + SECONDS
        output = [player.communicate(timeout=deadline - time.monotonic())[1] for player in players]
    finally:
        for player in players:
            player.kill()
            player.wait()
            if player.stderr is not None:
                player.stderr.close()
    if [player.returncode for player in players] != [0, 0]:
        raise RuntimeError(f"a program failed: {output}")
    for name in waited:
        for file in (directory / name).iterdir():
            later = file.stat().st_mtime + 600
            os.utime(file, (later, later))
