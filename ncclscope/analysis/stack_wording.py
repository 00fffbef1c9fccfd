"""How classes of stacks are put into words."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.analysis.stack_classes import StackClass
from ncclscope.analysis.wording import ranks_text

__all__ = ["place_text", "seen", "waiting_text"]


def place_text(group: StackClass) -> str:
    """``ranks 0 1 3 stand in all_reduce at hang.py:3 step``."""
    verb = "stands" if len(group.ranks) == 1 else "stand"
    where = "in" if group.stance.op else "at"
    return f"{ranks_text(group.ranks)} {verb} {where} {group.stance.text}"


def waiting_text(classes: Sequence[StackClass]) -> str:
    """``ranks 0 1 3 wait in all_reduce at hang.py:3 step``."""
    parts = []
    for group in classes[:3]:
        verb = "waits" if len(group.ranks) == 1 else "wait"
        where = "in" if group.stance.op else "at"
        parts.append(f"{ranks_text(group.ranks)} {verb} {where} {group.stance.text}")
    return " and ".join(parts)


def seen(classes: Sequence[StackClass], gap: float) -> tuple[str, ...]:
    """One line of evidence for each class."""
    lines = []
    for group in classes:
        stance = group.stance
        if stance.condition == "still":
            how = f"the same in both samples, {gap:g} s apart"
        elif stance.condition == "stopped":
            how = "stopped"
        else:
            how = stance.condition
        lines.append(f"stacks: {place_text(group)}, {how}")
    return tuple(lines)
