"""Load pickles of plain containers without running code from them.

A pickle is a program. This module accepts only programs that build numbers, texts, lists,
dictionaries and pairs of texts. It checks all instructions before the first one runs, and refuses
any that could name a class, call a function or reserve excessive memory. It also refuses tuples
other than pairs of texts. Such a tuple could be a dictionary key, and hashing it would visit every
element, however often it is shared. The standard unpickler then loads the rest, piece by piece
and within the file's budget.

The result may share and nest containers: never format, compare or traverse one as a whole.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import Any, NoReturn

from ncclscope.errors import DamagedFileError
from ncclscope.readers.budget import Budget
from ncclscope.resources import without_collection

_PUT = rb"(?:q.|r..[\x00-\x3f]\x00)"  # BINPUT LONG_BINPUT, its index kept below four million
_MEMOIZE = rb"\x94"
_GET = rb"(?:h.|j....)"  # BINGET LONG_BINGET
_SINGLE = rb"(?!\x86|" + _GET + rb"\x86|[X\x8c\x8d])"
"""No match before a possible second text of a pair, which needs a closer check."""


def _plain(put: bytes, pair: bytes = b"") -> re.Pattern[bytes]:
    """Return a pattern for any number of instructions, except texts and most pairs.

    A value may get a memo number only where it cannot be a pair: right after it was created or
    extended. Extending by nothing does not count, since it would work on a pair, too.

    Args:
        put: Pattern of an instruction that gives a memo number.
        pair: Pattern of the pairs to include, without their first part.
    """
    numbers = rb"\]\((?:[hK].|M..|[Jj]....|\x8a\x08........){0,1024}e" + put + rb"?"
    value = rb"(?:" + pair + rb"[N\x88\x89]|K.|M..|\x8a\x08........|" + numbers + b"|" + _SINGLE
    return re.compile(
        # Most values follow a key. Read with it, they cost no repetition of their own.
        rb"(?:" + _GET + value + rb")"
        rb"|K."
        rb"|[N)\x88\x89as]"  # constants, APPEND SETITEM
        rb"|[\]}]" + put + rb"?(?:\([eu]" + put + rb"?)?"  # EMPTY_LIST EMPTY_DICT, filled with none
        rb"|\((?![eu])"  # MARK
        rb"|[eu]" + put + rb"?"  # APPENDS SETITEMS
        rb"|M.."
        rb"|J...."
        rb"|G........"  # BINFLOAT
        rb"|\x8a\x08........"  # LONG1 of eight bytes, as torch writes them
        + (rb"|\x95..[\x00-\x0f]\x00{5}" if put == _MEMOIZE else b"")  # FRAME, up to 1 MB
        + rb"){0,4096}",  # re keeps each repetition, at a hundred times its size
        re.DOTALL,
    )


_PLAIN = _plain(_PUT)
_PLAIN_PAIRS = _plain(_PUT, _GET + rb"\x86(?![qr])|")
_PLAIN_4 = _plain(_MEMOIZE)
"""Patterns for protocols 2 and 3 (the second includes torch's pairs), and for 4 and 5.

While no pair has a memo number, a GET cannot yield one. So two GETs may form a pair, whatever
they yield.
"""
_MEMOIZED = re.compile(
    rb"(?:[hK].|[N)\x88\x89as\]}(eu]|M..|[Jj]....|G........|\x8a\x08........|\x95........)*"
    rb"(\x94?)",
    re.DOTALL,
)
"""Instructions up to the next MEMOIZE or the end."""
_STOP, _LONG, _PAIR, _BINGET, _LONG_BINGET = ord("."), 0x8A, 0x86, ord("h"), ord("j")
_PREFIXES = {ord("X"): 4, 0x8C: 1, 0x8D: 8}  # BINUNICODE, its short and its long form
_LONGEST_NUMBER = 9
"""Bytes of the longest integer: counters in a dump have eight, and a sign."""
_PIECE = 1 << 16
_CHECK_EVERY = 1 << 12


class _PlainUnpickler(pickle.Unpickler):
    """A second barrier: refuse to look up any name."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is not a plain value")

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise pickle.UnpicklingError("a persistent reference is not a plain value")


