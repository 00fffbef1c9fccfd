"""What vLLM's Ray executors hand to their workers: `make test-vllm`.

test_vllm_ray.py starts such workers, and hands them some of the variables; here they are all tried.
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
