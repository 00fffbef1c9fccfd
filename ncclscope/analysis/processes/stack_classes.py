"""Stacks of many ranks, merged: classes of ranks at the same place, and their tree.

The idea is that of LLNL's STAT: ranks with the same stack form a class, classes form a prefix
tree whose edges carry sets of ranks, and what differs is seen at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ncclscope.analysis.processes.motion import Motion
from ncclscope.model.snapshot import Frame

__all__ = [
    "LineOrder",
    "StackClass",
    "TreeNode",
    "build_tree",
    "classify",
    "common_depth",
    "order_of",
    "parting_of",
]

_NEAR = 1 << 20


@dataclass(frozen=True)
class StackClass:
    """Ranks at the same place.

    Attributes:
        ranks: Global ranks.
        stances: What they were doing, in the same order.
    """

    ranks: tuple[int, ...]
    motions: tuple[Motion, ...]

    @property
    def motion(self) -> Motion:
        """That of the first of them."""
        return self.motions[0]


@dataclass(frozen=True)
class TreeNode:
    """A frame that some ranks share.

    Attributes:
        frame: The frame.
        ranks: Ranks that are in it.
        still: Those of them in whose stack nothing changed between the samples.
        children: What it called, the most common first.
    """

    frame: Frame
    ranks: tuple[int, ...]
    still: tuple[int, ...]
    children: tuple[TreeNode, ...]

    def to_dict(self) -> dict[str, object]:
        """Returns the subtree, in a form for JSON."""
        return {
            "function": self.frame.function,
            "file": self.frame.file,
            "line": self.frame.line,
            "ranks": list(self.ranks),
            "still": list(self.still),
            "children": [child.to_dict() for child in self.children],
        }


@dataclass(frozen=True)
class LineOrder:
    """Which of two stacks has come further, as a loop's counter tells.

    Attributes:
        ahead: Whether the first has.
        reason: What tells.
        near: Whether they are less than a round of the loop apart.
    """

    ahead: bool
    reason: str
    near: bool = False

    @property
    def relation(self) -> str:
        """``one sub-block ahead of``."""
        word = "ahead of" if self.ahead else "behind"
        return f"one sub-block {word}" if self.near else word


def classify(motions: Iterable[Motion]) -> list[StackClass]:
    """Returns the classes, the largest first, of equally large ones that of the lowest rank."""
    found: dict[object, list[Motion]] = {}
    for motion in motions:
        found.setdefault((motion.op, motion.key), []).append(motion)
    classes = []
    for alike in found.values():
        ordered = tuple(sorted(alike, key=lambda motion: motion.rank))
        classes.append(StackClass(tuple(motion.rank for motion in ordered), ordered))
    return sorted(classes, key=lambda one: (-len(one.ranks), one.ranks))


def build_tree(motions: Mapping[int, Motion]) -> tuple[TreeNode, ...]:
    """Merges the stacks of all ranks that have one."""
    return _merge(
        [(rank, motion.frames, motion.condition) for rank, motion in sorted(motions.items())], 0
    )


def _merge(stacks: Sequence[tuple[int, Sequence[Frame], str]], depth: int) -> tuple[TreeNode, ...]:
    groups: dict[tuple[str, str, int], list[tuple[int, Sequence[Frame], str]]] = {}
    for stack in stacks:
        if depth < len(stack[1]):
            frame = stack[1][depth]
            groups.setdefault((frame.file, frame.function, frame.line), []).append(stack)
    nodes = [
        TreeNode(
            frame=alike[0][1][depth],
            ranks=tuple(rank for rank, _, _ in alike),
            still=tuple(rank for rank, _, condition in alike if condition != "moving"),
            children=_merge(alike, depth + 1),
        )
        for alike in groups.values()
    ]
    return tuple(sorted(nodes, key=lambda node: (-len(node.ranks), node.ranks)))


def common_depth(one: Sequence[Frame], other: Sequence[Frame]) -> int:
    """Returns how many frames two stacks share before they part, the lines left aside."""
    depth = 0
    for first, second in zip(one, other, strict=False):
        if (first.file, first.function) != (second.file, second.function):
            break
        depth += 1
        if first.line != second.line:
            break
    return depth


def order_of(odd: Motion, peers: Sequence[Motion]) -> LineOrder | None:
    """Tells whether a rank is ahead of its peers, who are all at one place.

    Only a loop's counter tells. Two lines may be the branches of one decision, and of two that
    follow each other a loop may have led back to the first.

    Returns:
        None where no counter differs.
    """
    ours, theirs = odd.frames, peers[0].frames
    depth = common_depth(ours, theirs)
    for level in range(depth):
        counted = _counted(level, odd, peers)
        if counted is None:
            continue
        name, own, usual = counted
        place = f"{name} in {ours[level].base}:{ours[level].line} {ours[level].name}"
        reason = f"{place} is {own}, and {usual} on its peers"
        near = False
        if abs(own - usual) == 1 and _parts_at(ours, theirs, depth):
            mine, other = ours[depth - 1].line, theirs[depth - 1].line
            near = (own > usual) == (mine < other)
            if near:
                reason += (
                    f"; it is in line {mine} of {ours[depth - 1].name}, they in line "
                    f"{other}: less than one round of the loop apart"
                )
        return LineOrder(own > usual, reason, near)
    return None


def parting_of(odd: Motion, peers: Motion) -> str | None:
    """Returns where two stacks differ first, if that is in a function that both are in."""
    ours, theirs = odd.frames, peers.frames
    depth = common_depth(ours, theirs)
    if not _parts_at(ours, theirs, depth):
        return None
    mine, other = ours[depth - 1], theirs[depth - 1]
    return f"in {mine.name} of {mine.base}, at lines {mine.line} and {other.line}"


def _parts_at(ours: Sequence[Frame], theirs: Sequence[Frame], depth: int) -> bool:
    return depth > 0 and ours[depth - 1].line != theirs[depth - 1].line


def _counted(level: int, odd: Motion, peers: Sequence[Motion]) -> tuple[str, int, int] | None:
    """A counter that the peers agree in and the rank does not."""
    own = odd.frames[level].counters
    for name, value in own.items():
        usual = {
            peer.frames[level].counters.get(name) if level < len(peer.frames) else None
            for peer in peers
        }
        (first, *more) = usual
        if not more and first is not None and first != value and abs(first - value) < _NEAR:
            return name, value, first
    return None
