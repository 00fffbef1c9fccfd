"""Let ranks agree on what they are about to do, before they enqueue it.

Each rank describes its next calls as a line of text, its *plan*. The ranks exchange digests of
their plans: three numbers per rank in one all_gather of constant shape. A rank with another plan,
or with invalid arguments, takes part as well. Only if the digests differ do the ranks exchange the
plans themselves. All ranks know by then that they differ, so all enqueue that second call, and all
raise the same error.
"""

from __future__ import annotations

from hashlib import blake2b

import torch

from ncclscope.errors import DispatchError
from ncclscope.model.ties import grouped
from ncclscope_patches.moe_dispatch.groups import RowGroup

_DIGEST, _LENGTH, _WRONG, _ROWS = range(4)


def agree(group: RowGroup, plan: str, *, wrong: str = "", rows: int = 0) -> list[int]:
    """Compare the plans of all members, and exchange their numbers of rows.

    Args:
        group: The group whose members agree.
        plan: This rank's plan; it must be equal on all ranks.
        wrong: Error in this rank's arguments; empty if they are valid.
        rows: This rank's number of rows.

    Returns:
        The number of rows of each member.

    Raises:
        DispatchError: Plans differ, or a rank's arguments are invalid; raised on all members.
    """
    text = f"{plan} ({wrong})" if wrong else plan
    words = [digest(plan), len(text.encode()), int(bool(wrong)), rows]
    table = group.gather(torch.tensor([words], device=group.device)).tolist()
    if any(row[_WRONG] or row[_DIGEST] != words[_DIGEST] for row in table):
        lengths = [row[_LENGTH] for row in table]
        raise _disagreement(group, text, lengths)
    return [int(row[_ROWS]) for row in table]


def digest(plan: str) -> int:
    """Return a 63-bit digest of a plan."""
    return int.from_bytes(blake2b(plan.encode(), digest_size=8).digest(), "little") >> 1


def _disagreement(group: RowGroup, text: str, lengths: list[int]) -> DispatchError:
    """Exchange the plans, and return the error to raise."""
    line = text.encode().ljust(max(lengths), b" ")
    sent = torch.frombuffer(bytearray(line), dtype=torch.uint8).to(group.device)
    table = group.gather(sent.unsqueeze(0)).tolist()
    plans = {
        rank: bytes(row).decode(errors="replace").rstrip()
        for rank, row in zip(group.ranks, table, strict=True)
    }
    ranks = grouped(plans, lambda rank: plans[rank])
    stated = "; ".join(
        f"{'ranks' if len(own) > 1 else 'rank'} {' '.join(map(str, own))}: {plan}"
        for plan, own in ranks.items()
    )
    return DispatchError(
        f"nothing was dispatched, since ranks are about to do different things: {stated}",
        "take sizes from agree(), in the same step on all ranks",
        plans=plans,
    )
