"""What ranks make sure of before they post anything that depends on it.

Each says what it is about to do, as a line of text, its *plan*. What is exchanged is a digest of
it, three numbers a rank in one all_gather, always of the same shape: a rank that is about to do
something else, or that has found its own arguments to be wrong, takes part like all others. Only
where the digests differ are the lines themselves exchanged. All ranks know then that they
differ, so all of them post that second call, and all of them raise with the same words.
"""

from __future__ import annotations

from hashlib import blake2b

import torch

from ncclscope.errors import DispatchError
from ncclscope_patches.moe_dispatch.groups import RowGroup

__all__ = ["agree"]

_DIGEST, _LENGTH, _WRONG, _ROWS = range(4)


def agree(group: RowGroup, plan: str, *, wrong: str = "", rows: int = 0) -> list[int]:
    """Compare plans, and tell the rows of each rank.

    Args:
        group: Whose members agree.
        plan: What this rank is about to do; equal on all ranks where they go together.
        wrong: What is wrong with its arguments, if anything is.
        rows: What the others are to be told.

    Returns:
        The rows of each member.

    Raises:
        DispatchError: Plans differ, or are wrong on some rank. It is raised on all members.
    """
    text = f"{plan} ({wrong})" if wrong else plan
    words = [digest(plan), len(text.encode()), int(bool(wrong)), rows]
    table = group.gather(torch.tensor([words], device=group.device)).tolist()
    if any(row[_WRONG] or row[_DIGEST] != words[_DIGEST] for row in table):
        lengths = [row[_LENGTH] for row in table]
        raise _disagreement(group, text, lengths)
    return [int(row[_ROWS]) for row in table]


def digest(plan: str) -> int:
    """Return 63 bits that differ where plans do."""
    return int.from_bytes(blake2b(plan.encode(), digest_size=8).digest(), "little") >> 1


def _disagreement(group: RowGroup, text: str, lengths: list[int]) -> DispatchError:
    """Exchange the plans, and return what is to be raised."""
    line = text.encode().ljust(max(lengths), b" ")
    sent = torch.frombuffer(bytearray(line), dtype=torch.uint8).to(group.device)
    table = group.gather(sent.unsqueeze(0)).tolist()
    plans = {
        rank: bytes(row).decode(errors="replace").rstrip()
        for rank, row in zip(group.ranks, table, strict=True)
    }
    ranks: dict[str, list[int]] = {}
    for rank, plan in plans.items():
        ranks.setdefault(plan, []).append(rank)
    said = "; ".join(
        f"{'ranks' if len(own) > 1 else 'rank'} {' '.join(map(str, own))}: {plan}"
        for plan, own in ranks.items()
    )
    return DispatchError(
        f"nothing was dispatched, since ranks are about to do different things: {said}",
        "take sizes from agree(), in the same step on all ranks",
        plans=plans,
    )
