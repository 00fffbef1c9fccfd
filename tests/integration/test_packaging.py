"""Wheel and sdist: what is in them, and that they work in an environment that has nothing else.

A wheel with the compiled core needs a C compiler; without one the tests that need it skip.
"""

from __future__ import annotations

import importlib.util
import json
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


LIBRARIES = {f"ncclscope/native/{name}" for name in ("_core.abi3.so", "ncclscope-profiler.so")}
HOOK = "import sys, ncclscope_build as b; getattr(b, f'build_{sys.argv[1]}')(sys.argv[2])"

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def build(source: Path, target: Path, kind: str = "wheel", **environment: str) -> Path:
    """Call the build backend as pip does, with what this environment has; return the product."""
    target.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", HOOK, kind, target],
        cwd=source,
        env={**os.environ, "PYTHONPATH": str(source / "build_backend"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (product,) = target.iterdir()
    return product


def without_compiler(folder: Path) -> dict[str, str]:
    """Return an environment in which CMake finds no compiler."""
    folder.mkdir()
    return {"PATH": str(folder), "CC": ""}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("sdist"), "sdist")


@pytest.fixture
def unpacked(sdist: Path, tmp_path: Path) -> Path:
    with tarfile.open(sdist) as file:
        file.extractall(tmp_path, filter="data")
    return tmp_path / f"ncclscope-{VERSION}"


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_a_wheel_of_the_sdist_is_that_of_the_checkout(
    wheel: Path, unpacked: Path, tmp_path: Path
) -> None:
    again = build(unpacked, tmp_path / "dist")

    assert again.name == wheel.name
    assert contents(again) == contents(wheel)


@needs_compiler
def test_the_wheel_has_the_compiled_core_for_all_pythons_and_no_source_of_it(wheel: Path) -> None:
    names = set(contents(wheel))

    assert wheel.name.startswith(f"ncclscope-{VERSION}-cp310-abi3-linux_")
    assert names >= LIBRARIES
    assert not [name for name in names if name.endswith((".c", ".h", ".o"))]


def test_without_a_compiler_the_python_writer_is_installed_and_doctor_says_so(
    unpacked: Path, tmp_path: Path
) -> None:
    (unpacked / "ncclscope" / "native" / "_core.abi3.so").write_bytes(b"of an editable install")
    place = tmp_path / "installed"
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--target", place]
    clean = {**os.environ, **without_compiler(tmp_path / "bin")}
    subprocess.run([sys.executable, "-m", "pip", *install, unpacked], env=clean, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "ncclscope", "doctor", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(place), "NCCL_RAS_ADDR": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert not list(place.rglob("*.so"))
    about = (place / f"ncclscope-{VERSION}.dist-info" / "WHEEL").read_text()
    assert "Tag: py3-none-any" in about
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}["C core"]
    assert (found["status"], found["state"].count("\n")) == ("off", 0)
    assert found["state"].startswith("Python writes the rings: ")
    assert "C compiler" in found["enable"]


def test_without_a_compiler_a_wheel_that_must_have_the_core_is_not_built(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="CMAKE_C_COMPILER"):
        build(
            ROOT, tmp_path / "dist", NCCLSCOPE_BUILD="native", **without_compiler(tmp_path / "bin")
        )


@needs_compiler
def test_an_editable_install_is_the_path_of_the_sources_with_the_libraries_in_them(
    unpacked: Path, tmp_path: Path
) -> None:
    editable = build(unpacked, tmp_path / "with", "editable")

    paths = contents(editable).pop("_ncclscope_editable.pth").decode().splitlines()
    assert paths == [str(unpacked / part) for part in ("", "analyzers", "patches")]
    assert {name.partition("/")[0] for name in contents(editable)} == {
        "_ncclscope_editable.pth",
        f"ncclscope-{VERSION}.dist-info",
    }
    assert all((unpacked / name).stat().st_size for name in LIBRARIES)

    # They would be of older sources than the package.
    build(unpacked, tmp_path / "without", "editable", **without_compiler(tmp_path / "bin"))
    assert not any((unpacked / name).exists() for name in LIBRARIES)


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


def test_a_fresh_environment_can_do_all_but_other_demos(fresh: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"ncclscope_trace": 1, "rank": 0, "world_size": 2}\n'
        '{"comm": "k", "label": "tp:0", "ranks": [0, 1], "backend": "nccl"}\n'
        '{"call": "all_reduce", "comm": "k", "shape": [4], "dtype": "float32", "redop": "sum"}\n'
    )

    assert run(fresh, "--version").stdout == f"ncclscope {VERSION}\n"
    output = run(fresh, "doctor").stdout
    assert "21 load" in output
    assert "!! " not in output.partition("INSTALLATION")[2]
    assert "left no record" in run(fresh, "diagnose", trace).stdout
    run(fresh, "report", trace, "-o", tmp_path / "page.html")
    assert "<script" in (tmp_path / "page.html").read_text()
    run(fresh, "export", trace, "--format", "csv", "-o", tmp_path / "tables")
    assert "torch is not installed" in run(fresh, "demo").stderr
    assert "pip install torch" in run(fresh, "demo", "--fault", "skipped_call", status=2).stderr


@needs_compiler
def test_the_compiled_core_loads_without_the_source_tree(fresh: Path) -> None:
    program = "from ncclscope import native as n; print(n.why_not() or n.plugin_path())"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [fresh, "-c", program],
        cwd=fresh.parents[2],
        env=clean,
        capture_output=True,
        text=True,
        check=True,
    )

    assert Path(done.stdout.strip()).is_relative_to(fresh.parents[1])
    assert "C core" in run(fresh, "doctor").stdout


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
