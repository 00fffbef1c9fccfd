"""Each changed byte of an entry or a word of a ring is noticed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ncclscope.ring import entries, layout
from ncclscope.ring.image import RingImage
from ncclscope.ring.reader import RingFile
from tests.support.rings import SMALL, fill, tracer_in

ENTRIES = {
    "table": layout.TABLE_ENTRY.size,
    "activity": layout.ACTIVITY.size,
    "record": layout.RECORD.size,
}
WORDS = (*range(layout.WORDS, layout.WORDS_END, 8), layout.HEADER_REUSED)


def test_a_change_of_any_byte_changes_the_check_of_any_entry() -> None:
    """The check is the upper half of a sum, whose lower half may carry into it.

    A byte that goes up by ``change`` at ``shift`` bits adds ``change * factor << shift``, and
    whatever the sum was, its upper half changes, unless the difference is less than 2**32 off zero.
    """
    changes = np.arange(-255, 256).astype(np.uint64)
    changes = changes[changes != 0]
    for factor in layout.FACTORS:
        for shift in range(0, 64, 8):
            added = changes * np.uint64(factor) << np.uint64(shift)
            upper = added >> np.uint64(32)
            assert not np.any((upper == 0) | (upper == 0xFFFFFFFF)), (hex(factor), shift)


@pytest.mark.parametrize("kind", ENTRIES)
@pytest.mark.parametrize("seed", range(3))
def test_a_changed_byte_of_an_entry_does_not_fit_its_check(kind: str, seed: int) -> None:
    dice = random.Random(seed)
    size = ENTRIES[kind]
    data = bytes(size - 4) if seed == 0 else dice.randbytes(size - 4)

    def seal(entry: bytes) -> bytes:
        if kind == "record":
            return layout.sealed_record(entry)
        return layout.sealed(entry[:-4] + bytes(4))

    sealed = seal(data + bytes(4))
    for place in range(size):
        changed = bytearray(sealed)
        for value in range(256):
            changed[place] = value
            fits = seal(bytes(changed)) == changed
            is_state = kind == "record" and place == layout.STATE_OFFSET
            assert fits == (is_state or bytes(changed) == sealed), (place, value)


def test_no_flipped_bit_makes_one_state_of_another() -> None:
    for state in layout.STATES:
        flipped = {state ^ 1 << bit for bit in range(8)}
        assert not flipped & {*layout.STATES, 0}


@pytest.mark.both_writers
class TestOfARing:
    """Both writers give everything a check that fits, and the reader holds it against that."""

    @pytest.fixture
    def path(self, rings: Path) -> Path:
        tracer = tracer_in(rings)
        fill(tracer, tracer.communicator("k", "tp:0", [0]), 1, SMALL + 101)
        tracer.activity("step").begin("execute_model", 811)
        tracer.close()
        return Path(tracer.path)

    def changed(
        self, path: Path, places: range, find: Callable[[RingFile], object], value: int = 1
    ) -> dict[int, object]:
        """Return what is found with each of some bytes changed."""
        found = {}
        whole = path.read_bytes()
        with path.open("r+b", buffering=0) as file:
            for place in places:
                os.pwrite(file.fileno(), bytes([whole[place] ^ value]), place)
                with RingFile(path) as ring:
                    found[place] = find(ring)
                os.pwrite(file.fileno(), whole[place : place + 1], place)
        return found

    def test_nothing_of_a_sound_ring_is_damaged(self, path: Path) -> None:
        with RingFile(path) as ring:
            assert (ring.head, ring.holes, ring.count) == (SMALL + 100, [], SMALL + 100)
            assert len(ring.window(ring.lost, ring.head)) == SMALL
            assert len(ring.marks(1).seqs) == 1
            assert ring.damage == set()

    def test_a_word(self, path: Path) -> None:
        """One damaged copy is harmless. Of two, the smallest number counts."""
        with RingImage(path) as ring, path.open("r+b", buffering=0) as file:
            for offset in WORDS:
                wanted = ring.word(offset)
                for place in (*range(offset, offset + 8), offset + layout.COMPLEMENTS):
                    copy = layout.MIRROR + place
                    for places in ((place,), (copy,), (place, copy)):
                        before = [ring.read_bytes(each, 1) for each in places]
                        for each, data in zip(places, before, strict=True):
                            os.pwrite(file.fileno(), bytes([data[0] ^ 4]), each)
                        ring.damage.clear()
                        found = ring.word(offset)
                        assert (found == wanted) if len(places) == 1 else (found <= wanted)
                        assert ring.damage == (set() if len(places) == 1 else {"header"})
                        for each, data in zip(places, before, strict=True):
                            os.pwrite(file.fileno(), data, each)

    def test_the_count(self, path: Path) -> None:
        places = range(layout.HEADER_COUNT, layout.HEADER_COUNT + layout.COUNT.size)
        found = self.changed(path, places, lambda ring: (ring.head, ring.damage), 4)
        assert set(map(str, found.values())) == {str((SMALL + 100, {"count"}))}

    def test_the_table(self, path: Path) -> None:
        with RingFile(path) as ring:
            table, comms = ring.geometry.table, ring.geometry.comms
            sound = str((ring.head, ring.states, ring.damage))
        for half in (0, comms):
            start = table + half * layout.TABLE_ENTRY.size
            places = range(start, start + layout.TABLE_ENTRY.size)
            found = self.changed(
                path, places, lambda ring: (ring.head, ring.states, ring.damage), 2
            )
            assert set(map(str, found.values())) == {sound}

    def test_a_mark(self, path: Path) -> None:
        with RingFile(path) as ring:
            start = ring.geometry.mark_area
        places = range(start, start + layout.MARK.size)
        found = self.changed(path, places, lambda ring: len(ring.marks(1).seqs))
        assert set(found.values()) == {0}

    def test_an_activity(self, path: Path) -> None:
        start = layout.HEADER_ACTIVITIES
        places = range(start, start + layout.ACTIVITY.size)
        with RingFile(path) as ring:
            sound = str((ring.activities, set()))
        found = self.changed(path, places, lambda ring: (ring.activities, ring.damage))
        assert set(map(str, found.values())) == {sound}
        mirror = layout.MIRROR + start
        data = bytearray(path.read_bytes())
        data[mirror] ^= 1
        path.write_bytes(data)
        found = self.changed(path, places, lambda ring: (ring.activities, ring.damage))
        assert set(map(str, found.values())) == {str(([], {"activities"}))}

    def test_the_texts(self, path: Path) -> None:
        with RingFile(path) as ring:
            start, used = ring.geometry.strings, ring.word(layout.HEADER_STRINGS_USED)
            sound, data = ring.texts, ring.read_bytes(start, used)
        texts = {text for known in sound.values() for text in known} | {""}
        covered = set()
        for entry in entries.read(data, data):
            size = layout.ENTRY.size + len(entry.data)
            covered |= set(range(entry.offset, entry.offset + size))
        for place in sorted(covered):
            changed = bytearray(data)
            changed[place] ^= 1
            found: dict[int, list[str]] = {}
            is_damaged = False
            assert list(entries.read(bytes(changed), data)) == list(entries.read(data, data))
            for entry in entries.read(bytes(changed), bytes(changed)):
                is_damaged |= not entry.is_whole
                found.setdefault(entry.kind, []).append(entry.data.decode())
            assert is_damaged, place
            assert {text for known in found.values() for text in known} <= texts
            for kind, known in found.items():
                for number, text in enumerate(known if kind else ()):
                    assert text in ("", sound[kind][number])

    def test_the_header(self, path: Path) -> None:
        data = path.read_bytes()
        copy = path.with_name("copy.ring")
        copy.write_bytes(data)
        with copy.open("r+b", buffering=0) as file:
            for place in range(layout.HEADER_CHECK + 4):
                os.pwrite(file.fileno(), bytes([data[place] ^ 1]), place)
                with RingFile(copy) as ring:
                    assert ring.head == SMALL + 100
                os.pwrite(file.fileno(), bytes([data[place] ^ 1]), layout.MIRROR + place)
                with pytest.raises(Exception, match=r"is damaged|not a ring|of version"):
                    RingFile(copy)
                os.pwrite(file.fileno(), data[place : place + 1], place)
                os.pwrite(file.fileno(), data[place : place + 1], layout.MIRROR + place)
