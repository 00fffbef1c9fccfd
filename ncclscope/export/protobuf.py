"""Encoder for the kinds of protobuf fields that a trace needs.

It avoids a dependency on the protobuf library, and on generated code for Perfetto's format.
"""

from __future__ import annotations

import struct

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_MASK = (1 << 64) - 1


def int_field(number: int, value: int) -> bytes:
    """Encode an integer, a boolean or an enumeration value as a varint."""
    return _varint(number << 3 | _VARINT) + _varint(value & _MASK)


def fixed64_field(number: int, value: int) -> bytes:
    """Encode an integer of eight bytes."""
    return _varint(number << 3 | _FIXED64) + struct.pack("<Q", value & _MASK)


def bytes_field(number: int, value: bytes) -> bytes:
    """Encode bytes or a nested message."""
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def text_field(number: int, value: str) -> bytes:
    """Encode a text as UTF-8."""
    return bytes_field(number, value.encode("utf-8", "replace"))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
