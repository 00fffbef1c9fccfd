"""Real programs of four gloo processes, and the Flight Recorder dumps that they leave."""

from __future__ import annotations

from pathlib import Path

from tests.corpus.registry import planted
from tests.corpus.truth import CERTAIN, LIKELY, UNDECIDED, Truth
from tests.integration.flight_recorder_truths import FAULTS, play

__all__ = ["play_gloo"]


NAMES = ("absent", "circle", "extra", "killed", "pair_mismatch", "skip", "swapped", "wrong_op")
SOUND = ("healthy", "uneven", "wrapped")


def play_gloo(directory: Path) -> dict[str, Truth]:
    """Run some programs, and return the truth about each folder of dumps.

    Args:
        directory: Where the folders go.

    Raises:
        RuntimeError: A program failed.
        subprocess.TimeoutExpired: The programs did not come to their end.
    """
    play(directory, [*NAMES, *SOUND], waited=NAMES)
    truths = {}
    for name in NAMES:
        fault = FAULTS[name]
        kinds = {fault.kind: CERTAIN}
        if name == "circle":  # rank 3 is early in another group, or has left this call out
            kinds = {"not_joined": LIKELY}
        label = fault.label.replace("default_pg", "world")
        truths[name] = planted(kinds, fault.ranks, groups=(label,), seqs=(fault.seq,))
    return truths | dict.fromkeys(SOUND, UNDECIDED)
