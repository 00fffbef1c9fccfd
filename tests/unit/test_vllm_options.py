"""Options of vLLM's processes in variables of their own, and refused values."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

VLLM = "vllm/distributed/device_communicators"

STOCK = """
    class AgRsAll2AllManager:
        def _get_comm_group(self, is_sequence_parallel): ...
        def _get_sizes(self, rows, group): ...
        def dispatch(self): ...
        def dispatch_router_logits(self): ...
        def combine(self): ...
"""

PROGRAM = """
    from ncclscope_patches.vllm.plugin import register
    register()
    register()
    import vllm.distributed.device_communicators.all2all as all2all
    print(all2all.AgRsAll2AllManager.__name__)
"""


def run(directory: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={"PYTHONPATH": ":".join([str(directory), *sys.path]), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def package(directory: Path, version: str, stock: str = STOCK) -> None:
    """Make a package that has what a version of vLLM has in its place."""
    place = directory / VLLM
    place.mkdir(parents=True)
    (directory / "vllm" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (directory / "vllm" / "distributed" / "__init__.py").touch()
    (place / "__init__.py").touch()
    (place / "all2all.py").write_text(textwrap.dedent(stock))


@pytest.mark.parametrize("version", ["0.26.0", "0.30.0+cpu", "0.99.0"])
@pytest.mark.parametrize("mode", ["fixed", "checked", "sentinel"])
def test_dispatcher_takes_the_place_of_those_with_the_same_methods(
    tmp_path: Path, version: str, mode: str
) -> None:
    package(tmp_path, version)

    done = run(tmp_path, PROGRAM, NCCLSCOPE_VLLM_DISPATCH=mode)

    assert (done.stdout, done.stderr) == ("PaddedAll2AllManager\n", "")


def test_each_switch_has_a_name_that_ray_passes_on(tmp_path: Path) -> None:
    package(tmp_path, "0.32.0")

    done = run(tmp_path, PROGRAM, NCCL_SCOPE_VLLM_DISPATCH="fixed")

    assert (done.stdout, done.stderr) == ("PaddedAll2AllManager\n", "")


def test_dispatcher_stays_without_the_variable(tmp_path: Path) -> None:
    package(tmp_path, "0.32.0")

    done = run(tmp_path, PROGRAM)

    assert (done.stdout, done.stderr) == ("AgRsAll2AllManager\n", "")


@pytest.mark.parametrize(
    ("version", "stock", "mode", "reason"),
    [
        (
            "0.99.0",
            STOCK.replace("def combine(self", "def combine(self, hidden_states, bias"),
            "fixed",
            "AgRsAll2AllManager.combine takes bias, which is new",
        ),
        ("0.32.0", STOCK.replace("_get_sizes", "_sizes"), "fixed", "has no _get_sizes"),
        ("0.32.0", STOCK, "always", "'always' is none of fixed, checked, sentinel"),
    ],
)
def test_what_is_not_known_is_refused_once(
    tmp_path: Path, version: str, stock: str, mode: str, reason: str
) -> None:
    package(tmp_path, version, stock)

    done = run(tmp_path, PROGRAM, NCCLSCOPE_VLLM_DISPATCH=mode)

    assert done.stdout == "AgRsAll2AllManager\n"
    assert done.stderr.count("\n") == 1
    assert reason in done.stderr


def test_cpu_workers_get_what_they_lack_on_request(tmp_path: Path) -> None:
    package(tmp_path, "0.99.0")
    (tmp_path / VLLM / "cpu_communicator.py").write_text("class CpuCommunicator: ...\n")
    program = """
        from ncclscope_patches.vllm.plugin import register
        register()
        from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
        print(hasattr(CpuCommunicator, "all_gatherv"))
    """

    assert run(tmp_path, program, NCCLSCOPE_VLLM_CPU_MOE="1").stdout == "True\n"
    assert run(tmp_path, program, NCCLSCOPE_VLLM_CPU_MOE="0").stdout == "False\n"
    assert run(tmp_path, program).stdout == "False\n"


def test_cpu_workers_of_other_classes_stay_as_they_are(tmp_path: Path) -> None:
    package(tmp_path, "0.99.0")
    (tmp_path / VLLM / "cpu_communicator.py").write_text("class Other: ...\n")
    program = """
        from ncclscope_patches.vllm.plugin import register
        register()
        import vllm.distributed.device_communicators.cpu_communicator
    """

    refused = run(tmp_path, program, NCCLSCOPE_VLLM_CPU_MOE="1")

    assert refused.returncode == 0
    assert refused.stderr.count("\n") == 1
    assert "has no effect in this process" in refused.stderr
