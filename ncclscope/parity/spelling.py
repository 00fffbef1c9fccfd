"""Spelling of calls and communicators for comparisons of ranks and runs.

The text does not depend on the rank, the number of ranks or the process: communicators are named
by role, and peers by distance. So a program that does the same on four ranks and on eight has the
same text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ncclscope.model import Call, Communicator, Rank
from ncclscope.model.signature import P2P_OPS, VECTOR_OPS

_UNNAMED = re.compile(r"|pg\d+|pg-.*")
"""Labels that number the groups of a process, as torch's do: they differ by rank."""

_UNSAFE = re.compile(r"[^\w./+#-]+")
_SHAPE = re.compile(r" \[[^\]]*\]")
_NUMBER = re.compile(r"\d+")
_SIZES = re.compile(r" (?:sizes \S+(?: each)?|numel \d+)")


class Roles:
    """Roles of a rank's communicators: ``tp``, ``dp``, ``world``.

    Several of one kind, and unnamed groups, are numbered in the order of their first call.

    Args:
        rank: The rank.
        used: Keys of the communicators, in the order of their first call.
    """

    def __init__(self, rank: Rank, used: Sequence[str]) -> None:
        self.rank = rank.rank
        self.names: dict[str, str] = {}
        """Role by key."""
        kinds: dict[str, int] = {}
        for key in used:
            kind = _kind(rank.logs[key].communicator) if key in rank.logs else "group"
            number = kinds[kind] = kinds.get(kind, 0) + 1
            first = kind != "group" and number == 1
            self.names[key] = kind if first else f"{kind}#{number}"


def _kind(comm: Communicator) -> str:
    if _UNNAMED.fullmatch(comm.label):
        return "group"
    return _UNSAFE.sub("_", comm.kind) or "group"


def spell(call: Call, comm: Communicator, rank: int, *, shapes: bool = True) -> str:
    """Return a call in one line: ``all_reduce sum [15,2] float32``.

    Args:
        call: The call.
        comm: Its communicator.
        rank: Global rank that posted it.
        shapes: False to replace sizes: ``all_reduce sum [*,*] float32``.
    """
    parts = [_UNSAFE.sub("_", call.op)]
    if call.redop:
        parts.append(_UNSAFE.sub("_", call.redop))
    own = call.op in VECTOR_OPS or (call.op == "all_to_all" and call.sizes is not None)
    # Only the root of a scatter has an input.
    shape = call.out_shape if call.op == "scatter" else call.shape
    if shape is not None:
        # The number of rows differs by member: spell it as v.
        first = ["v", *map(str, shape[1:])] if own and shape else [str(size) for size in shape]
        parts.append(f"[{','.join(first)}]")
    elif call.numel and call.op != "scatter":
        parts.append(f"numel {call.numel}")
    if call.dtype:
        parts.append(_UNSAFE.sub("_", call.dtype))
    if call.root is not None:
        parts.append(f"root {call.root}")
    if call.op in P2P_OPS:
        parts.append(_peer(call, comm, rank))
    if call.op in VECTOR_OPS and call.sizes:
        even = len(set(call.sizes)) == 1
        parts.append(
            f"sizes {call.sizes[0]} each" if even else f"sizes {','.join(map(str, call.sizes))}"
        )
    if call.captured:
        parts.append("captured")
    if call.replay is not None:
        parts.append("replayed")
    text = " ".join(parts)
    return text if shapes else generalize(text)


def generalize(text: str) -> str:
    """Return a spelled call without its sizes."""
    shapes = _SHAPE.sub(lambda found: _NUMBER.sub("*", found.group()), text)
    return _SIZES.sub("", shapes)


def _peer(call: Call, comm: Communicator, rank: int) -> str:
    word = "to" if call.op == "send" else "from"
    if call.peer is None:
        return f"{word} any"
    if rank not in comm.ranks:
        return f"{word} {call.peer}"
    size = len(comm.ranks)
    distance = (call.peer - comm.ranks.index(rank)) % size
    # The last rank of a ring sends to the first, at distance +1.
    return f"{word} {distance - size if distance * 2 > size else distance:+d}"
