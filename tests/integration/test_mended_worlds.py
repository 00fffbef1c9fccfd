"""Random small jobs whose verdict was wrong once, and is not any more."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.worlds.__main__ import result
from tests.worlds.sample import RINGS

MENDED: Mapping[int, tuple[int, ...]] = {
    1501: (12987, 13255),
    1508: (17574,),
    1510: (1353, 7007, 8665, 15621, 16162, 17784),
}
"""Numbers of worlds, by seed: ``python -m tests.worlds --seed SEED --show NUMBER`` prints one."""


@pytest.mark.parametrize(
    ("seed", "number"), [(seed, number) for seed, some in MENDED.items() for number in some]
)
def test_a_mended_verdict_is_right_or_names_nobody(seed: int, number: int) -> None:
    assert result(seed, "", RINGS, number)["word"] in ("right", "fair", "unknown")
