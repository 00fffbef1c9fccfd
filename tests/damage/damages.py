"""Damage to the rings of a job: single bits, lost tails and files, exchanged and older parts."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations, permutations

from tests.damage.places import BLOCK, PAGE, Places
from tests.damage.recording import AGES, Rings

__all__ = ["FEW", "KINDS", "Change", "Damage", "damages_of"]

_RANDOM = 2000
"""Damages of several bits for each ring."""
_UNUSED = 256
"""Bits of each ring that are flipped outside of what is in use."""

_NEAR = 128
"""Bytes of a file in which damages are likely to be of the same record."""

Change = Mapping[str, "bytes | tuple[int, bytes] | None"]
"""By file its new content, or an offset and the bytes there; None where the file is gone."""


@dataclass(frozen=True)
class Damage:
    """One damage.

    Attributes:
        kind: One of :data:`KINDS`.
        name: Kind, file and place, which name it on the command line.
        make: Return what it does to the files: most damages of a sweep are not in its part.
        touched: Offsets of changed bytes by file; None for a file as a whole.
    """

    kind: str
    name: str
    make: Callable[[], Change]
    touched: Mapping[str, range | None]

    @cached_property
    def change(self) -> Change:
        """What it does to the files."""
        return self.make()

    def is_part(self, part: int, parts: int, salt: str = "") -> bool:
        """Return whether it belongs to one of several equal parts of the sweep.

        Many damages of the same few bytes leave the same records to be read, and are in one part.

        Args:
            part: Number of the part, from 0.
            parts: Their number.
            salt: Such as a job: jobs have damages of the same names, of which each takes others.
        """
        kind, file, *place = self.name.split("/")
        near = int(place[0]) // _NEAR if place and place[0].isdigit() else place[:1]
        return zlib.crc32(f"{salt} {kind} {file} {near}".encode()) % parts == part


_Made = Iterator[Damage]
_Maker = Callable[[Rings, Mapping[str, Places]], _Made]


def damages_of(
    rings: Rings, places: Mapping[str, Places], kinds: Sequence[str], seed: int = 0
) -> Iterator[Damage]:
    """Yield every damage to a job's rings.

    Args:
        rings: The rings.
        places: What of them is in use.
        kinds: Kinds of damage.
        seed: Of damages at random.
    """
    for kind in kinds:
        if kind == "random":
            yield from _random(rings, places, seed)
        elif kind == "unused":
            yield from _unused(rings, places, seed)
        elif kind == "byte-records":
            yield from _bytes(rings, places, seed)
        elif kind.startswith("bit-"):
            yield from _bits(kind, rings, places)
        else:
            yield from _WHOLE[kind](rings, places)


def _bits(kind: str, rings: Rings, places: Mapping[str, Places]) -> _Made:
    """Flip each bit of a part that is in use."""
    section = kind.removeprefix("bit-")
    for file, own in places.items():
        late = rings[file][-1]
        if section == "records":
            parts: Sequence[range] = own.newest
        else:
            parts = [range(start, start + BLOCK) for start in own.used.get(section, ())]
        for part in parts:
            for offset in part:
                for bit in range(8):
                    yield _flip(kind, file, late, offset, bit)


def _bytes(rings: Rings, places: Mapping[str, Places], seed: int) -> _Made:
    """Flip two to eight bits of each byte of the newest records."""
    several = [value for value in range(256) if value.bit_count() > 1]
    for file, own in places.items():
        dice = random.Random(f"bytes {file} {seed}")
        for offset in (offset for part in own.newest for offset in part):
            new = bytes([rings[file][-1][offset] ^ dice.choice(several)])
            yield Damage(
                "byte-records",
                f"byte-records/{file}/{offset}",
                partial(_put, file, offset, new),
                {file: range(offset, offset + 1)},
            )


def _flip(kind: str, file: str, data: bytes, offset: int, bit: int) -> Damage:
    def make() -> Change:
        return {file: (offset, bytes([data[offset] ^ 1 << bit]))}

    name = f"{kind}/{file}/{offset}/{bit}"
    return Damage(kind, name, make, {file: range(offset, offset + 1)})


def _unused(rings: Rings, places: Mapping[str, Places], seed: int) -> _Made:
    """Flip bits where nothing is in use."""
    for file, own in places.items():
        dice = random.Random(f"unused {file} {seed}")
        used = {start for starts in own.used.values() for start in starts}
        for _ in range(_UNUSED):
            # Sections are of very different size: choose one before the place in it.
            section = dice.choice(list(own.sections.values()))
            offset = dice.randrange(section.start, section.stop)
            if offset // BLOCK * BLOCK not in used and not rings[file][-1][offset]:
                yield _flip("unused", file, rings[file][-1], offset, dice.randrange(8))


def _random(rings: Rings, places: Mapping[str, Places], seed: int) -> _Made:
    """Flip two to eight bits within one page."""
    for file, own in places.items():
        dice = random.Random(f"random {file} {seed}")
        data = rings[file][-1]
        blocks = [start for starts in own.used.values() for start in starts]
        blocks += [part.start // BLOCK * BLOCK for part in own.newest]
        pages: dict[int, list[int]] = {}
        for block in blocks:
            pages.setdefault(block // PAGE * PAGE, []).append(block)
        for number in range(_RANDOM):
            page = dice.choice(list(pages))
            near = pages[page]
            new = bytearray(data[page : page + PAGE])
            for _ in range(dice.randrange(2, 9)):
                block = dice.choice(near) if dice.random() < 0.75 else page
                span = BLOCK if block != page or page in near else PAGE
                place = min(block - page + dice.randrange(span), len(new) - 1)
                new[place] ^= 1 << dice.randrange(8)
            touched = range(page, page + len(new))
            make = partial(_put, file, page, bytes(new))
            yield Damage("random", f"random/{file}/{number}", make, {file: touched})


def _zeroed(rings: Rings, places: Mapping[str, Places]) -> _Made:
    """Zero the tail from each page on; the file keeps its length."""
    for file, own in places.items():
        for start in range(0, len(rings[file][-1].rstrip(b"\0")), PAGE):
            yield Damage(
                "tail-zeroed",
                f"tail-zeroed/{file}/{start}",
                partial(_zeros, file, start, own.size),
                {file: range(start, own.size)},
            )


def _zeros(file: str, start: int, stop: int) -> Change:
    return {file: (start, bytes(stop - start))}


def _put(file: str, start: int, data: bytes) -> Change:
    return {file: (start, data)}


def _replace(files: Mapping[str, bytes | None]) -> Change:
    return files


def _cut(rings: Rings, places: Mapping[str, Places]) -> _Made:
    """Cut the file at each page."""
    for file, own in places.items():
        for start in range(0, own.size, PAGE):
            yield Damage(
                "tail-cut",
                f"tail-cut/{file}/{start}",
                partial(_first, file, rings[file][-1], start),
                {file: range(start, own.size)},
            )


def _first(file: str, data: bytes, stop: int) -> Change:
    return {file: data[:stop]}


def _dropped(rings: Rings, places: Mapping[str, Places]) -> _Made:
    """Lose each file."""
    for file in places:
        yield Damage("dropped", f"dropped/{file}", partial(_replace, {file: None}), {file: None})


def _exchanged(rings: Rings, places: Mapping[str, Places]) -> _Made:
    """Exchange the names of each pair of files."""
    for one, other in combinations(places, 2):
        make = partial(_replace, {one: rings[other][-1], other: rings[one][-1]})
        yield Damage("exchanged", f"exchanged/{one}/{other}", make, {})


def _copied(rings: Rings, places: Mapping[str, Places]) -> _Made:
    """Copy each file over each other."""
    for one, other in permutations(places, 2):
        make = partial(_replace, {one: rings[other][-1]})
        yield Damage("copied", f"copied/{one}/{other}", make, {one: None})


def _older_pages(rings: Rings, places: Mapping[str, Places]) -> _Made:
    """Replace each page by an older one."""
    for file, own in places.items():
        late = rings[file][-1]
        for age, older in list(zip(AGES, rings[file], strict=True))[:-1]:
            for start in range(0, own.size, PAGE):
                page = older[start : start + PAGE]
                page += bytes(min(PAGE, own.size - start) - len(page))
                if page != late[start : start + PAGE]:
                    yield Damage(
                        "page-older",
                        f"page-older/{file}/{start}/{age}",
                        partial(_put, file, start, page),
                        {file: range(start, start + PAGE)},
                    )


def _older_files(rings: Rings, places: Mapping[str, Places]) -> _Made:
    """Replace each file by an older one."""
    for file in places:
        for age, older in list(zip(AGES, rings[file], strict=True))[:-1]:
            make = partial(_replace, {file: older})
            yield Damage("file-older", f"file-older/{file}/{age}", make, {file: None})


_WHOLE: Mapping[str, _Maker] = {
    "tail-zeroed": _zeroed,
    "tail-cut": _cut,
    "dropped": _dropped,
    "exchanged": _exchanged,
    "copied": _copied,
    "page-older": _older_pages,
    "file-older": _older_files,
}
FEW = ("dropped", "exchanged", "copied", "page-older", "file-older")
"""Kinds with a few dozen damages for each job."""
KINDS = (
    *(
        "bit-records",
        "byte-records",
        "bit-header",
        "bit-about",
        "bit-strings",
        "bit-heap",
        "bit-table",
    ),
    *("bit-marks", "bit-graphs", "bit-device", "bit-transfers", "unused", "random"),
    *_WHOLE,
)
"""Kinds of damage."""
