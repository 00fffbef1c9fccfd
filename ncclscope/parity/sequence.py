"""Call sequence of a rank, spelled so that it can be compared with other ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ncclscope.errors import DamagedFileError, InputError
from ncclscope.model import Call, Communicator, Rank, Run
from ncclscope.model.ties import grouped
from ncclscope.parity.folding import Node, fold
from ncclscope.parity.spelling import Roles, spell
from ncclscope.readers.ring.distinct import distinct_calls, group_calls

MOST_REPLAYED = 1 << 23
"""Most calls of one rank, with replayed ones, that are compared one by one: 1 GB."""


class Vocabulary:
    """Numbering of texts, so that long sequences are compared as numbers."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text; equal texts have equal numbers."""
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return found


Lines = Sequence[int]
"""Calls with their roles, each a number of a :class:`Vocabulary`."""


class CallStream:
    """Kept calls of a rank, in the order of posting.

    Creations of groups are left out: their number depends on the number of ranks.

    Args:
        rank: The rank.
        p2p: Whether to include sends and receives.

    Raises:
        InputError: There are too many calls to compare them one by one.
    """

    def __init__(self, rank: Rank, *, p2p: bool = True) -> None:
        if any(log.communicator.creates_groups for log in rank.logs.values()):
            logs = {
                key: log for key, log in rank.logs.items() if not log.communicator.creates_groups
            }
            rank = replace(rank, logs=logs)
        self.rank = rank
        _check_size(rank)
        self._logs = list(rank.logs.values())
        found = [distinct_calls(log) for log in self._logs]
        self._own = len(found)
        """Number of parts that are logs; the parts after them are sends and receives."""
        self._sent: list[Sequence[Call]] = list(rank.p2p.values()) if p2p else []
        found += [group_calls(sent) for sent in self._sent]
        self.kinds = [kind for part in found for kind in part.kinds]
        """One call of each kind."""
        offsets = np.cumsum([0, *(len(part.kinds) for part in found)])
        sizes = [len(part.which) for part in found]
        positions = _joined([part.positions for part in found])
        order = np.argsort(positions, kind="stable")
        self._kind = _joined([part.which + at for part, at in zip(found, offsets, strict=False)])
        self._kind = self._kind[order]
        self._part = np.repeat(np.arange(len(found)), sizes)[order]
        self._place = _joined([np.arange(size) for size in sizes])[order]
        self.roles = Roles(rank, self._used())

    def _used(self) -> list[str]:
        """Return keys of communicators in the order of their first call."""
        parts, firsts = np.unique(self._part, return_index=True)
        keys = [*self.rank.logs, *self.rank.p2p]
        return list(dict.fromkeys(keys[part] for part in parts[np.argsort(firsts)].tolist()))

    @property
    def calls(self) -> Sequence[Call]:
        """The calls, read from where they are kept when one is asked for."""
        return _Calls(self, np.arange(len(self._kind)))

    def on(self, key: str) -> Sequence[Call]:
        """Return the collectives on one communicator."""
        return _Calls(self, self._places(key))

    def call(self, place: int) -> Call:
        """Return the call at a place."""
        part, own = int(self._part[place]), int(self._place[place])
        if part >= self._own:
            return self._sent[part - self._own][own]
        log = self._logs[part]
        try:
            return log.call(log.first + own)
        except (IndexError, DamagedFileError):
            # A running job has overwritten it since; its kind is known, its call site is not.
            return replace(self.kinds[int(self._kind[place])], seq=log.first + own, site=None)

    def communicator(self, key: str) -> Communicator:
        """Return one of the rank's communicators."""
        log = self.rank.logs.get(key)
        return Communicator(key) if log is None else log.communicator

    def lines(self, words: Vocabulary, *, shapes: bool = True) -> list[int]:
        """Return each call with its role, as a number of ``words``."""
        names = self.roles.names
        spelled = [f"{names[kind.comm]} {self.spell(kind, shapes=shapes)}" for kind in self.kinds]
        return self._numbered(spelled, self._kind, words)

    def lines_on(self, key: str, words: Vocabulary, *, shapes: bool = True) -> list[int]:
        """Return the collectives on one communicator, each as a number of ``words``.

        Args:
            key: Key of the communicator.
            words: Vocabulary.
            shapes: Whether to spell tensor sizes.
        """
        spelled = [self.spell(kind, shapes=shapes) for kind in self.kinds]
        return self._numbered(spelled, self._kind[self._places(key)], words)

    def _places(self, key: str) -> NDArray[np.int64]:
        if key not in self.rank.logs:
            return np.empty(0, np.int64)
        return np.flatnonzero(self._part == list(self.rank.logs).index(key))

    def _numbered(
        self, spelled: Sequence[str], kinds: NDArray[np.int64], words: Vocabulary
    ) -> list[int]:
        used = np.unique(kinds).tolist()
        numbers = np.zeros(len(spelled), np.int64)
        numbers[used] = [words.number(spelled[kind]) for kind in used]
        lines: list[int] = numbers[kinds].tolist()
        return lines

    def spell(self, call: Call, *, shapes: bool = True) -> str:
        """Return one of the rank's calls in a line."""
        return spell(call, self.communicator(call.comm), self.rank.rank, shapes=shapes)


def _joined(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


class _Calls(Sequence[Call]):
    """Some of a stream's calls, none of which is decoded before it is asked for."""

    def __init__(self, stream: CallStream, places: NDArray[np.int64]) -> None:
        self._stream = stream
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Call: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Call]: ...
    def __getitem__(self, index: int | slice) -> Call | Sequence[Call]:
        if isinstance(index, slice):
            return _Calls(self._stream, self._places[index])
        return self._stream.call(int(self._places[index]))


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

    def looped(self) -> tuple[Node, ...]:
        """Return calls and loops."""
        return fold(self.lines)


def sections(run: Run, words: Vocabulary, *, shapes: bool = True) -> list[Section]:
    """Return the distinct sequences of a run's ranks, that of the lowest rank first.

    Args:
        run: The run.
        words: Vocabulary that collects the spelled calls.
        shapes: Whether to spell tensor sizes.

    Raises:
        InputError: Calls of a rank are missing, so that its sequence is unknown.
    """
    _check_whole(run.ranks)
    found = grouped(run.ranks, lambda rank: tuple(CallStream(rank).lines(words, shapes=shapes)))
    return [Section(lines, tuple(one.rank for one in ranks)) for lines, ranks in found.items()]


def _check_size(rank: Rank) -> None:
    """Raise for more calls than memory holds: a replay's record expands to any number."""
    kept = sum(log.calls + 1 - log.first for log in rank.logs.values())
    if rank.graphs and kept > MOST_REPLAYED:
        raise InputError(
            f"rank {rank.rank} kept {kept:,} calls, those that CUDA graphs replayed included: "
            f"more than {MOST_REPLAYED:,} are not compared one by one",
            "`ncclscope diagnose` compares any number; fewer are kept with NCCLSCOPE_RECORDS",
        )


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
