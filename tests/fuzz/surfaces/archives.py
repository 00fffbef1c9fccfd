"""The streams that nodes send to ``collect``."""

from __future__ import annotations

import gzip
import io
import os
import random
import shutil
import zlib
from pathlib import Path

from ncclscope.collect.archive import Limits, Packer, UnpackedArchive, unpack
from ncclscope.errors import DamagedFileError
from tests.fuzz.byte_damage import change_bytes, damage_bytes, edit
from tests.fuzz.inputs import Answer, BaseInput, Input, Surface
from tests.fuzz.jobs import read_files

__all__ = ["Archives"]

_STREAM = "stream.tar.gz"
_BLOCK = 512
_NAMES: tuple[bytes, ...] = (
    b"../x",
    b"/etc/x",
    b"a/../../x",
    b"",
    b".",
    b"a//b",
    b"a\\b",
    b"\xff\xfe",
    b"x" * 300,
)
_NAMES += (
    b"node.json",
    b"node.json/x",
    b"files",
    b"\x1b[31m",
    "\u202e".encode(),
    b"a/" * 20 + b"x",
)
_SIZES = (b"77777777777", b"00000000000", b"-0000000001", b"0o7", b"", b"99", b"37777777777 ")
_KINDS = tuple(bytes([letter]) for letter in b"0125Lxg\0")
_FIELDS = ((0, 100, _NAMES), (345, 155, _NAMES), (124, 12, _SIZES), (156, 1, _KINDS))
"""Places in a header, their widths, and what a hostile node may write there."""


class Archives(Surface):
    """Streams damaged as they travel, and archives that a hostile node has made."""

    def __init__(self, home: Path) -> None:
        files = {
            "node.json": b'{"ncclscope_node":1,"rings":{}}',
            "files/rank-0.ring": bytes(3000) + bytes(range(256)) * 8 + bytes(9000),
            "files/deep/" + "d" * 90 + "/x": b"text",
            "empty": b"",
        }
        stream = io.BytesIO()
        packer = Packer(stream)
        for name, data in files.items():
            packer.add_bytes(name, data)
        packer.close()
        noisy = b"Welcome to node a\n" + stream.getvalue()
        bases = [
            BaseInput("stream", {_STREAM: stream.getvalue()}),
            BaseInput("stream behind a greeting", {_STREAM: noisy}),
        ]
        super().__init__("archives", bases, (damage_bytes, _damage_tar, _damage_tar, _rename))
        self._files = files
        self._home = home / self.name

    def judge(self, given: Input, seed: int) -> Answer:
        room = self._home / str(os.getpid())
        target = room / "target"
        shutil.rmtree(room, ignore_errors=True)
        target.mkdir(parents=True)
        answer = self._unpack(given, target)
        if [path.name for path in room.iterdir()] != ["target"]:
            return Answer("outside", repr(sorted(room.iterdir())))
        return answer

    def _unpack(self, given: Input, target: Path) -> Answer:
        found = UnpackedArchive()
        read = io.BytesIO(given.files[_STREAM]).read
        try:
            unpack(read, target, found, Limits(size=64 << 20, files=64))
        except DamagedFileError as error:
            if found.complete:
                return Answer("error", "a complete stream is refused")
            return Answer("error" if "\n" in str(error) else "refused", str(error))
        except OSError as error:  # such as a name that the file system does not take
            return Answer("refused", str(error))
        if not given.forged and read_files(target) != self._files:
            return Answer("invented call", "other files than were sent, and no error")
        return Answer("complete")


def _repacked(base: BaseInput, change: str, tar: bytes) -> Input:
    return edit(_STREAM, base, change, gzip.compress(tar, 1, mtime=0), forged=True)


def _tar(base: BaseInput) -> bytearray:
    data = base.files[_STREAM]
    return bytearray(zlib.decompress(data[data.index(b"\x1f\x8b\x08") :], wbits=31))


def _damage_tar(dice: random.Random, base: BaseInput) -> Input:
    """Change bytes of the archive below the packing, and sum up its headers anew."""
    tar = _tar(base)
    change = change_bytes(dice, tar, [range(len(tar))])
    if dice.random() < 0.7:
        for start in range(0, len(tar) - _BLOCK + 1, _BLOCK):
            if tar[start + 257 : start + 262] == b"ustar":
                _sum_up(tar, start)
    return _repacked(base, f"{change} of the archive", bytes(tar))


def _rename(dice: random.Random, base: BaseInput) -> Input:
    """Give an entry another name, size or kind."""
    tar = _tar(base)
    starts = [at for at in range(0, len(tar), _BLOCK) if tar[at + 257 : at + 262] == b"ustar"]
    for _ in range(dice.choice((1, 1, 2))):
        start = dice.choice(starts)
        place, width, choices = dice.choice(_FIELDS)
        field = dice.choice(choices)
        tar[start + place : start + place + width] = field[:width].ljust(width, b"\0")
        _sum_up(tar, start)
    return _repacked(base, "header", bytes(tar))


def _sum_up(tar: bytearray, start: int) -> None:
    tar[start + 148 : start + 156] = b" " * 8
    total = sum(tar[start : start + _BLOCK])
    tar[start + 148 : start + 156] = b"%06o\0 " % total
