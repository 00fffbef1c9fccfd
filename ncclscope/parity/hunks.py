"""Two sequences and what changes between them, as the lines of a unified diff, loops folded.

What is folded is the diff itself, not the sequences: where a call has changed in each of 61
layers, that is one loop with one line taken out and one put in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ncclscope.parity.changes import Change
from ncclscope.parity.folding import Loop, Node, fold

__all__ = ["HunkRow", "folded_calls", "rows"]

LONG = 8
"""Lines from which a loop that is the same on both sides is only begun."""
MOST = 1000
"""Lines of a comparison that are shown."""

_KINDS = " -+"


class HunkRow(NamedTuple):
    """One line.

    Attributes:
        kind: ``" "`` on both sides, ``-`` only in the first, ``+`` only in the second, ``@``
            for calls that are left out.
        text: The call, or what was left out; empty at the head of a loop.
        times: How many times in a row, where more than once.
        depth: In how many loops it stands.
        a: First call of the first sequence that it stands for, from 0, and how many; none in
            a loop.
        b: The same in the second sequence.
        at: First call of each sequence that it stands for, in a loop, too.
    """

    kind: str
    text: str
    times: int = 1
    depth: int = 0
    a: tuple[int, int] = (0, 0)
    b: tuple[int, int] = (0, 0)
    at: tuple[int, int] = (0, 0)


class _Size(NamedTuple):
    """What a node stands for: calls of the one side, of the other, and on both."""

    a: int
    b: int
    same: int


def rows(
    a: Sequence[int],
    b: Sequence[int],
    changes: Sequence[Change],
    texts: Sequence[str],
    context: int = 3,
) -> list[HunkRow]:
    """Returns the lines to show.

    Args:
        a: One sequence, as numbers of texts.
        b: The other.
        changes: What turns the one into the other.
        texts: What the numbers stand for.
        context: Equal lines, a loop counting as one, around each change.
    """
    nodes = fold(_script(a, b, changes))
    sizes = [_size(node) for node in nodes]
    near = _near([size.a == size.b == size.same for size in sizes], context)
    found: list[HunkRow] = []
    x = y = hidden = 0
    for node, size, shown in zip(nodes, sizes, near, strict=True):
        if shown:
            found += _hidden(hidden)
            hidden = 0
            found += _shortened(list(_rows(node, 0, (x, y), texts)))
        else:
            hidden += size.a
        x, y = x + size.a, y + size.b
    found += _hidden(hidden)
    if len(found) > MOST:
        found[MOST:] = [HunkRow("@", f"{len(found) - MOST} more lines, see --json")]
    return found


def _script(a: Sequence[int], b: Sequence[int], changes: Sequence[Change]) -> list[int]:
    """Returns one number for each line of the unfolded diff: which text, and which kind."""
    own, other = 3 * np.array(a, np.int64), 3 * np.array(b, np.int64)
    parts = []
    x = 0
    for change in changes:
        parts.append(own[x : change.a_start])
        parts.append(own[change.a_start : change.a_stop] + 1)
        parts.append(other[change.b_start : change.b_stop] + 2)
        x = change.a_stop
    script: list[int] = np.concatenate([*parts, own[x:]]).tolist()
    return script


def _size(node: Node) -> _Size:
    if not isinstance(node, Loop):
        kind = _KINDS[node % 3]
        return _Size(int(kind != "+"), int(kind != "-"), int(kind == " "))
    sizes = [_size(inner) for inner in node.body]
    return _Size(
        node.count * sum(size.a for size in sizes),
        node.count * sum(size.b for size in sizes),
        node.count * sum(size.same for size in sizes),
    )


def _near(same: Sequence[bool], context: int) -> list[bool]:
    """Says for each node whether it is shown: it has changed, or is near one that has."""
    shown = [not equal for equal in same]
    for order in (range(len(same)), range(len(same) - 1, -1, -1)):
        left = 0
        for place in order:
            if not same[place]:
                left = context
            elif left:
                shown[place] = True
                left -= 1
    return shown


def _hidden(calls: int) -> Iterator[HunkRow]:
    if calls:
        yield HunkRow("@", f"{calls} equal call{'s' * (calls != 1)}")


def _shortened(found: list[HunkRow]) -> list[HunkRow]:
    if len(found) <= LONG or any(row.kind in "-+" for row in found):
        return found
    more = len(found) - LONG // 2
    return [*found[: LONG // 2], HunkRow("@", f"{more} more lines", depth=1)]


def _rows(node: Node, depth: int, at: tuple[int, int], texts: Sequence[str]) -> Iterator[HunkRow]:
    size = _size(node)
    x, y = at
    a, b = ((0, 0), (0, 0)) if depth else ((x, size.a), (y, size.b))
    if not isinstance(node, Loop):
        yield HunkRow(_KINDS[node % 3], texts[node // 3], 1, depth, a, b, at)
    elif len(node.body) == 1 and not isinstance(node.body[0], Loop):
        code = node.body[0]
        yield HunkRow(_KINDS[code % 3], texts[code // 3], node.count, depth, a, b, at)
    else:
        kind = "+" if not size.a else "-" if not size.b else " "
        yield HunkRow(kind, "", node.count, depth, a, b, at)
        for inner in node.body:
            yield from _rows(inner, depth + 1, (x, y), texts)
            step = _size(inner)
            x, y = x + step.a, y + step.b


def folded_calls(nodes: Sequence[Node], texts: Sequence[str]) -> list[Any]:
    """Returns a folded sequence for JSON: texts, and objects with ``times`` and ``calls``."""
    return [
        {"times": node.count, "calls": folded_calls(node.body, texts)}
        if isinstance(node, Loop)
        else texts[node]
        for node in nodes
    ]
