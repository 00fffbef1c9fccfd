"""Messages on a pair of pipes: a greeting, then frames, each with its length.

The other end is foreign. Text before the greeting, such as a login banner, is skipped up to a
limit. A frame that is too long, or that does not begin as one, is refused at its header.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ncclscope.errors import DamagedFileError
from ncclscope.untrusted import printable

GREETING = b"\0ncclscope node 1\n"
"""What a node sends first; no text of a login script holds a zero byte."""
METHODS = ("summary", "answer", "report", "hashes", "newest")
"""Requests by their number: the methods of :class:`~ncclscope.remote.keeper.Keeper`."""
OK, FAILED = 200, 201
"""Kinds of answers: what was requested, and the reason why there is none."""
LONGEST = 64 << 20
"""Longest payload in bytes; 8 ranks take some kB."""
_LONGEST_BANNER = 64 << 10
_MAGIC = b"nccF"
_HEADER = struct.Struct("!4sBII")
_SHOWN = 60


class Frame(NamedTuple):
    """A message.

    Attributes:
        kind: Index of a method, or one of `OK` and `FAILED`.
        number: Number of the request; its answer has the same.
        payload: Contents.
    """

    kind: int
    number: int
    payload: bytes


def spell_frame(frame: Frame) -> bytes:
    """Return a frame as bytes.

    Raises:
        ValueError: Its payload is too long.
    """
    if len(frame.payload) > LONGEST:
        raise ValueError(f"a message of {len(frame.payload)} bytes is too long")
    header = _HEADER.pack(_MAGIC, frame.kind, frame.number, len(frame.payload))
    return header + frame.payload


class FrameReader:
    """Takes bytes as they come, and returns whole frames.

    Args:
        greeting: What precedes the first frame, after any text.
        longest: Longest payload in bytes.
    """

    def __init__(self, greeting: bytes = b"", longest: int = LONGEST) -> None:
        self._greeting = greeting
        self._longest = longest
        self._data = bytearray()
        self._skipped = 0
        self.greeted = not greeting

    def feed(self, data: bytes) -> list[Frame]:
        """Add bytes and return the frames that they complete.

        Raises:
            DamagedFileError: They are no frames.
        """
        self._data += data
        if not self.greeted and not self._greet():
            return []
        frames = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    @property
    def lack(self) -> str:
        """What is missing if the stream ends here; empty between two frames."""
        if not self.greeted:
            return f"{self._begins()}, and no message follows" if self._data else "it sent nothing"
        if len(self._data) < _HEADER.size:
            return "its answer broke off in a header" if self._data else ""
        (*_, length) = _HEADER.unpack_from(self._data)
        got = len(self._data) - _HEADER.size
        return f"its answer broke off after {got:,} of {length:,} bytes"

    def _greet(self) -> bool:
        # Search only the new part, and what may hold the beginning of the greeting.
        place = self._data.find(self._greeting, self._skipped)
        if place >= 0:
            del self._data[: place + len(self._greeting)]
            self.greeted = True
            return True
        if len(self._data) > _LONGEST_BANNER:
            raise DamagedFileError(f"{self._begins()}, and no message follows")
        self._skipped = max(0, len(self._data) - len(self._greeting) + 1)
        return False

    def _next(self) -> Frame | None:
        if not self._data.startswith(_MAGIC[: len(self._data)]):
            raise DamagedFileError(f"{self._begins()} in place of a message")
        if len(self._data) < _HEADER.size:
            return None
        _, kind, number, length = _HEADER.unpack_from(self._data)
        if length > self._longest:
            raise DamagedFileError(f"it announces a message of {length:,} bytes")
        if len(self._data) < _HEADER.size + length:
            return None
        payload = bytes(memoryview(self._data)[_HEADER.size : _HEADER.size + length])
        del self._data[: _HEADER.size + length]
        return Frame(kind, number, payload)

    def _begins(self) -> str:
        line = bytes(self._data[: 4 * _SHOWN]).decode("utf-8", "replace").strip().partition("\n")[0]
        return f"it sends {printable(line[:_SHOWN])!r}"
