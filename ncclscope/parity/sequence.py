"""Everything that a rank posts, in order and in words that other ranks share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ncclscope.errors import InputError
from ncclscope.model import Call, Communicator, Rank, Run
from ncclscope.parity.folding import Node, fold
from ncclscope.parity.spelling import Roles, spell
from ncclscope.signature import P2P_OPS

__all__ = ["Lines", "Section", "Stream", "Vocabulary", "sections"]


class Vocabulary:
    """Numbers for texts, so that long sequences are compared as numbers."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Returns the number of a text, which is the same for equal texts."""
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return found


Lines = Sequence[int]
"""Calls with their roles, each a number of a :class:`Vocabulary`."""


class Stream:
    """All that a rank has kept of its calls, in the order in which it posted them.

    Args:
        rank: Whose they are.
        p2p: Whether sends and receives count.
    """

    def __init__(self, rank: Rank, *, p2p: bool = True) -> None:
        self.rank = rank
        calls = [call for log in rank.logs.values() for call in log.span(log.first, log.calls + 1)]
        if p2p:
            calls += [call for sent in rank.p2p.values() for call in sent]
        calls.sort(key=lambda call: call.position)
        self.calls: Sequence[Call] = calls
        self._on: dict[str, list[Call]] = {}
        self._spelled: dict[tuple[object, ...], str] = {}
        self.roles = Roles(rank, list(dict.fromkeys(call.comm for call in calls)))

    def on(self, key: str) -> list[Call]:
        """Returns the collectives on one communicator."""
        if not self._on:
            for call in self.calls:
                if call.op not in P2P_OPS:
                    self._on.setdefault(call.comm, []).append(call)
        return self._on.get(key, [])

    def communicator(self, key: str) -> Communicator:
        """Returns one of the rank's communicators."""
        log = self.rank.logs.get(key)
        return Communicator(key) if log is None else log.communicator

    def lines(self, words: Vocabulary, *, shapes: bool = True) -> list[int]:
        """Returns each call with its role, as a number of the vocabulary."""
        names = self.roles.names
        return [
            words.number(f"{names[call.comm]} {self.spell(call, shapes=shapes)}")
            for call in self.calls
        ]

    def spell(self, call: Call, *, shapes: bool = True) -> str:
        """Returns one of the rank's calls in a line."""
        # Of a hundred thousand calls a few dozen are different.
        alike = (
            shapes,
            call.comm,
            call.op,
            call.redop,
            call.shape,
            call.numel,
            call.dtype,
            call.root,
            call.peer,
            call.sizes,
            call.out_shape if call.op == "scatter" else None,
            call.captured,
        )
        text = self._spelled.get(alike)
        if text is None:
            comm = self.communicator(call.comm)
            text = self._spelled[alike] = spell(call, comm, self.rank.rank, shapes=shapes)
        return text


@dataclass(frozen=True)
class Section:
    """A sequence, and the ranks that posted it.

    Attributes:
        lines: The calls.
        ranks: Who posted them; empty for one that was read from a file.
        places: Line of the file for each call, for one that was.
    """

    lines: Lines
    ranks: tuple[int, ...] = ()
    places: Sequence[int] = field(default=(), repr=False)

    def folded(self) -> tuple[Node, ...]:
        """Returns the calls with their loops folded."""
        return fold(self.lines)


def sections(run: Run, words: Vocabulary, *, shapes: bool = True) -> list[Section]:
    """Returns the distinct sequences of a run's ranks, that of the lowest rank first.

    Raises:
        InputError: A rank's calls are not all there, so that its sequence is not known.
    """
    _check_whole(run.ranks)
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in run.ranks:
        lines = tuple(Stream(rank).lines(words, shapes=shapes))
        found.setdefault(lines, []).append(rank.rank)
    return [Section(lines, tuple(ranks)) for lines, ranks in found.items()]


def _check_whole(ranks: Iterable[Rank]) -> None:
    for rank in ranks:
        if rank.window:
            raise InputError(
                f"{rank.source or f'rank {rank.rank}'} holds only the last calls of rank "
                f"{rank.rank}",
                "a baseline needs all of them",
            )
        if rank.lost:
            raise InputError(
                f"{rank.lost} calls of rank {rank.rank} have been overwritten",
                f"run the program again with NCCLSCOPE_RECORDS={_enough(rank)}",
            )


def _enough(rank: Rank) -> int:
    return 1 << (rank.records + rank.lost).bit_length()
