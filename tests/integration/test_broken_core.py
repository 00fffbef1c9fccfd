"""An installation whose compiled core does not load."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ncclscope
from ncclscope import open_run
from tests.support.programs import run_program

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from ncclscope.tracing import session
tracer = session.current()
world = tracer.communicator("world", "world", [0, 1], "gloo")
tracer.record(world, "all_reduce", shape=(8,), dtype="float32")
assert session.current() is tracer
"""


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A directory with a copy of the package, in which the extension is no library."""
    installed = tmp_path / "installed"
    unneeded = shutil.ignore_patterns("*.so", "__pycache__", "src")
    shutil.copytree(
        Path(ncclscope.__file__).parent, installed / "ncclscope", symlinks=True, ignore=unneeded
    )
    (installed / "ncclscope" / "native" / "_core.abi3.so").write_text("not a library")
    return installed


@pytest.mark.parametrize("wanted", [True, False])
def test_the_python_writer_serves_with_one_warning(broken: Path, rings: Path, wanted: bool) -> None:
    switch = None if wanted else "0"
    job = {"NCCLSCOPE_DIR": rings, "NCCLSCOPE_NATIVE": switch, "RANK": 0, "WORLD_SIZE": 2}
    done = run_program(PROGRAM, broken, **job)
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if line.startswith("ncclscope: ")]
    assert len(warnings) == wanted, done.stderr
    assert "the C core is installed, but it does not load: " in "".join(warnings) or not wanted
    assert open_run(rings).ranks[0].records == 1
