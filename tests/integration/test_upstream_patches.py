"""Patches for upstream: they apply, do what they say, and come off again without a trace.

The source of the installed vLLM is at hand. Of others the one file is taken from the wheel on
the index, once; where that is not to be had, `NCCLSCOPE_VLLM_SOURCES` may name a directory with a
folder for each version, `0.30.0/vllm/...`, as unpacked from its wheel.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
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


def version_of(patch: Path) -> str:
    found = re.match(r"vllm-([0-9.]+)-", patch.name)
    assert found is not None, patch.name
    return found[1]


def target_of(version: str, cache: Path) -> Path:
    """Return a version's dispatcher, or skip the test."""
    elsewhere = os.environ.get("NCCLSCOPE_VLLM_SOURCES")
    if elsewhere and (Path(elsewhere) / version / TARGET).exists():
        return Path(elsewhere) / version / TARGET
    spec = importlib.util.find_spec("vllm")
    if spec is not None and spec.origin is not None:
        package = Path(spec.origin).parent
        text = (package / "_version.py").read_text()
        if f"'{version}" in text or f'"{version}' in text:
            return package.parent / TARGET
    try:
        return fetch(version, str(TARGET), cache / version)
    except Unavailable as error:
        pytest.skip(f"vLLM {version} is not installed, nor in NCCLSCOPE_VLLM_SOURCES; {error}")


@pytest.fixture
def cache(pytestconfig: pytest.Config) -> Path:
    """Where files of wheels are kept from one run of the tests to the next."""
    kept: pytest.Cache = pytestconfig.cache  # type: ignore[assignment]
    return kept.mkdir("vllm-sources")


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
    original = target_of(version_of(patch), cache)
    target = tmp_path / TARGET
    target.parent.mkdir(parents=True)
    shutil.copy(original, target)

    apply(patch, tmp_path)
    assert "_gather_padded(tensors_to_gather" in target.read_text()
    compile(target.read_text(), str(target), "exec")

    apply(patch, tmp_path, "--reverse")
    assert target.read_bytes() == original.read_bytes()


@pytest.mark.vllm
def test_patched_dispatcher_posts_the_same_whatever_the_sizes_are(
    tmp_path: Path, cache: Path
) -> None:
    pytest.importorskip("vllm")
    patch = PATCHES[-1]
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