class _Pieces(io.RawIOBase):
    """Feeds a pickle to the unpickler piece by piece, checking its budget."""

    def __init__(self, data: bytes, budget: Budget) -> None:
        self._data = memoryview(data)
        self._position = 0
        self._budget = budget

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Copy the next piece into `buffer`; return its size in bytes."""
        self._budget.check()
        found = self._data[self._position : self._position + len(buffer)]
        buffer[: len(found)] = found
        self._position += len(found)
        return len(found)


def load_plain(data: bytes, name: str, budget: Budget | None = None) -> Any:
    """Return the value of a pickle of plain containers.

    Args:
        data: The whole pickle.
        name: Name of the file in an error.
        budget: Limits on time and memory; by default, those for the size of the pickle.

    Raises:
        DamagedFileError: It is truncated, too large, or holds anything else.
    """
    budget = Budget(name, len(data)) if budget is None else budget
    _Check(data, name, budget).run()
    try:
        with without_collection():
            return _PlainUnpickler(io.BufferedReader(_Pieces(data, budget), _PIECE)).load()
    except DamagedFileError:
        raise
    except Exception as error:  # a damaged stream can raise any exception
        raise DamagedFileError(f"{name} is not a complete pickle: {error}"[:300]) from None


class _Check:
    """Refuses a pickle with instructions other than those of plain containers.

    Args:
        data: The pickle.
        name: Name of the file in an error.
        budget: Limits on time and memory.
    """

    def __init__(self, data: bytes, name: str, budget: Budget) -> None:
        if not b"\x80\x02" <= data[:2] <= b"\x80\x05":
            raise DamagedFileError(f"{name} is not a pickle of protocol 2 to 5")
        self._data = data
        self._name = name
        self._budget = budget
        self._memoizes = data[1] >= 4
        self._memoized = 0
        self._texts: set[int] = set()
        self._pairs = False

    def run(self) -> None:
        """Check all instructions: most by pattern, texts and pairs one by one."""
        data, end = self._data, len(self._data)
        plain, paired = (_PLAIN_4, _PLAIN_4) if self._memoizes else (_PLAIN, _PLAIN_PAIRS)
        position, texts, texts_end, steps = 2, 0, 0, 0
        while True:
            found = (plain if self._pairs else paired).match(
                data, position
            )  # always matches, possibly nothing
            start, position = position, found.end() if found else position
            if self._memoizes and data.find(b"\x94", start, position) >= 0:
                self._memoized += _MEMOIZED.findall(data, start, position).count(b"\x94")
            if position >= end:
                raise self._torn()
            code = data[position]
            if code == _STOP:
                return
            steps += 1
            if not steps % _CHECK_EVERY:
                self._budget.check()
            texts = texts if texts_end == position else 0
            width = _PREFIXES.get(code, 0)
            if width:
                start = position + 1 + width
                position = start + int.from_bytes(data[position + 1 : start], "little")
                if position > end:
                    raise self._torn()
                position, place = self._put(position)
                self._texts.add(place)
                texts, texts_end = texts + 1, position
            elif code in (_BINGET, _LONG_BINGET):
                width = 1 if code == _BINGET else 4
                start, position = position + 1, position + 1 + width
                texts += 1
                if int.from_bytes(data[start:position], "little") not in self._texts:
                    texts = 0
                texts_end = position
            elif position > start and code not in (_PAIR, _LONG):
                pass  # the pattern matched its maximum number of instructions
            elif code == _PAIR and texts >= 2:
                position, place = self._put(position + 1)
                self._texts.discard(place)
                self._pairs |= place >= 0
            elif code == _LONG and data[position + 1 : position + 2] <= bytes([_LONGEST_NUMBER]):
                position += 2 + int.from_bytes(data[position + 1 : position + 2], "little")
            else:
                raise DamagedFileError(
                    f"{self._name} is refused: its pickle holds more than plain values "
                    f"(instruction {data[position : position + 1]!r} at byte {position})"
                )

    def _put(self, position: int) -> tuple[int, int]:
        """Return the end of a memo instruction, and its number; -1 if there is none."""
        data = self._data
        code = data[position : position + 1]
        if self._memoizes and code == b"\x94":
            self._memoized += 1
            return position + 1, self._memoized - 1
        if not self._memoizes and code == b"q":
            return position + 2, int.from_bytes(data[position + 1 : position + 2], "little")
        if not self._memoizes and code == b"r":
            place = int.from_bytes(data[position + 1 : position + 5], "little")
            if place >= 1 << 22:
                raise DamagedFileError(
                    f"{self._name} is refused: it numbers more values than it can hold"
                )
            return position + 5, place
        return position, -1

    def _torn(self) -> DamagedFileError:
        return DamagedFileError(f"{self._name} is truncated: the pickle has no end")
