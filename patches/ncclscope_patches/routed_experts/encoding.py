"""Encode arrays as text for JSON answers, and decode untrusted text safely.

===========  =================================================================================
``npy``      The ``.npy`` file in base64, byte for byte as vLLM sends it.
``compact``  ``1:uint8:12,36,4:`` and the ids layer by layer, with high and low bytes separated,
             deflated, in base85. It is shorter if expert ids do not use all bits of their type,
             or if some experts are chosen more often than others.
===========  =================================================================================
"""

from __future__ import annotations

import base64
import binascii
import importlib
import importlib.util
import io
import math
import re
import zlib

import numpy as np

from ncclscope.errors import InputError, UsageError
from ncclscope_patches.routed_experts.shape import Ids

ENCODINGS = ("npy", "compact")
"""Names of the encodings."""
MAX_BYTES = 1 << 30
"""Default limit on the size of a decoded array in bytes."""

# vLLM depends on pybase64; without it the result is the same, but a few times slower.
_base64 = importlib.import_module("pybase64") if importlib.util.find_spec("pybase64") else base64
_TYPES = {name: np.dtype(name) for name in ("uint8", "uint16", "int16", "int32", "int64")}
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00(?P<length>..)(?P<dictionary>\{'descr': '(?P<type>[<>|][iu][1248])', "
    rb"'fortran_order': (False|True), 'shape': \((?P<lengths>\d{1,15}(, \d{1,15}){2})\), \} *\n)",
    re.DOTALL,
)
"""Of a .npy file of integers, version 1.0, as numpy writes it."""
_DIGITS = np.frombuffer(
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
    np.uint8,
)
"""Of base85; none of them has to be escaped in JSON."""
_VALUES = np.full(256, 255, np.uint8)
_VALUES[_DIGITS] = np.arange(85)


def encode_array(ids: Ids, encoding: str = "npy") -> str:
    """Encode an array of expert ids as text.

    Args:
        ids: Expert ids, ``[tokens, layers, top_k]``.
        encoding: One of :data:`ENCODINGS`.

    Raises:
        UsageError: There is no such encoding.
    """
    if encoding == "npy":
        with io.BytesIO() as file:
            np.save(file, ids, allow_pickle=False)
            return bytes(_base64.b64encode(file.getbuffer())).decode("ascii")
    if encoding != "compact":
        raise UsageError(f"no encoding {encoding!r}", f"choose one of {', '.join(ENCODINGS)}")
    little = np.ascontiguousarray(ids.transpose(1, 2, 0), ids.dtype.newbyteorder("<"))
    planes = little.reshape(-1, 1).view(np.uint8).T
    # Huffman coding only: sequences of experts hardly repeat, and searching for matches is slow.
    deflater = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_HUFFMAN_ONLY)
    packed = deflater.compress(np.ascontiguousarray(planes).data) + deflater.flush()
    lengths = ",".join(map(str, ids.shape))
    return f"1:{ids.dtype.name}:{lengths}:{_to_base85(packed)}"


def decode_array(text: str, encoding: str = "npy", *, max_bytes: int = MAX_BYTES) -> Ids:
    """Decode a text from :func:`encode_array` or vLLM, without executing anything in it.

    Args:
        text: The encoded array.
        encoding: One of :data:`ENCODINGS`.
        max_bytes: Size of the largest array to allocate.

    Raises:
        InputError: The text is not such an array, or the array is larger.
        UsageError: There is no such encoding.
    """
    if encoding not in ENCODINGS:
        raise UsageError(f"no encoding {encoding!r}", f"choose one of {', '.join(ENCODINGS)}")
    try:
        if encoding == "npy":
            return _decode_npy(text, max_bytes)
        return _decode_compact(text, max_bytes)
    except (ValueError, zlib.error, binascii.Error) as error:
        raise InputError(f"these are no routed experts in {encoding}: {error}") from None


def _decode_npy(text: str, max_bytes: int) -> Ids:
    raw = bytes(_base64.b64decode(text, validate=True))
    header = _HEADER.match(raw)
    if header is None or int.from_bytes(header["length"], "little") != len(header["dictionary"]):
        raise ValueError("no .npy file of three dimensions")
    # Check the header before numpy allocates the size in it.
    lengths = tuple(map(int, header["lengths"].split(b",")))
    size = _checked_size(lengths, np.dtype(header["type"].decode()).name, max_bytes)
    if len(raw) - header.end() != size:
        raise ValueError(f"{len(raw) - header.end()} bytes where the header says {size}")
    array: Ids = np.load(io.BytesIO(raw), allow_pickle=False)
    return array


def _decode_compact(text: str, max_bytes: int) -> Ids:
    version, name, shape, digits = text.split(":", 3)
    if version != "1":
        raise ValueError(f"version {version[:9]!r}")
    lengths = tuple(int(length) for length in shape.split(","))
    size = _checked_size(lengths, name, max_bytes)
    packed = _from_base85(digits)
    # Allocate memory as data arrive, never for a size that the text only claims.
    inflater = zlib.decompressobj()
    planes = inflater.decompress(packed, size + 1)
    if len(planes) != size or not inflater.eof or inflater.unused_data:
        raise ValueError(f"the data do not end after {size} bytes")
    dtype = _TYPES[name]
    columns = np.frombuffer(planes, np.uint8).reshape(dtype.itemsize, -1)
    numbers = np.ascontiguousarray(columns.T).view(dtype.newbyteorder("<"))
    tokens, layers, top_k = lengths
    by_token = numbers.reshape(layers, top_k, tokens).transpose(2, 0, 1)
    return np.ascontiguousarray(by_token, dtype)


def _checked_size(lengths: tuple[int, ...], name: str, max_bytes: int) -> int:
    """Return the size in bytes of a three-dimensional array, checked against the limit."""
    if len(lengths) != 3 or min(lengths) < 0:
        raise ValueError(f"shape {lengths}")
    if name not in _TYPES:
        raise ValueError(f"type {name[:20]!r}")
    size = math.prod(lengths) * _TYPES[name].itemsize
    if size > max_bytes or max(lengths) > max_bytes:
        raise ValueError(f"{size} bytes are more than the {max_bytes} that are allowed")
    return size


def _to_base85(data: bytes) -> str:
    """Encode as base85, like base64.b85encode but fifty times faster."""
    padding = -len(data) % 4
    words = np.frombuffer(data + bytes(padding), ">u4").astype(np.uint32)
    digits = np.empty((len(words), 5), np.uint8)
    for place in range(4, -1, -1):
        words, rest = np.divmod(words, np.uint32(85))
        digits[:, place] = rest
    text = _DIGITS[digits].tobytes().decode("ascii")
    return text[: len(text) - padding]


def _from_base85(text: str) -> bytes:
    padding = -len(text) % 5
    letters = np.frombuffer(text.encode("ascii") + b"~" * padding, np.uint8)
    digits = _VALUES[letters].reshape(-1, 5).astype(np.uint64)
    if (digits > 84).any() or padding == 4:
        raise ValueError("not base85")
    words = np.zeros(len(digits), np.uint64)
    for place in range(5):
        words = words * np.uint64(85) + digits[:, place]
    if (words >> np.uint64(32)).any():
        raise ValueError("not base85")
    data = words.astype(">u4").tobytes()
    return data[: len(data) - padding]
