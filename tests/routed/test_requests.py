"""Who gets routed experts, and where nobody can."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts import (
    Deployment,
    RoutingRequest,
    RoutingShape,
    refuse_unsupported,
)
from ncclscope_patches.routed_experts.requests import misspelt


@pytest.mark.parametrize("value", [True, 1, 1.0, "true", "True", "1"])
def test_a_request_opts_in(value: Any) -> None:
    # vLLM's server makes 1 of JSON's true.
    assert RoutingRequest.parse({"return_routed_experts": value}).wanted


@pytest.mark.parametrize(
    "args",
    [
        None,
        {},
        {"other": True},
        *[{"return_routed_experts": no} for no in (False, 0, "false", "0")],
    ],
)
def test_any_other_request_does_not(args: dict[str, Any] | None) -> None:
    assert RoutingRequest.parse(args) == RoutingRequest(False, "npy")


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("return_routed_expert", "return_routed_experts"),
        ("routed_expert_encoding", "routed_experts_encoding"),
        ("returned_routed_experts", "return_routed_experts"),
        ("return_routed_experts", ""),
        ("kv_transfer_params", ""),
        ("session_id", ""),
    ],
)
def test_a_key_that_is_almost_right_is_recognised(key: str, known: str) -> None:
    assert misspelt(key) == known


@pytest.mark.parametrize("value", [2, -1, "yes", "", None, [True], 0.5, float("nan"), {}])
def test_what_means_nothing_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"return_routed_experts is .*; say true or false"):
        RoutingRequest.parse({"return_routed_experts": value})


def test_a_request_chooses_an_encoding() -> None:
    args = {"return_routed_experts": 1, "routed_experts_encoding": "compact"}
    assert RoutingRequest.parse(args) == RoutingRequest(True, "compact")
    for wrong in ("pickle", 3, ["npy"]):
        with pytest.raises(UsageError, match="choose one of npy, compact"):
            RoutingRequest.parse({"routed_experts_encoding": wrong})


def test_a_deployment_that_can() -> None:
    refuse_unsupported(Deployment(experts=128))


@pytest.mark.parametrize(
    ("deployment", "reason"),
    [
        (Deployment(experts=0), "the model has no experts"),
        (Deployment(8, generates=False), "the model does not generate text"),
        (Deployment(8, pipeline_parallel=4), "with 4 pipeline stages no rank sees the routing"),
        (Deployment(8, context_parallel=2), "with context parallelism no rank sees all tokens"),
        (Deployment(8, kv_connector="NixlConnector"), "through NixlConnector are routed elsewhere"),
        (Deployment(8, kv_offload=True), "KV blocks that were offloaded"),
        (Deployment(8, hidden_routing=("layers.3",)), "kernel of layers.3 does not expose"),
    ],
)
def test_a_deployment_that_cannot(deployment: Deployment, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        refuse_unsupported(deployment)
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)


def test_all_reasons_are_given_at_once() -> None:
    with pytest.raises(UsageError, match=r"2 pipeline stages.*; .*offloaded"):
        refuse_unsupported(Deployment(8, pipeline_parallel=2, kv_offload=True))


@pytest.mark.parametrize(
    ("experts", "dtype"),
    [
        (1, "uint8"),
        (256, "uint8"),
        (257, "uint16"),
        (1 << 16, "uint16"),
        ((1 << 16) + 1, "int32"),
        (1 << 31, "int32"),
    ],
)
def test_the_narrowest_type_that_holds_all_experts(experts: int, dtype: str) -> None:
    assert RoutingShape(1, 1, experts).dtype.name == dtype


@given(experts=st.integers(1, 1 << 31))
def test_no_expert_is_beyond_the_type(experts: int) -> None:
    import numpy as np

    assert np.iinfo(RoutingShape(2, 1, experts).dtype).max >= experts - 1


@pytest.mark.parametrize(
    "shape", [(0, 1, 8), (1, 0, 8), (1, 9, 8), (1, 1, 0), (1, 1, (1 << 31) + 1)]
)
def test_models_that_cannot_be(shape: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError):
        RoutingShape(*shape)


def test_clients_need_no_torch() -> None:
    source = (
        "import sys, ncclscope_patches.routed_experts\n"
        "assert not {'torch', 'vllm', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)
