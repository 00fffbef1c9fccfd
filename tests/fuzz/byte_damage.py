"""Damage that knows nothing of formats: bits, bytes, special numbers, cuts, copies."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.fuzz.inputs import BaseInput, Input

__all__ = ["SPECIAL", "damage_bytes", "damage_files", "edit"]

SPECIAL: tuple[int, ...] = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    1 << 40,
    1 << 62,
)
SPECIAL += ((1 << 63) - 1, 1 << 63, (1 << 64) - 1)

Places = Sequence[range]


def edit(name: str, base: BaseInput, change: str, data: bytes, *, forged: bool = False) -> Input:
    """Return a base input in which one file holds something else."""
    return Input(base, {**base.files, name: data}, f"{change} in {name}", forged)


def damage_bytes(dice: random.Random, base: BaseInput) -> Input:
    """Change some bytes of one file, more often such as hold something."""
    name = dice.choice(sorted(base.files.keys() - base.keep))
    data = bytearray(base.files[name])
    change = change_bytes(dice, data, [range(len(data))])
    return edit(name, base, change, bytes(data))


def change_bytes(dice: random.Random, data: bytearray, places: Places) -> str:
    """Change some bytes at these places; return what was done."""
    change = dice.choice(_CHANGES)
    for _ in range(dice.choice((1, 1, 1, 1, 2, 8))):
        if data:
            change(dice, data, places)
    return change.__name__.strip("_").replace("_", " ")


def damage_files(dice: random.Random, base: BaseInput) -> Input:
    """Lose, swap, copy, cut or lengthen whole files."""
    files = dict(base.files)
    names = sorted(files.keys() - base.keep)
    one, other = dice.choice(names), dice.choice(names)
    change = dice.choice(("lost", "swapped", "copied over", "cut", "lengthened", "emptied"))
    if change == "lost":
        del files[one]
    elif change == "swapped":
        files[one], files[other] = files[other], files[one]
    elif change == "copied over":
        files[one] = files[other]
    elif change == "cut":
        files[one] = files[one][: dice.randrange(len(files[one]) + 1)]
    elif change == "lengthened":
        more = dice.choice((bytes(dice.randrange(1, 9)), files[other], dice.randbytes(64)))
        files[one] = files[one] + more
    else:
        files[one] = b""
    return Input(base, files, f"{one} {change}")


def _place(dice: random.Random, data: bytearray, places: Places) -> int:
    """Return a place, more often one that holds something."""
    place = 0
    for _ in range(6):
        part = dice.choice(places)
        place = dice.randrange(part.start, max(part.stop, part.start + 1))
        if place < len(data) and data[place]:
            return place
    return min(place, len(data) - 1)


def _flip(dice: random.Random, data: bytearray, places: Places) -> None:
    data[_place(dice, data, places)] ^= 1 << dice.randrange(8)


def _byte(dice: random.Random, data: bytearray, places: Places) -> None:
    data[_place(dice, data, places)] = dice.randrange(256)


def _special(dice: random.Random, data: bytearray, places: Places) -> None:
    size = dice.choice((1, 2, 4, 8))
    place = _place(dice, data, places)
    place -= dice.choice((0, place % size))
    value = dice.choice(SPECIAL) % (1 << 8 * size)
    data[place : place + size] = value.to_bytes(size, "little")[: len(data) - place]


def _add(dice: random.Random, data: bytearray, places: Places) -> None:
    """Change a number by a little."""
    size = dice.choice((1, 2, 4, 8))
    place = _place(dice, data, places)
    place -= place % size
    value = int.from_bytes(data[place : place + size], "little") + dice.choice((-2, -1, 1, 2, 8))
    part = (value % (1 << 8 * size)).to_bytes(size, "little")
    data[place : place + size] = part[: len(data) - place]


def _cut(dice: random.Random, data: bytearray, places: Places) -> None:
    del data[_place(dice, data, places) :]


def _leave_out(dice: random.Random, data: bytearray, places: Places) -> None:
    place = _place(dice, data, places)
    del data[place : place + dice.choice((1, 8, 32, 96, 4096))]


def _repeat(dice: random.Random, data: bytearray, places: Places) -> None:
    place, size = _place(dice, data, places), dice.choice((1, 8, 32, 96))
    data[place:place] = data[place : place + size] * dice.choice((1, 1, 50))


def _copy(dice: random.Random, data: bytearray, places: Places) -> None:
    size = dice.choice((1, 8, 32, 96, 512))
    source, place = _place(dice, data, places), _place(dice, data, places)
    part = data[source : source + size]
    data[place : place + len(part)] = part[: len(data) - place]


def _zero(dice: random.Random, data: bytearray, places: Places) -> None:
    place, size = _place(dice, data, places), dice.choice((8, 96, 4096))
    data[place : place + size] = bytes(len(data[place : place + size]))


_CHANGES: tuple[Callable[[random.Random, bytearray, Places], None], ...] = (
    *(_flip, _flip, _flip, _byte, _special, _special, _add, _add),
    *(_cut, _leave_out, _repeat, _copy, _zero),
)
