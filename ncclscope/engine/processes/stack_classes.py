"""Merge the stacks of many ranks into classes with equal stacks, and into a prefix tree.

The idea is that of LLNL's STAT: ranks with the same stack form a class, and classes form a prefix
tree whose edges carry sets of ranks, so that differences are visible at a glance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ncclscope.engine.processes.frames import collectives_of, is_library
from ncclscope.engine.processes.motion import Motion
from ncclscope.model.snapshot import Frame
from ncclscope.wording.stacks import Seen

_NEAR = 1 << 20


@dataclass(frozen=True)
class StackClass:
    """Ranks with the same stack.

    Attributes:
        ranks: Global ranks.
        motions: The ranks' motions, in the same order.
    """

    ranks: tuple[int, ...]
    motions: tuple[Motion, ...]

    @property
    def motion(self) -> Motion:
        """The motion of the first rank."""
        return self.motions[0]

    @property
    def where(self) -> str:
        """Where the ranks are: ``in all_reduce at hang.py:3 step``."""
        return f"{'in' if self.motion.op or self.motion.work else 'at'} {self.motion.text}"


@dataclass(frozen=True)
class TreeNode:
    """A frame that some ranks share.

    Attributes:
        frame: The frame.
        ranks: Ranks that are in it.
        still: The ranks whose stack did not change between the samples.
        children: The frames that it called, the most common first.
    """

    frame: Frame
    ranks: tuple[int, ...]
    still: tuple[int, ...]
    children: tuple[TreeNode, ...]

    def to_dict(self) -> dict[str, object]:
        """Return the subtree, in a form for JSON."""
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
    """Which of two stacks is ahead, according to a loop counter.

    Attributes:
        ahead: Whether the first stack is ahead.
        reason: The evidence in words.
        near: Whether the stacks are less than one iteration of the loop apart.
    """

    ahead: bool
    reason: str
    near: bool = False

    @property
    def relation(self) -> str:
        """Return the relation as text: ``less than one iteration ahead of``."""
        word = "ahead of" if self.ahead else "behind"
        return Seen.NEARLY.of(word) if self.near else word


def classify(motions: Iterable[Motion]) -> list[StackClass]:
    """Return the classes, the largest first; of equally large ones, the one of the lowest rank."""
    found: dict[object, list[Motion]] = {}
    for motion in motions:
        found.setdefault((motion.op, motion.key), []).append(motion)
    classes = []
    for alike in found.values():
        ordered = tuple(sorted(alike, key=lambda motion: motion.rank))
        classes.append(StackClass(tuple(motion.rank for motion in ordered), ordered))
    return sorted(classes, key=lambda one: (-len(one.ranks), one.ranks))


def waiting_text(classes: Sequence[StackClass]) -> str:
    """Return ``ranks 0 1 3 wait in all_reduce at hang.py:3 step``."""
    return " and ".join(Seen.WAITING.of(group) for group in classes[:3])


def seen(classes: Sequence[StackClass], gap: float) -> tuple[str, ...]:
    """Return one line of evidence for each class; ``gap`` is in seconds."""
    lines = []
    for group in classes:
        samples = sum(bool(stacks.threads) for stacks in group.motion.worker.stacks)
        state = group.motion.condition
        how = Seen.THE_SAME.of(samples, gap) if state == "still" else state
        lines.append(Seen.STACKS.of(group, how))
    return tuple(lines)


def build_tree(motions: Mapping[int, Motion]) -> tuple[TreeNode, ...]:
    """Merge the stacks of all ranks that have one."""
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
    """Return how many frames two stacks share, up to the first one with different lines."""
    depth = 0
    for first, second in zip(one, other, strict=False):
        if (first.file, first.function) != (second.file, second.function):
            break
        depth += 1
        if first.line != second.line:
            break
    return depth


def order_of(odd: Motion, peers: Sequence[Motion]) -> LineOrder | None:
    """Return whether a rank is ahead of its peers, which all have the same stack.

    Only a loop counter shows this. Two different lines may be branches of one condition, or a loop
    may have jumped back from the later line to the earlier one.

    Returns:
        None where no counter differs.
    """
    ours, theirs = odd.frames, peers[0].frames
    depth = common_depth(ours, theirs)
    for level in range(depth):
        counted = _counted(level, odd, peers)
        if counted is None:
            continue
        name, own, common = counted
        frame = ours[level]
        reason = Seen.COUNTED.of(name, frame.base, frame.line, frame.name, own, common)
        near = False
        if abs(own - common) == 1 and _diverges_at(ours, theirs, depth):
            mine, other = ours[depth - 1].line, theirs[depth - 1].line
            near = (own > common) == (mine < other)
            if near:
                reason += Seen.IN_LINE.of(mine, ours[depth - 1].name, other)
        return LineOrder(own > common, reason, near)
    return None


def divergence_of(odd: Motion, peers: Motion) -> str | None:
    """Return where two stacks first differ, if that is in a function that both are in."""
    ours, theirs = odd.frames, peers.frames
    depth = common_depth(ours, theirs)
    if not _diverges_at(ours, theirs, depth):
        return None
    mine, other = ours[depth - 1], theirs[depth - 1]
    return Seen.AT_LINES.of(mine.name, mine.base, mine.line, other.line)


def has_left_loop(one: Motion, other: Motion) -> bool:
    """Return whether a rank is past a loop in which another one is, in the same function."""
    depth = common_depth(one.frames, other.frames)
    if not _diverges_at(one.frames, other.frames, depth):
        return False
    loop = other.frames[depth - 1].loop
    return bool(loop) and loop[-1] < one.frames[depth - 1].line


def is_first_in_loop(one: Motion, other: Motion) -> bool:
    """Return whether a rank's loop makes no other collective before, so that it may be round again.

    An iteration more than that of another rank, which is past the loop, ends in its first call.
    """
    depth = common_depth(one.frames, other.frames)
    return not collectives_of(one.frames[depth - 1].before)


def _diverges_at(ours: Sequence[Frame], theirs: Sequence[Frame], depth: int) -> bool:
    return depth > 0 and ours[depth - 1].line != theirs[depth - 1].line


def _counted(level: int, odd: Motion, peers: Sequence[Motion]) -> tuple[str, int, int] | None:
    """Return a counter on which the peers agree and the rank differs: name, own, common value.

    In a library, a number of that name may be the index of the process or of a thread.
    """
    if is_library(odd.frames[level]):
        return None
    own = odd.frames[level].counters
    for name, value in own.items():
        (first, *more) = {
            peer.frames[level].counters.get(name) if level < len(peer.frames) else None
            for peer in peers
        }
        if not more and first is not None and first != value and abs(first - value) < _NEAR:
            return name, value, first
    return None
