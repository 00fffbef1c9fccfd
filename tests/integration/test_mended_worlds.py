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
DUMPED: Mapping[int, tuple[int, ...]] = {
    2102: (521, 868, 1158, 1164, 2241, 2344, 3303, 3498, 3577, 3942, 4045, 4269, 4459, 6470, 6829),
    2103: (533, 914, 1544, 3283, 4264),
}
"""The same of worlds of which Flight Recorder dumps are left, of torch 2.15 and 2.13."""


@pytest.mark.parametrize(
    ("seed", "number"), [(seed, number) for seed, some in MENDED.items() for number in some]
)
def test_a_mended_verdict_is_right_or_names_nobody(seed: int, number: int) -> None:
    assert result(seed, "", RINGS, number)["word"] in ("right", "fair", "unknown")


@pytest.mark.parametrize(
    ("seed", "number"), [(seed, number) for seed, some in DUMPED.items() for number in some]
)
def test_a_mended_verdict_on_dumps_is_right_or_names_nobody(seed: int, number: int) -> None:
    kind = "torch-2.13" if seed == 2103 else "torch-2.15"
    assert result(seed, "", kind, number)["word"] in ("right", "fair", "unknown")
