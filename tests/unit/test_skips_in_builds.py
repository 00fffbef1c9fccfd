"""In continuous integration a skip is a failure, unless it is listed with its reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import fork_server
from tests.support.programs import ROOT
from tests.support.skips import expected, unexpected

pytest_plugins = ["pytester"]

TESTS = """
import pytest

def test_passes():
    pass

@pytest.mark.skip(reason="no browser")
def test_skips():
    pass
"""


def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, **variables: str) -> str:
    """Run a test that skips; return `passes` or what has failed."""
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text("utf-8"))
    pytester.makepyfile(test_it=TESTS)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = fork_server.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly"],
        cwd=pytester.path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "1 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert bool(failed) == bool(done.returncode)
    return "\n".join(failed) or "passes"


def test_a_skip_passes_elsewhere(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCLSCOPE_STRICT_SKIPS", raising=False)
    assert run(pytester, monkeypatch) == "passes"


def test_a_skip_that_is_not_listed_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = run(pytester, monkeypatch, NCCLSCOPE_STRICT_SKIPS="test-all")
    assert output.startswith("FAILED test_it.py::test_skips - skipped, and not listed")


def test_what_the_machine_cannot_install_may_skip(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = "tests/other.py test_it.py"
    variables = {"NCCLSCOPE_STRICT_SKIPS": "test-all", "NCCLSCOPE_ALLOWED_SKIPS": allowed}
    assert run(pytester, monkeypatch, **variables) == "passes"


def test_a_pattern_names_a_file_a_test_or_several() -> None:
    skipped = ["a.py", "a.py::test_one", "b.py::test_two[x]", "c.py::test_three"]
    assert unexpected(skipped, {"a.py": "", "b.py::test_two*": ""}) == ["c.py::test_three"]


@pytest.mark.parametrize("suite", ["test-all", "test-vllm", "without-root", "without-namespaces"])
def test_each_listed_skip_has_a_reason_and_a_file(suite: str) -> None:
    for pattern, reason in expected(suite).items():
        assert len(reason) > 10
        assert list(Path(ROOT).glob(pattern.partition("::")[0])), f"{pattern} matches nothing"
