"""Pickles that hold plain containers, read without giving their writer anything to run.

A pickle is a program. The one that this module runs may only build numbers, texts, lists,
tuples and dictionaries: its instructions are looked through before the first is carried
out, and one that could name a class, call something or reserve memory out of proportion
is refused. What is left of the language is carried out by the interpreter's own reader.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import Any, NoReturn

from ncclscope.economy import without_collection
from ncclscope.errors import DamagedFileError

__all__ = ["load_plain"]

_PLAIN = re.compile(
    rb"(?:"
    rb"[hqK]."  # BINGET BINPUT BININT1
    rb"|[\](}eausNt)0\x88\x89\x85\x86\x87\x94]"  # containers, marks, constants, MEMOIZE
    rb"|M.."  # BININT2
    rb"|J...."  # BININT
    rb"|r..[\x00-\x3f]\x00"  # LONG_BINPUT, its index kept below four million
    rb"|j...."  # LONG_BINGET
    rb"|G........"  # BINFLOAT
    rb"|\x8a\x08........"  # LONG1 of eight bytes, as torch writes them
    rb"|\x95........"  # FRAME
    rb")*",
    re.DOTALL,
)
_STOP, _LONG = ord("."), 0x8A
_PREFIXES = {ord("X"): 4, 0x8C: 1, 0x8D: 8}  # BINUNICODE, its short and its long form
_LONGEST_NUMBER = 9
"""Bytes of an integer: what is counted in a dump has eight, and a sign."""


class _PlainUnpickler(pickle.Unpickler):
    """The second lock on the door: whatever asks for a name gets none."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise pickle.UnpicklingError("a reference to elsewhere is no plain value")


def load_plain(data: bytes, name: str, strings: dict[int, Any] | None = None) -> Any:
    """Returns the value of a pickle of plain containers.

    Args:
        data: The whole pickle.
        name: What to call it in an error.
        strings: Where to put the values that the pickle has numbered.

    Raises:
        DamagedFileError: It is torn, or holds anything else.
    """
    _look_through(data, name)
    try:
        with without_collection():
            reader = _PlainUnpickler(io.BufferedReader(io.BytesIO(data)))  # it reads ahead
            value = reader.load()
            if strings is not None:
                strings.update(dict(reader.memo.copy()))
            return value
    except Exception as error:  # a torn or twisted stream can fail in any way
        raise DamagedFileError(f"{name} is no whole pickle: {error}"[:300]) from None


def _look_through(data: bytes, name: str) -> None:
    """Refuses a stream with instructions that no pickle of plain containers has."""
    end = len(data)
    if not b"\x80\x02" <= data[:2] <= b"\x80\x05":
        raise DamagedFileError(f"{name} is no pickle of protocol 2 to 5")
    position = 2
    match = _PLAIN.match
    while True:
        found = match(data, position)  # always matches, if only nothing
        position = found.end() if found else position
        if position >= end:
            raise DamagedFileError(f"{name} is torn: the pickle has no end")
        code = data[position]
        if code == _STOP:
            return
        width = _PREFIXES.get(code, 0)
        if width:
            start = position + 1 + width
            position = start + int.from_bytes(data[position + 1 : start], "little")
            if position > end:
                raise DamagedFileError(f"{name} is torn: the pickle has no end")
        elif code == _LONG and data[position + 1 : position + 2] <= bytes([_LONGEST_NUMBER]):
            position += 2 + int.from_bytes(data[position + 1 : position + 2], "little")
        else:
            raise DamagedFileError(
                f"{name} is a pickle that would do more than hold plain values "
                f"(instruction {data[position : position + 1]!r} at byte {position}), refused"
            )
