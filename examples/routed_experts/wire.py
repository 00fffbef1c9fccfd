"""Frames between the processes: a line of JSON, and arrays as they are in memory.

Nothing is compressed and nothing is pickled, so that a frame's length says what its content
costs: eight bytes, the JSON, and the arrays.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Channel", "Frame", "read_frame", "write_frame"]

_LENGTHS = struct.Struct("<II")

Array = NDArray[Any]


@dataclass(frozen=True)
class Frame:
    """One message.

    Attributes:
        header: What it says.
        arrays: What comes along.
        size: Its bytes on the wire.
    """

    header: dict[str, Any]
    arrays: list[Array]
    size: int

    @property
    def array_bytes(self) -> int:
        """Those of the arrays."""
        return sum(array.nbytes for array in self.arrays)


class Channel:
    """One end of a socket, for processes that may wait.

    Args:
        end: The socket.
    """

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def fileno(self) -> int:
        """For those who wait for several."""
        return self.end.fileno()

    def send(self, header: dict[str, Any], arrays: Sequence[Array] = ()) -> None:
        """Send a message."""
        self.end.sendall(_pack(header, arrays))

    def receive(self) -> Frame:
        """Wait for a message.

        Raises:
            EOFError: The other side has gone.
        """
        lengths = self._exactly(_LENGTHS.size)
        header, body = _LENGTHS.unpack(lengths)
        return _unpack(self._exactly(header), self._exactly(body))

    def _exactly(self, count: int) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        done = 0
        while done < count:
            received = self.end.recv_into(view[done:])
            if not received:
                raise EOFError("the other process has gone")
            done += received
        return data


async def read_frame(reader: StreamReader) -> Frame:
    """Wait for a message, in an event loop of asyncio."""
    header, body = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
    return _unpack(
        bytearray(await reader.readexactly(header)), bytearray(await reader.readexactly(body))
    )


def write_frame(writer: StreamWriter, header: dict[str, Any], arrays: Sequence[Array] = ()) -> None:
    """Send a message in an event loop of asyncio, without waiting."""
    writer.write(_pack(header, arrays))


def _pack(header: dict[str, Any], arrays: Sequence[Array]) -> bytes:
    kinds = [[array.dtype.str, list(array.shape)] for array in arrays]
    text = json.dumps([header, kinds], separators=(",", ":")).encode()
    body = [np.ascontiguousarray(array).tobytes() for array in arrays]
    lengths = _LENGTHS.pack(len(text), sum(map(len, body)))
    return b"".join([lengths, text, *body])


def _unpack(text: bytearray, body: bytearray) -> Frame:
    header, kinds = json.loads(text)
    arrays = []
    at = 0
    for name, shape in kinds:
        count = math.prod(shape)
        array = np.frombuffer(body, np.dtype(name), count, at).reshape(shape)
        arrays.append(array)
        at += array.nbytes
    return Frame(header, arrays, _LENGTHS.size + len(text) + len(body))
