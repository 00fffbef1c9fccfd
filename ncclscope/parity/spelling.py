"""How calls and communicators are written down where ranks and runs are compared.

Nothing in the text depends on which rank it is, on how many there are, or on the process:
communicators have the name of the part they play, and peers are told by their distance. A
program that does the same on four ranks and on eight then reads the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ncclscope.model import Call, Communicator, Rank
from ncclscope.model.signature import P2P_OPS, VECTOR_OPS

__all__ = ["Roles", "generalize", "spell"]

_UNNAMED = re.compile(r"|pg\d+|pg-.*")
"""Labels that count a process's groups, as torch does: they differ by rank."""

_UNSAFE = re.compile(r"[^\w./+#-]+")
_SHAPE = re.compile(r" \[[^\]]*\]")
_NUMBER = re.compile(r"\d+")
_SIZES = re.compile(r" (?:sizes \S+(?: each)?|numel \d+)")


class Roles:
    """The parts that a rank's communicators play: ``tp``, ``dp``, ``world``.

    Several of one kind, and groups without a name of their own, are numbered in the order in
    which the rank first used them.

    Args:
        rank: Whose communicators they are.
        used: Keys of the communicators, in the order of their first call.
    """

    def __init__(self, rank: Rank, used: Sequence[str]) -> None:
        self.rank = rank.rank
        self.names: dict[str, str] = {}
        """By key."""
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
    """Returns a call in one line: ``all_reduce sum [15,2] float32``.

    Args:
        call: The call.
        comm: What it was made on.
        rank: Global rank that made it.
        shapes: False where sizes do not count: ``all_reduce sum [*,*] float32``.
    """
    parts = [_UNSAFE.sub("_", call.op)]
    if call.redop:
        parts.append(_UNSAFE.sub("_", call.redop))
    own = call.op in VECTOR_OPS or (call.op == "all_to_all" and call.sizes is not None)
    # The input of a scatter is there on the root alone.
    shape = call.out_shape if call.op == "scatter" else call.shape
    if shape is not None:
        # How many rows are its own, no member shares with the others.
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
    """Returns a spelled call with what depends on sizes taken out."""
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
    # The last rank of a ring sends to the first: that is one further, too.
    return f"{word} {distance - size if distance * 2 > size else distance:+d}"
