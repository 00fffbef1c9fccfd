"""Patches for upstream: they apply, do what they say, and come off again without a trace.

The source of the installed vLLM is at hand. Of others the files are taken from the wheel on
the index, once; where that is not to be had, `NCCLSCOPE_VLLM_SOURCES` may name a directory with a
folder for each version, `0.30.0/vllm/...`, as unpacked from its wheel.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclscope import diagnose
from tests.environments.vllm_sources import Unavailable, fetch
from tests.integration.c10d_ranks import ROOT, calls, join, main, run_ranks
from tests.integration.test_row_collectives import EVEN, UNEVEN, Coordinator, rows_of

UPSTREAM = ROOT / "patches" / "upstream"
PATCHES = sorted(UPSTREAM.glob("*.patch"))
TARGET = Path("vllm/distributed/device_communicators/all2all.py")
DISPATCH = sorted(UPSTREAM.glob("*-agrs-same-collectives.patch"))
ON_REQUEST = UPSTREAM / "vllm-0.33.0-routed-experts-on-request.patch"
CONNECTOR = Path("vllm/distributed/aux_output_connector/connector.py")
OWN_TEST = Path("tests/v1/core/test_aux_output_on_request.py")
RUN_OWN_TEST = f"""
import importlib.util, sys
import pytest
name = "vllm.distributed.aux_output_connector.connector"
spec = importlib.util.spec_from_file_location(name, {str(CONNECTOR)!r})
sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[name])
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", {str(OWN_TEST)!r}]))
"""


def version_of(patch: Path) -> str:
    found = re.match(r"vllm-([0-9.]+)-", patch.name)
    assert found is not None, patch.name
    return found[1]


def targets(patch: Path) -> list[Path]:
    """Return the files that a patch changes, without those that it adds."""
    names = re.findall(r"^--- a/(\S+)$", patch.read_text(), re.M)
    return [Path(name) for name in names]


def target_of(version: str, cache: Path, target: Path = TARGET) -> Path:
    """Return a version's file, or skip the test."""
    elsewhere = os.environ.get("NCCLSCOPE_VLLM_SOURCES")
    if elsewhere and (Path(elsewhere) / version / target).exists():
        return Path(elsewhere) / version / target
    spec = importlib.util.find_spec("vllm")
    if spec is not None and spec.origin is not None:
        package = Path(spec.origin).parent
        text = (package / "_version.py").read_text()
        if f"'{version}" in text or f'"{version}' in text:
            return package.parent / target
    try:
        return fetch(version, str(target), cache / version)
    except Unavailable as error:
        pytest.skip(f"vLLM {version} is not installed, nor in NCCLSCOPE_VLLM_SOURCES; {error}")


@pytest.fixture
def cache(pytestconfig: pytest.Config) -> Path:
    """Where files of wheels are kept from one run of the tests to the next."""
    kept: pytest.Cache = pytestconfig.cache  # type: ignore[assignment]
    return kept.mkdir("vllm-sources")


def unpack(patch: Path, tree: Path, cache: Path) -> dict[Path, Path]:
    """Copies what a patch changes into a tree; returns the originals by name."""
    originals = {}
    for target in targets(patch):
        originals[target] = target_of(version_of(patch), cache, target)
        (tree / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(originals[target], tree / target)
    return originals


def apply(patch: Path, tree: Path, *options: str) -> None:
    subprocess.run(["git", "apply", *options, str(patch)], cwd=tree, check=True)


def load_patched() -> Any:
    """Return the patched dispatcher as a class of its own, beside vLLM's."""
    import vllm.distributed.device_communicators.all2all as stock

    spec = importlib.util.spec_from_file_location(stock.__name__, os.environ["PATCHED"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.AgRsAll2AllManager is not stock.AgRsAll2AllManager
    return module.AgRsAll2AllManager


def dispatch_patched(rank: int) -> None:
    manager_class = load_patched()
    dist = join()
    group = Coordinator(dist)
    manager = manager_class.__new__(manager_class)
    manager._get_comm_group = lambda is_sequence_parallel: group
    for sizes in (UNEVEN, EVEN):
        manager._get_sizes = lambda rows, group, sizes=sizes: list(sizes)
        hidden = rows_of(rank, sizes[rank])
        gathered, _, ids = manager.dispatch(hidden, hidden, hidden.long())
        every = [10**r for r in range(len(sizes)) for _ in range(sizes[r])]
        assert gathered[:, 0].tolist() == every
        assert ids[:, 1].tolist() == every
        assert manager.combine(gathered).tolist() == (len(sizes) * hidden).tolist()
    os._exit(0)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_patch_says_what_it_is_against(patch: Path) -> None:
    text = patch.read_text()
    header = text[: text.index("\n---\n")]

    assert f"Against: vLLM {version_of(patch)}\n" in header
    assert re.search(r"^Issue: https://github\.com/vllm-project/vllm/issues/\d+$", header, re.M)
    assert re.search(r"^Status: (not proposed|proposed|merged|refused)\b", header, re.M)
    assert f"`{patch.name}`" in (UPSTREAM / "README.md").read_text()
    subprocess.run(["git", "apply", "--numstat", str(patch)], check=True, capture_output=True)


@pytest.mark.vllm
@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_patch_applies_and_comes_off(tmp_path: Path, patch: Path, cache: Path) -> None:
    originals = unpack(patch, tmp_path, cache)

    apply(patch, tmp_path)
    for target, original in originals.items():
        text = (tmp_path / target).read_text()
        assert text != original.read_text()
        compile(text, str(target), "exec")

    apply(patch, tmp_path, "--reverse")
    for target, original in originals.items():
        assert (tmp_path / target).read_bytes() == original.read_bytes()


@pytest.mark.vllm
@pytest.mark.timeout(300)  # imports vLLM in a process of its own
@pytest.mark.parametrize("patched", [True, False])
def test_routing_goes_to_the_requests_that_ask(tmp_path: Path, cache: Path, patched: bool) -> None:
    pytest.importorskip("vllm")
    unpack(ON_REQUEST, tmp_path, cache)
    apply(ON_REQUEST, tmp_path)
    if not patched:  # its own test has to notice
        shutil.copy(target_of(version_of(ON_REQUEST), cache, CONNECTOR), tmp_path / CONNECTOR)

    done = subprocess.run(
        [sys.executable, "-c", RUN_OWN_TEST], cwd=tmp_path, capture_output=True, text=True
    )

    assert done.returncode == (0 if patched else 1), done.stdout + done.stderr
    assert ("8 passed" if patched else "8 failed") in done.stdout


@pytest.mark.vllm
def test_patched_dispatcher_posts_the_same_whatever_the_sizes_are(
    tmp_path: Path, cache: Path
) -> None:
    pytest.importorskip("vllm")
    patch = DISPATCH[-1]
    target = tmp_path / "source" / TARGET
    target.parent.mkdir(parents=True)
    shutil.copy(target_of(version_of(patch), cache), target)
    apply(patch, tmp_path / "source")
    rings = tmp_path / "rings"
    rings.mkdir()

    run = run_ranks(
        __file__, "dispatch_patched", rings, size=3, environment={"PATCHED": str(target)}
    )

    assert diagnose(run).status == "ok"
    for rank in run.ranks:
        ops = [call.op for call in calls(rank)]
        assert ops == ["all_gather", "all_gather", "all_gather", "reduce_scatter"] * 2


if __name__ == "__main__":
    main(globals())
