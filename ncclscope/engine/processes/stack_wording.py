"""Text for classes of stacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ncclscope.engine.processes.stack_classes import StackClass
from ncclscope.wording.names import ranks_text


def place_text(group: StackClass) -> str:
    """Return ``ranks 0 1 3 are in all_reduce at hang.py:3 step``."""
    be = "is" if len(group.ranks) == 1 else "are"
    return f"{ranks_text(group.ranks)} {be} {_where(group)}"


def waiting_text(classes: Sequence[StackClass]) -> str:
    """Return ``ranks 0 1 3 wait in all_reduce at hang.py:3 step``."""
    parts = []
    for group in classes[:3]:
        verb = "waits" if len(group.ranks) == 1 else "wait"
        parts.append(f"{ranks_text(group.ranks)} {verb} {_where(group)}")
    return " and ".join(parts)


def seen(classes: Sequence[StackClass], gap: float) -> tuple[str, ...]:
    """Return one line of evidence for each class; ``gap`` is in seconds."""
    lines = []
    for group in classes:
        motion = group.motion
        samples = sum(bool(stacks.threads) for stacks in motion.worker.stacks)
        if motion.condition == "still":
            how = f"the same in {samples} samples over {gap:g} s"
        else:
            how = motion.condition
        lines.append(f"stacks: {place_text(group)}, {how}")
    return tuple(lines)


def starved_text(shares: Mapping[int, float]) -> str:
    """Return that ranks have no processor for a share of the time; empty where none has."""
    if not shares:
        return ""
    least, most = f"{min(1.0, *shares.values()):.0%}", f"{min(1.0, max(shares.values())):.0%}"
    share = most if least == most else f"{least} to {most}"
    be = "was" if len(shares) == 1 else "were"
    return (
        f"{ranks_text(sorted(shares))} {be} ready to run without a processor for {share} of the "
        "time: the host is overloaded, and they may be slow, not stuck"
    )


def _where(group: StackClass) -> str:
    motion = group.motion
    return f"{'in' if motion.op or motion.work else 'at'} {motion.text}"
