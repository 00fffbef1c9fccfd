"""An error of ncclscope's own: one line, a report, and a status that nobody takes for a verdict."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from ncclscope.__main__ import main


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A command that fails as nobody has foreseen; returns where reports go."""

    def fail(*_: object) -> None:
        raise KeyError("a\nmessage that may hold anything")

    monkeypatch.setattr("ncclscope.commands.diagnose.DiagnoseCommand.run", fail)
    reports = tmp_path / "reports"
    reports.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(reports))
    return reports


def test_it_is_one_line_and_a_report(failing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "rings"]) == 70

    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    (report,) = failing.iterdir()
    assert line.startswith("ncclscope: internal error (KeyError at test_crash.py:")
    assert line.endswith(f"its report is {report}")
    assert report.stat().st_mode & 0o777 == 0o600
    assert "Traceback" in report.read_text()


def test_a_report_that_cannot_be_written(
    failing: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(failing / "absent"))

    assert main(["diagnose", "rings"]) == 70

    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("its report could not be written: No such file or directory")
