"""What every test may rely on: no tracing unless it asks for it, and a place for rings."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from ncclscope import native
from tests.support.skips import SUITE, StrictSkips

SHARED_MEMORY = Path("/dev/shm")
VARIABLES = ("NCCLSCOPE", "NCCLSCOPE_DIR", "NCCL_SCOPE_DIR", "NCCLSCOPE_RUN", "NCCLSCOPE_RECORDS")
VARIABLES += ("NCCLSCOPE_GUARD", "NCCL_SCOPE_GUARD")
VARIABLES += ("NCCL_PROFILER_PLUGIN", "NCCLSCOPE_NEXT_PROFILER", "NCCL_SCOPE_NEXT_PROFILER")
VARIABLES += ("NCCLSCOPE_DEVICE_PROGRESS", "NCCL_SCOPE_DEVICE_PROGRESS")
WRITERS = ("native", "python")

# A shell that starts us in the background has Ctrl-C ignored, and nohup a hang-up; what we start
# would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# How fast examples are drawn depends on what else the machine does.
hypothesis.settings.register_profile(
    "beside-others", suppress_health_check=[hypothesis.HealthCheck.too_slow], deadline=None
)
hypothesis.settings.load_profile("beside-others")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get(SUITE):
        config.pluginmanager.register(StrictSkips(os.environ[SUITE]))


@pytest.fixture(autouse=True)
def _untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what holds for every ring with the writer in C and with the one in Python."""
    if metafunc.definition.get_closest_marker("both_writers"):
        metafunc.fixturenames.append("writer")
        metafunc.parametrize("writer", WRITERS)


@pytest.fixture(autouse=True)
def _writer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process and its children use the writer that a test is run with."""
    chosen = getattr(request.node, "callspec", None)
    name = chosen.params.get("writer") if chosen else None
    if name == "native":
        assert native.core() is not None, f"make native builds it: {native.why_not()}"
    elif name == "python":
        monkeypatch.setenv("NCCLSCOPE_NATIVE", "0")


@pytest.fixture
def python_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the writer in Python, for tests of how it is made."""
    monkeypatch.setenv("NCCLSCOPE_NATIVE", "0")


@pytest.fixture
def rings(tmp_path: Path) -> Iterator[Path]:
    """A directory where rings really live: shared memory, where there is some."""
    if not os.access(SHARED_MEMORY, os.W_OK):
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp(prefix="ncclscope-test-", dir=SHARED_MEMORY))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose name leaves room on a line of 80 columns, which pytest's own do not."""
    with tempfile.TemporaryDirectory(prefix="docs-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)
