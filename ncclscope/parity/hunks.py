"""Lines of a unified diff of two sequences, with repeats as loops.

Loops are found in the diff itself, not in the sequences: a call that changed in each of 61 layers
is one loop, with one line deleted and one inserted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ncclscope.parity.changes import Change
from ncclscope.parity.folding import Loop, Node, fold

LONG = 8
"""Lines from which an equal loop is shown by its beginning only."""
MOST = 1000
"""Most lines shown of a comparison."""

_KINDS = " -+"


class HunkRow(NamedTuple):
    """One line of a diff.

    Attributes:
        kind: ``" "`` on both sides, ``-`` only in the first, ``+`` only in the second, ``@``
            for hidden calls.
        text: The call, or the number of hidden ones; empty at the head of a loop.
        times: Number of repetitions.
        depth: Number of enclosing loops.
        a: Index of its first call in the first sequence, and number of calls; 0 calls in a loop.
        b: The same in the second sequence.
        at: Index of its first call in each sequence, also in a loop.
    """

    kind: str
    text: str
    times: int = 1
    depth: int = 0
    a: tuple[int, int] = (0, 0)
    b: tuple[int, int] = (0, 0)
    at: tuple[int, int] = (0, 0)


class _Size(NamedTuple):
    """Number of calls of a node: of the first side, of the second, and on both."""

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
    """Return the lines to show.

    Args:
        a: First sequence, as numbers of texts.
        b: Second sequence.
        changes: Changes that turn ``a`` into ``b``.
        texts: Text of each number.
        context: Equal lines around each change; a loop is one line.
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
    """Return one number for each line of the diff: 3 x the text's number + the kind's."""
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
    """Return for each node whether it is shown: it has changed, or is near a change."""
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
    """Return calls and loops for JSON: texts, and objects with ``times`` and ``calls``."""
    return [
        {"times": node.count, "calls": folded_calls(node.body, texts)}
        if isinstance(node, Loop)
        else texts[node]
        for node in nodes
    ]
