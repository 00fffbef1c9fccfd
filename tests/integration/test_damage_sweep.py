"""Damage moves a verdict only downwards: parts of the sweep that ``make damage`` runs whole."""

from __future__ import annotations

import pytest

from tests.damage import __main__ as command
from tests.damage.damages import FEW, KINDS


def test_no_damage_of_a_slice_makes_a_verdict_surer(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = [option for kind in KINDS for option in ("--kind", kind)]

    status = command.main(["--part", "1/2000", *kinds])

    assert status == 0, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_damage_of_a_tenth_makes_a_verdict_surer(capsys: pytest.CaptureFixture[str]) -> None:
    status = command.main(["--part", "0/10"])

    assert status == 0, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_other_or_older_file_makes_a_verdict_surer(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = [option for kind in FEW for option in ("--kind", kind)]

    status = command.main(kinds)

    assert status == 0, capsys.readouterr().out
