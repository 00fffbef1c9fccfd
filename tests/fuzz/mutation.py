"""Changes of one file of an input."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.fuzz.specimens import Specimen

__all__ = ["mutate"]

SPECIAL = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 64) - 1)


@contextlib.contextmanager
def mutate(specimen: Specimen, seed: int, target: Path) -> Iterator[tuple[Path, str]]:
    """Copy an input and change one of its files; yields the copy, and what was changed."""
    dice = random.Random(seed)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(specimen.directory, target)
    files = sorted(path for path in target.rglob("*") if path.is_file())
    path = dice.choice(files)
    data = bytearray(path.read_bytes())
    change = dice.choice(_CHANGES)
    for _ in range(dice.choice((1, 1, 1, 2, 8))):
        change(dice, data)
    path.write_bytes(data)
    try:
        yield target, f"{change.__name__.strip('_')} in {path.name}"
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _place(dice: random.Random, data: bytearray) -> int:
    """Return a place, more often one that holds something."""
    for _ in range(8):
        place = dice.randrange(max(len(data), 1))
        if place < len(data) and data[place]:
            return place
    return place


def _flip(dice: random.Random, data: bytearray) -> None:
    if data:
        data[_place(dice, data)] ^= 1 << dice.randrange(8)


def _byte(dice: random.Random, data: bytearray) -> None:
    if data:
        data[_place(dice, data)] = dice.randrange(256)


def _special(dice: random.Random, data: bytearray) -> None:
    size = dice.choice((1, 2, 4, 8))
    place = _place(dice, data)
    value = dice.choice(SPECIAL) % (1 << 8 * size)
    data[place : place + size] = value.to_bytes(size, "little")


def _cut(dice: random.Random, data: bytearray) -> None:
    del data[_place(dice, data) :]


def _leave_out(dice: random.Random, data: bytearray) -> None:
    place = _place(dice, data)
    del data[place : place + dice.choice((1, 8, 96, 4096))]


def _copy(dice: random.Random, data: bytearray) -> None:
    size = dice.choice((1, 8, 96, 512))
    source, place = _place(dice, data), _place(dice, data)
    data[place : place + size] = data[source : source + size]


def _zero(dice: random.Random, data: bytearray) -> None:
    place, size = _place(dice, data), dice.choice((8, 96, 4096))
    data[place : place + size] = bytes(len(data[place : place + size]))


_CHANGES: tuple[Callable[[random.Random, bytearray], None], ...] = (
    _flip, _flip, _byte, _special, _cut, _leave_out, _copy, _zero,
)  # fmt: skip
