"""What vLLM's Ray executors hand to their workers: `make test-vllm`.

vLLM's CPU build does not start workers with Ray, so that its own choice of variables is asked: its
platform names no kind of Ray resource, and both the executor and its workers refuse such a platform
(0.32.0 and 0.33.0: "current platform cpu does not support ray").
"""

from __future__ import annotations

import re

import pytest

pytest.importorskip("vllm")

from vllm.platforms.cpu import CpuPlatform
from vllm.ray.ray_env import get_env_vars_to_copy

from ncclscope import settings
from tests.integration.c10d_ranks import ROOT

pytestmark = pytest.mark.vllm

NAMES = sorted(
    set(
        re.findall(
            r"\bNCCLSCOPE_([A-Z_]+)\b",
            "".join(path.read_text() for path in (ROOT / "docs").glob("*.md")),
        )
    )
)
"""Of all variables that the documentation sets."""


def test_ray_refuses_a_platform_without_a_resource() -> None:
    assert not CpuPlatform.ray_device_key


def test_the_documentation_names_the_variables_of_a_job() -> None:
    assert {"DIR", "VLLM_DISPATCH", "VLLM_ROUTED_EXPERTS"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_variable_arrives_under_its_other_name_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(f"NCCLSCOPE_{name}", raising=False)
    monkeypatch.setenv(f"NCCL_SCOPE_{name}", "value")
    monkeypatch.setenv("NCCLSCOPE_OTHER", "value")

    handed = get_env_vars_to_copy()

    assert f"NCCL_SCOPE_{name}" in handed
    assert "NCCLSCOPE_OTHER" not in handed, "then the synonyms are not needed any more"
    assert settings.variable(name) == "value"


def test_vllms_cpu_build_has_no_device_for_ray() -> None:
    """Where it has one, TP=2 with Ray on the CPU can be part of these tests."""
    assert CpuPlatform.ray_device_key == ""
