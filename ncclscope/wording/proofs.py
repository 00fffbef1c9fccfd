"""Sentences about what the repair of some ranks releases."""

from __future__ import annotations

from collections.abc import Sequence

from ncclscope.model import Communicator
from ncclscope.wording.names import comm_text, plural, ranks_text


def repair(
    expected: Sequence[int],
    changed: Sequence[int],
    calls: int,
    released: int,
    of: int,
    rival: tuple[int, int] | None,
) -> str:
    """Say how many waiting ranks go on if some ranks are repaired."""
    counts = f"{released} of {of} waiting ranks"
    if released == of:
        counts = f"all {plural(of, 'waiting rank')}"
    did = [f"{ranks_text(expected)} did as the others expect"] if expected else []
    if changed:
        whose = "its" if len(changed) == 1 else "their"
        did.append(f"{ranks_text(changed)} had posted {plural(calls, 'call')} as {whose} peers did")
    nearest = "" if rival is None else f"; with rank {rival[0]} instead, {rival[1]} of {of}"
    return f"if {' and '.join(did)}, {counts} would go on{nearest}"


def releases(count: int, of: int) -> str:
    """Say how many of the waiting ranks a repair releases."""
    return f"releases {count} of {of} waiting ranks"


def leaves_end(ranks: Sequence[int]) -> str:
    """Say whose end a repair does not explain."""
    return f"leaves the end of {ranks_text(ranks)} unexplained"


def leaves_unlike(comm: Communicator, seq: int, odd: Sequence[int], others: Sequence[int]) -> str:
    """Say which call differs in spite of a repair."""
    return (
        f"leaves call {seq} on {comm_text(comm)} of {ranks_text(odd)} unlike that of "
        f"{ranks_text(others)}"
    )


def leaves_swap(rank: int, here: Communicator, there: Communicator) -> str:
    """Say that a repair does not explain why a rank posted calls on another communicator."""
    return (
        f"leaves unexplained that rank {rank} posted on {comm_text(here)} what it lacks on "
        f"{comm_text(there)}"
    )
