"""Waits in code whose collectives no probe records."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.model import Activity, Run
from ncclscope.wording.names import be, have, ranks_text, sentence, verb, who_text
from ncclscope.wording.phrase import Phrase

ACTIVITIES = {
    "ddp_init": "the constructor of DistributedDataParallel",
    "ddp_forward": "the forward of DistributedDataParallel",
    "ddp_backward": "the backward of DistributedDataParallel",
    "ddp_join": "the join of DistributedDataParallel",
    "broadcast_coalesced": "a broadcast of parameters by C++",
}
"""Activities in which a process posts collectives that no probe records."""


class Unrecorded(Phrase):
    """What follows from collectives that are not recorded."""

    WAITS = "they wait in a collective that no probe records"
    IS_IN = "rank {} is in {}"
    LOST = "the connection was lost in a call that is not recorded"
    LEFT = (
        "{} left the common sequence, not all the others: their call was matched with a "
        "collective that is not recorded"
    )
    ABORTED = (
        "it was matched with an unrecorded collective of {}, and the library ended the process "
        "because of it"
    )


def activity_text(doing: Activity) -> str:
    """Return ``the backward of DistributedDataParallel at train.py:12 step``."""
    what = ACTIVITIES[doing.name]
    return f"{what} at {doing.detail}" if doing.detail else what


def been_in(waiting: Sequence[int], where: str, seconds: float) -> str:
    """Say for how long ranks have been in code without a recorded call."""
    return (
        f"{ranks_text(waiting)} {have(waiting)} been in {where} for {seconds:.0f} s; no call was "
        f"recorded since"
    )


def wait_in(waiting: Sequence[int], where: str, seconds: float, others: Sequence[int] = ()) -> str:
    """Say that ranks wait in such code, and that the smaller side left, if others are elsewhere."""
    wait = f"{sentence(ranks_text(waiting))} {verb(waiting, 'wait')} in {where} for {seconds:.0f} s"
    if not others:
        return (
            f"{wait}. Its collectives are not recorded, so it is unknown which rank left the "
            f"common sequence."
        )
    few = min(others, waiting, key=len)
    return (
        f"{wait}, and {ranks_text(others)} {be(others)} elsewhere: {ranks_text(few)} left the "
        f"common sequence."
    )


def wait_for_ended(
    run: Run, ended: Sequence[int], waiting: Sequence[int], where: str, seconds: float
) -> str:
    """Say that ranks wait in such code, and others have ended."""
    return (
        f"{sentence(who_text(run, ended))} {have(ended)} ended, and {ranks_text(waiting)} "
        f"{verb(waiting, 'wait')} in {where} for {seconds:.0f} s, whose collectives are not "
        f"recorded."
    )
