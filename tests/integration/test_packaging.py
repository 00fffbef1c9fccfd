"""Wheel and sdist: what is in them, and that they work in an environment that has nothing else."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import ncclscope
from tests.support.programs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PACKAGES = ("ncclscope", "ncclscope_analyzers", "ncclscope_patches")
VERSION = ncclscope.__version__


def build(source: Path, target: Path, *options: str) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", target, *options],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    (found,) = built.glob("*.tar.gz")
    return found


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_a_wheel_of_the_sdist_is_that_of_the_checkout(
    wheel: Path, sdist: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as file:
        file.extractall(tmp_path, filter="data")
    again = build(tmp_path / f"ncclscope-{VERSION}", tmp_path / "dist", "-t", "wheel")
    (second,) = again.glob("*.whl")

    assert contents(second) == contents(wheel)


def test_the_wheel_has_what_is_read_at_run_time(wheel: Path) -> None:
    names = set(contents(wheel))
    page = {
        f"ncclscope/render/html/template/report.{ending}" for ending in ("css", "js", "html.j2")
    }
    patches = {
        f"ncclscope_patches/upstream/{path.name}"
        for path in (ROOT / "patches" / "upstream").glob("*.patch")
    }

    assert len(patches) >= 3
    assert names >= {f"{package}/py.typed" for package in PACKAGES} | page | patches
    assert f"ncclscope-{VERSION}.dist-info/licenses/LICENSE" in names
    sources = {path.relative_to(ROOT) for path in (ROOT / "ncclscope").rglob("*.py")}
    assert names >= {str(path) for path in sources}


def test_neither_has_what_is_nobody_s_business(wheel: Path, sdist: Path) -> None:
    with tarfile.open(sdist) as file:
        packed = {name.partition("/")[2] for name in file.getnames()}
    names = set(contents(wheel))

    assert {name.partition("/")[0] for name in names} == {
        *PACKAGES,
        f"ncclscope-{VERSION}.dist-info",
    }
    assert {
        "docs/operators.md",
        "tests/conftest.py",
        "examples/README.md",
        ".ci/run",
        "SECURITY.md",
    } <= packed
    for name in names | packed:
        assert not re.search(r"__pycache__|\.pyc$|\.egg-info|(^|/)(kit|\.venv|\..*_cache)/", name)


def run(
    python: Path, *words: object, status: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-m", "ncclscope", *map(str, words)],
        cwd=python.parents[2],
        env={**clean, "NCCL_RAS_ADDR": "127.0.0.1:1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--disable-pip-version-check",
    ]
    # Compiling all of pandas takes longer than the tests.
    done = subprocess.run(
        [*pip, "--no-compile", "--quiet", wheel], capture_output=True, text=True, check=False
    )
    if "No matching distribution" in done.stderr or "Connection" in done.stderr:
        pytest.skip(f"the package index does not answer: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return python


def test_a_fresh_environment_can_do_all_but_the_demo(fresh: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"ncclscope_trace": 1, "rank": 0, "world_size": 2}\n'
        '{"comm": "k", "label": "tp:0", "ranks": [0, 1], "backend": "nccl"}\n'
        '{"call": "all_reduce", "comm": "k", "shape": [4], "dtype": "float32", "redop": "sum"}\n'
    )

    assert run(fresh, "--version").stdout == f"ncclscope {VERSION}\n"
    said = run(fresh, "doctor").stdout
    assert "17 load" in said
    assert "!! " not in said.partition("INSTALLATION")[2]
    assert "left no record" in run(fresh, "diagnose", trace).stdout
    run(fresh, "report", trace, "-o", tmp_path / "page.html")
    assert "<script" in (tmp_path / "page.html").read_text()
    run(fresh, "export", trace, "--format", "csv", "-o", tmp_path / "tables")
    assert "pip install torch" in run(fresh, "demo", status=2).stderr


def test_with_torch_the_demo_works_too(fresh: Path, tmp_path: Path) -> None:
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    # That of the tests, behind all that the environment has of its own: torch is 200 MB.
    (packages,) = fresh.parents[1].glob("lib/python*/site-packages")
    behind = packages / "zz-torch.pth"
    behind.write_text(f"{Path(torch.origin).parents[1]}\n")
    try:
        rings = tmp_path / "rings"
        demo = ("demo", "--fault", "wrong_op", "--tp", "2", "--dp", "2", "--dir", rings)
        assert "The verdict names it." in run(fresh, *demo).stdout
    finally:
        behind.unlink()
    # Read again without torch.
    assert "op mismatch" in run(fresh, "diagnose", rings, status=1).stdout
    shutil.rmtree(rings)
