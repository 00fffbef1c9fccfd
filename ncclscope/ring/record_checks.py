"""The checks of a ring's records, and the correction of one flipped bit, as memory with ECC does.

A record that does not fit its check was torn, overwritten or damaged. Of the 768 that differ from
it in one bit, one fits where that bit was flipped; elsewhere one fits by chance once in five
million damaged records. The upper bits of a word change fewer bits of the check, and more damages
look alike there: only what changes the lower bits of the check is corrected.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ncclscope.ring import layout

_FACTORS = np.array(layout.FACTORS, np.uint64)
_WORDS = layout.RECORD.size // 8
_STATE_WORD, _CHECK_WORD = layout.STATE_OFFSET // 8, layout.CHECK_OFFSET // 8
_BITS = np.uint64(1) << np.arange(64, dtype=np.uint64)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_STATE_SHIFT = np.uint64(56)
_WITHOUT_STATE = np.uint64((1 << 56) - 1)
_COVERED = np.ones((_WORDS, 64), bool)
_COVERED[_STATE_WORD, 56:] = False
_COVERED[_CHECK_WORD, 32:] = False
_OF_CHECK = np.zeros((_WORDS, 64), bool)
_OF_CHECK[_CHECK_WORD, 32:] = True
_STEPS = np.multiply.outer(_FACTORS, _BITS)
"""What a flip of each bit of each word changes in the sum of which the check is a part."""
_DISTINCT = np.uint64(0xFFF)
"""Bits of the check of which one is changed by a flip of any of the lower 44 bits of a word."""
_MOST_CORRECTED = 256
"""Records of one read that are tried; more are no flipped bits."""

NO_STATE = 255
STATES = np.full(256, NO_STATE, np.uint8)
"""State by its spelling; NO_STATE for what spells none."""
STATES[list(layout.STATES)] = range(len(layout.STATES))


def record_checks(data: bytes) -> NDArray[np.uint64]:
    """Return the check of each record of version 3, `[records]`; see :func:`layout.check`."""
    words = np.frombuffer(data, "<u8").reshape(-1, _WORDS).copy()
    words[:, _STATE_WORD] &= _WITHOUT_STATE
    words[:, _CHECK_WORD] &= _LOW
    checks: NDArray[np.uint64] = (words @ _FACTORS) >> _HALF
    return checks


def fitting(data: bytes) -> NDArray[np.bool_]:
    """Return which records fit their check and spell a state, `[records]`."""
    words = np.frombuffer(data, "<u8").reshape(-1, _WORDS)
    last = words[:, _CHECK_WORD]
    good: NDArray[np.bool_] = record_checks(data) == last >> _HALF
    good &= last & _LOW == words[:, 0] & _LOW
    good &= STATES[words[:, _STATE_WORD] >> _STATE_SHIFT] < NO_STATE
    return good


def correct(data: bytearray) -> NDArray[np.bool_]:
    """Flip the wrong bit of each record that has one, and return which records fit, `[records]`."""
    good = fitting(bytes(data))
    records = np.frombuffer(data, "<u8").reshape(-1, _WORDS)
    wrong = np.flatnonzero(~good & records.any(axis=1))
    for place in wrong if len(wrong) <= _MOST_CORRECTED else ():
        if (corrected := _corrected(records[place].tobytes())) is not None:
            records[place] = np.frombuffer(corrected, "<u8")
            good[place] = True
    return good


@lru_cache(maxsize=_MOST_CORRECTED)
def _corrected(data: bytes) -> bytes | None:
    """Return the only record that fits and differs in one bit; None if there is none.

    Cached, since a ring's newest records are read several times.
    """
    record = np.frombuffer(data, "<u8")
    covered = record.copy()
    covered[_STATE_WORD] &= _WITHOUT_STATE
    covered[_CHECK_WORD] &= _LOW
    check, own = record[_CHECK_WORD:] >> _HALF, covered[None] @ _FACTORS
    # Of a state, three wrong bits look like one of another state.
    if not ((check - (own >> _HALF)) & _DISTINCT).any():
        return None
    sums = np.where((covered[:, None] & _BITS) != 0, own - _STEPS, own + _STEPS)
    words, bits = np.nonzero((sums >> _HALF == check) & _COVERED | _OF_CHECK)
    flipped = np.repeat(record[None], len(words), axis=0)
    flipped[np.arange(len(words)), words] ^= _BITS[bits]
    fit = np.flatnonzero(fitting(flipped.tobytes()))
    return flipped[fit[0]].tobytes() if len(fit) == 1 else None
