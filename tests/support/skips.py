"""Makes a skip a failure, unless tests/expected_skips.toml lists it with its reason.

NCCLSCOPE_STRICT_SKIPS switches this on and names the suite, which is a table of that file. Where
a build machine cannot install something, `.ci/run` names the tests that need it in
NCCLSCOPE_ALLOWED_SKIPS, and those may skip in that run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.support.nodes import can_unshare
from tests.support.shared_memory import BACKEND

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["LIST", "StrictSkips", "expected", "unexpected"]

LIST = Path(__file__).parents[1] / "expected_skips.toml"
SUITE = "NCCLSCOPE_STRICT_SKIPS"
ALLOWED = "NCCLSCOPE_ALLOWED_SKIPS"


def expected(suite: str) -> dict[str, str]:
    """Return the patterns of tests that may skip in a suite, with their reasons.

    Raises:
        KeyError: There is no such suite.
    """
    suites: dict[str, dict[str, str]] = tomllib.loads(LIST.read_text("utf-8"))
    return suites[suite]


def unexpected(skipped: Sequence[str], patterns: Mapping[str, str]) -> list[str]:
    """Return the ids of skipped tests, or of skipped files, that no pattern matches."""

    def listed(test: str, pattern: str) -> bool:
        return fnmatchcase(test, pattern) or test.startswith(f"{pattern}::")

    return [test for test in skipped if not any(listed(test, pattern) for pattern in patterns)]


class StrictSkips:
    """A pytest plugin that fails the session when a test skips that may not.

    Args:
        suite: Table of the list.
    """

    def __init__(self, suite: str) -> None:
        self.patterns = expected(suite)
        if os.geteuid() != 0:
            self.patterns |= expected("without-root")
        if not can_unshare():
            self.patterns |= expected("without-namespaces")
        if BACKEND != "shm":
            self.patterns |= expected("without-shared-memory")
        self.allowed = dict.fromkeys(os.environ.get(ALLOWED, "").split(), "cannot be installed")
        self.found: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None or hasattr(session.config, "workerinput"):
            return  # a worker of xdist: its reports are counted by the process that started it
        skipped = [report.nodeid for report in terminal.stats.get("skipped", ())]
        self.found = unexpected(skipped, self.patterns | self.allowed)
        if self.found and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test in self.found:
            terminalreporter.line(f"FAILED {test} - skipped, and not listed in {LIST.name}")
