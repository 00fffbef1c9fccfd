"""Damage to the parts of a ring, and rings whose checksums were made to fit."""

from __future__ import annotations

import json
import random
import zlib

import numpy as np

from ncclscope.ring import layout
from ncclscope.ring.image import RECORD_DTYPE
from tests.fuzz.byte_damage import SPECIAL, change_bytes, edit
from tests.fuzz.inputs import BaseInput, Input
from tests.fuzz.value_damage import change_value, spell
from tests.support.rings import geometry_of, seal_record

__all__ = ["damage_part", "forge_about", "forge_record", "used_parts"]


def used_parts(data: bytes) -> dict[str, range]:
    """Return the used ranges of a ring, by the name of the part."""
    geometry = geometry_of(data)
    ends = {
        "header": (0, layout.PAGE),
        "description": (geometry.about, geometry.mirror),
        "mirror": (geometry.mirror, geometry.strings),
        "strings": (geometry.strings, geometry.heap),
        "heap": (geometry.heap, geometry.table),
        "table": (geometry.table, geometry.mark_area),
        "marks": (geometry.mark_area, geometry.carried),
        "carried": (geometry.carried, geometry.records),
        "records": (geometry.records, geometry.graphs),
        "graphs": (geometry.graphs, geometry.device),
        "device": (geometry.device, geometry.total),
    }
    found = {}
    for name, (start, stop) in ends.items():
        used = np.flatnonzero(np.frombuffer(data[start:stop], np.uint8))
        if len(used):
            found[name] = range(start, min(start + int(used[-1]) + 9, stop))
    return found


_parts: dict[int, tuple[bytes, dict[str, range]]] = {}


def _parts_of(data: bytes) -> dict[str, range]:
    known = _parts.get(id(data))
    if known is None or known[0] is not data:
        known = _parts[id(data)] = data, used_parts(data)
    return known[1]


def _choose(dice: random.Random, base: BaseInput) -> tuple[str, bytearray, dict[str, range]]:
    names = [name for name in sorted(base.files) if name.endswith(layout.SUFFIX)]
    names = [name for name in names if name not in base.keep and base.files[name]]
    name = dice.choice(names)
    return name, bytearray(base.files[name]), _parts_of(base.files[name])


def damage_part(dice: random.Random, base: BaseInput) -> Input:
    """Change some bytes in one part of a ring."""
    name, data, parts = _choose(dice, base)
    part = dice.choice((*parts, "records", "strings"))
    change = change_bytes(dice, data, [parts[part]])
    return edit(name, base, f"{change} of {part}", bytes(data))


def forge_about(dice: random.Random, base: BaseInput) -> Input:
    """Change what a ring says of its process, with a checksum that fits."""
    name, data, _ = _choose(dice, base)
    geometry = geometry_of(data)
    for copy in (0, 1):
        start = geometry.about + copy * geometry.about_size
        generation, length, _, _ = layout.ABOUT.unpack_from(data, start)
        text = data[start + layout.ABOUT.size :][:length]
        if not generation:
            continue
        new = spell(change_value(dice, json.loads(text)))[: geometry.about_size - layout.ABOUT.size]
        checksum = zlib.crc32(new, generation & 0xFFFFFFFF)
        block = layout.ABOUT.pack(generation, len(new), checksum, 0) + new
        data[start : start + len(block)] = block
    return edit(name, base, "forged description", bytes(data), forged=True)


def forge_record(dice: random.Random, base: BaseInput) -> Input:
    """Change fields of some records; their checks are made to fit."""
    name, data, _ = _choose(dice, base)
    geometry = geometry_of(data)
    stop = geometry.records + geometry.capacity * RECORD_DTYPE.itemsize
    records = np.frombuffer(data, RECORD_DTYPE, geometry.capacity, geometry.records)
    used = np.flatnonzero(records["begin"])
    if stop > len(data) or not len(used):
        return edit(name, base, "nothing", bytes(data))
    fields = []
    for _ in range(dice.choice((1, 1, 2, 6))):
        place = int(dice.choice(used.tolist()))
        field = dice.choice([field for field in RECORD_DTYPE.names or () if field != "end"])
        value = dice.choice((*SPECIAL, int(np.ravel(records[place][field])[0]) + 1, 2, 3))
        if field == "state" and geometry.checked:
            value = dice.choice(layout.STATES)
        kind = RECORD_DTYPE[field].base
        records[place][field] = np.array(value % (1 << 8 * kind.itemsize), np.uint64).astype(kind)
        records[place]["end"] = records[place]["begin"]
        if geometry.checked:
            records[place]["end"] &= np.uint64(0xFFFFFFFF)
            seal_record(data, geometry.records + place * RECORD_DTYPE.itemsize)
        fields.append(field)
    return edit(name, base, f"forged {' '.join(fields)}", bytes(data), forged=True)
