"""`ncclscope doctor`: it reports what is there, and what would enable the rest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclscope.doctor.checks import Check, is_useful
from tests.support import fork_server
from tests.support.cluster import Cluster
from tests.support.nodes import can_unshare
from tests.support.programs import ROOT


def doctor(
    *arguments: str, prefix: tuple[str, ...] = (), first: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(
        filter(None, [first, *(str(ROOT / part) for part in ("", "analyzers", "patches"))])
    )
    run = subprocess.run if prefix else fork_server.run
    return run(
        [*prefix, sys.executable, "-m", "ncclscope", "doctor", *arguments],
        env={**os.environ, "PYTHONPATH": path, "NCCL_RAS_ADDR": "127.0.0.1:1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def checks(first: str = "", **environment: str) -> dict[str, dict[str, Any]]:
    done = doctor("--json", first=first, **environment)
    assert done.returncode == 0, done.stderr
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_it_checks_everything() -> None:
    found = checks()

    assert set(found) >= {
        *("switch", "variables", "shm", "rings", "fallback", "recorded", "vllm"),
        *("stacks", "permission", "native", "gpu", "ras", "flight_recorder"),
        *("ncclscope", "C core", "diagnoses", "probes", "vLLM plugin", "pytest plugin"),
        *("torch", "vLLM version", "NCCL"),
    }
    assert found["stacks"]["status"] == "ok"
    for check in found.values():
        assert check["status"] in ("ok", "off", "warn", "bad")
        if check["name"] not in ("recorded", "torch", "vLLM version"):
            assert check["enable"] or check["status"] == "ok"


def test_rings_that_are_there_are_found(tmp_path: Path) -> None:
    Cluster(tmp_path / "rings", 2)
    found = checks(NCCLSCOPE_DIR=str(tmp_path))

    assert found["switch"]["status"] == "ok"
    assert found["recorded"]["state"].startswith("2 rings")
    assert str(tmp_path / "rings") in found["recorded"]["enable"]


def test_switches_of_the_plugin_are_named_and_a_misspelt_one_gets_a_hint() -> None:
    given = checks(NCCLSCOPE_VLLM_DISPATCH="fixed")["variables"]
    misspelt = checks(NCCLSCOPE_VLM_DISPATCH="fixed")["variables"]

    assert given["status"] == "ok"
    assert "NCCLSCOPE_VLLM_DISPATCH=fixed" in given["state"]
    assert misspelt["status"] == "warn"
    assert "NCCLSCOPE_VLLM_DISPATCH" in misspelt["enable"]


def test_tracing_that_is_switched_off_is_reported() -> None:
    assert "NCCLSCOPE=0" in checks(NCCLSCOPE="0")["switch"]["state"]


def test_the_screen_fits_and_says_what_to_do() -> None:
    done = doctor(COLUMNS="80")

    assert done.returncode == 0
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "ATTACHING TO LIVE PROCESSES" in done.stdout
    assert "-> " in done.stdout


def install(folder: Path, name: str, version: str, entry_points: str = "") -> str:
    """Put what pip would write of a distribution into a folder for the search path."""
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "entry_points.txt").write_text(entry_points)
    return str(folder)


def test_versions_that_the_probes_were_not_written_for_are_a_warning(tmp_path: Path) -> None:
    install(tmp_path, "vllm", "0.32.1")
    found = checks(first=install(tmp_path, "torch", "99.1.0"))

    assert found["torch"]["status"] == "warn"
    assert "99.1.0; the probes support 2.6 to 2.15" in found["torch"]["state"]
    assert "torch 2.15" in found["torch"]["enable"]
    assert found["vLLM version"]["status"] == "ok"
    assert "0.32.1; the probes support 0.26 to 0.32" in found["vLLM version"]["state"]


def test_a_plugin_that_does_not_load_is_named_with_its_owner(tmp_path: Path) -> None:
    entry = "[ncclscope.analyzers]\nghost = ghost_analyzer:Ghost\n"
    found = checks(first=install(tmp_path, "ghost-analyzer", "1.0", entry))["diagnoses"]

    assert found["status"] == "bad"
    assert "ghost of ghost-analyzer: ModuleNotFoundError" in found["state"]
    assert found["enable"] == "update or remove ghost-analyzer"


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_nccl_is_asked_for_its_version(tmp_path: Path) -> None:
    library = tmp_path / "libnccl.so.2"
    source = ROOT / "tests" / "integration" / "nccl_stand_in.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)

    check = checks(VLLM_NCCL_SO_PATH=str(library))["NCCL"]
    assert (check["status"], check["state"]) == ("ok", "2.28.9, with RAS")
    check = checks(VLLM_NCCL_SO_PATH=str(library), NCCL_RAS_ENABLE="0")["NCCL"]
    assert (check["status"], check["enable"]) == ("warn", "unset NCCL_RAS_ENABLE for the job")


@pytest.mark.skipif(not can_unshare(), reason="needs the right to make namespaces")
@pytest.mark.parametrize(
    ("size", "shm", "rings"),
    [("4m", "room for 7 rings", "ok"), ("512k", "room for 0 rings", "bad")],
)
def test_the_small_shm_of_a_container_is_a_warning(size: str, shm: str, rings: str) -> None:
    mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    done = doctor("--json", prefix=("unshare", "-rm", "sh", "-c", mount, "sh"))
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}

    assert (found["shm"]["status"], found["rings"]["status"]) == ("warn", rings)
    assert shm in found["shm"]["state"]
    assert "--shm-size" in found["shm"]["enable"]


def test_a_library_that_is_not_nccl_is_bad(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").write_text("no library\n")
    check = checks(VLLM_NCCL_SO_PATH=str(tmp_path / "libnccl.so.2"))["NCCL"]

    assert check["status"] == "bad"
    assert check["state"].startswith("libnccl.so.2: ")


def test_it_imports_nothing_heavy() -> None:
    program = (
        "import sys, ncclscope.__main__ as m; m.main(['doctor', '--json']);"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'pandas', 'vllm')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("rings", "stacks", "useful"),
    [("ok", "ok", True), ("bad", "ok", True), ("ok", "bad", True), ("bad", "bad", False)],
)
def test_the_exit_status_says_whether_anything_would_work(
    rings: str, stacks: str, useful: bool
) -> None:
    found = [Check("", "rings", rings, ""), Check("", "stacks", stacks, "")]
    assert is_useful(found) == useful
