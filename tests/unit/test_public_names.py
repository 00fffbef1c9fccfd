"""Imports of other programs: no more than they asked for, and all that is promised."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ncclscope
from tests.support.programs import ROOT, run_program

PROMISED = {"Tracer", "open_run", "diagnose"}
LAZY = ("torch", "vllm", "pandas", "numpy", "jinja2", "pyarrow")


def loaded(source: str) -> set[str]:
    """Return which of the heavy packages a program has imported in the end."""
    completed = run_program(
        source + f"\nimport json, sys; print(json.dumps([n for n in {LAZY} if n in sys.modules]))"
    )
    assert completed.returncode == 0, completed.stderr
    return set(json.loads(completed.stdout.splitlines()[-1]))


def test_importing_it_imports_nothing_heavy() -> None:
    assert loaded("import ncclscope") == set()


def test_nor_does_recording(rings: Path) -> None:
    source = f"""
import ncclscope
tracer = ncclscope.Tracer({str(rings)!r}, rank=2, world_size=4)
comm = tracer.communicator(key="KEY", label="tp:0", ranks=[2, 3], backend="nccl")
tracer.record(comm, "all_reduce", shape=(15, 2), dtype="float32", redop="sum")
tracer.close()
"""
    assert loaded(source) == set()


def test_reading_imports_numpy_at_most(rings: Path) -> None:
    tracer = ncclscope.Tracer(rings, rank=0, world_size=1)
    tracer.record(tracer.communicator("k", "tp:0", [0]), "barrier")
    source = f"import ncclscope; ncclscope.diagnose(ncclscope.open_run({str(rings)!r}))"
    assert loaded(source) <= {"numpy"}


@pytest.mark.parametrize(
    "name", ["ncclscope.tracing.session", "ncclscope.tracing.tracer", "ncclscope.ring.writer"]
)
def test_what_a_probe_imports_is_light(name: str) -> None:
    assert loaded(f"import {name}") == set()


def test_public_names_exist_and_are_sorted() -> None:
    assert ncclscope.__all__ == sorted(ncclscope.__all__)
    assert set(ncclscope.__all__) >= PROMISED
    for name in ncclscope.__all__:
        assert getattr(ncclscope, name).__name__ == name
    assert set(dir(ncclscope)) == {*ncclscope.__all__, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ncclscope.nothing  # noqa: B018
    assert re.fullmatch(r"\d+\.\d+\.\d+", ncclscope.__version__)


def test_all_that_is_public_is_in_the_modules_list() -> None:
    names = {}
    exec("from ncclscope import *", names)
    assert set(ncclscope.__all__) <= set(names)


def modules() -> list[str]:
    found = ["ncclscope"]
    for module in pkgutil.walk_packages(ncclscope.__path__, "ncclscope."):
        # NCCL's plugin ends as an extension module does.
        if not re.search(r"\.bootstrap|__main__$|-", module.name):
            found.append(module.name)
    return found


@pytest.mark.parametrize("name", modules())
def test_lists_of_names_are_true(name: str) -> None:
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        assert hasattr(module, public), f"{name}.{public}"


@pytest.mark.parametrize(
    "room", ["ring", "tracing", "sources", "analysis", "render", "export", "."]
)
def test_the_engine_names_no_room_that_builds_on_it(room: str) -> None:
    # Arrows point one way: analyzers and patches are found by entry point, ours like anyone's.
    for path in (ROOT / "ncclscope" / room).glob("*.py"):
        named = re.findall(r"^\s*(?:from|import) (ncclscope[\w.]+)", path.read_text(), re.M)
        above = ["ncclscope_analyzers", "ncclscope_patches", "ncclscope.commands"]
        assert not [name for name in named if name.startswith(tuple(above))], path


def test_the_contracts_example(rings: Path) -> None:
    source = """
import sys
dir = path = sys.argv[1]

import ncclscope
tracer = ncclscope.Tracer(dir, rank=2, world_size=4)               # one per process
comm = tracer.communicator(key="KEY", label="tp:0", ranks=[2, 3], backend="nccl")
tracer.record(comm, "all_reduce", shape=(15, 2), dtype="float32", redop="sum")
run = ncclscope.open_run(path)                                     # any supported input
verdict = ncclscope.diagnose(run)                                  # .to_dict() is the JSON above

import json
print(json.dumps(verdict.to_dict()))
"""
    completed = run_program(source, rings)
    assert completed.returncode == 0, completed.stderr
    document = json.loads(completed.stdout)
    assert document["schema"] == 2
    assert document["ranks"]["read"] == 1
    (row,) = document["table"]
    assert (row["rank"], row["lost"], row["window"]) == (2, 0, False)
    assert row["comms"]["tp:0"]["calls"] == 1
    assert row["comms"]["tp:0"]["last_op"] == "all_reduce"
    assert row["comms"]["tp:0"]["last_shape"] == [15, 2]
    run = ncclscope.open_run(rings)
    assert run.expected == 4
    assert run.ranks[0].logs["KEY"].call(1).site == "<string>:8 <module>"


def test_the_installed_program_is_this_one() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "ncclscope", "--version"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=30,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert ncclscope.__version__ in completed.stdout
