from __future__ import annotations

import pytest

from tests.campaign.memory import fit_trend


def test_growth_of_a_noisy_line_is_found_within_its_error() -> None:
    minutes = [number / 3 for number in range(300)]
    sizes = [5000.0 + 2.0 * minute + (-1) ** number for number, minute in enumerate(minutes)]

    trend = fit_trend(minutes, sizes)

    assert trend is not None
    assert trend.slope == pytest.approx(2.0, abs=0.01)
    assert 0 < trend.error < 0.01


def test_one_step_has_an_error_as_large_as_is_uncertain() -> None:
    trend = fit_trend([float(n) for n in range(100)], [0.0] * 90 + [1000.0] * 10)

    assert trend is not None
    assert trend.slope > 0
    assert trend.error > 0.15 * trend.slope


def test_two_samples_make_no_line() -> None:
    assert fit_trend([0.0, 1.0], [1.0, 2.0]) is None
