"""Routed experts in vLLM's second model runner on one GPU: `pytest -m gpu`.

Needs a CUDA build of vLLM in the environment, and no network: the weights are random.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.gpu import second_runner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(580),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    stages = ("own", "second", "workers", "load", "eagle", "asked")
    stages += second_runner.PAIR if torch.cuda.device_count() > 1 else ()
    found = second_runner.main(tmp_path_factory.mktemp("second"), stages)
    print(json.dumps(found, indent=2))
    assert not any(found["statuses"].values()), found
    return found


@pytest.mark.parametrize(
    "stages",
    [
        "own against second",
        "second against workers",
        pytest.param(
            "own2 against second2",
            marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU"),
        ),
    ],
)
def test_the_routing_equals_that_of_vllms_own_way(report: dict[str, Any], stages: str) -> None:
    found = report[stages]

    assert found["tokens"] > 1000
    assert found["same tokens"] == found["same routing"] == found["requests"]


@pytest.mark.parametrize("stage", ["load", "eagle"])
def test_each_token_has_what_its_routers_chose(report: dict[str, Any], stage: str) -> None:
    found = report[stage]

    assert found["preempted"]
    assert found["graphs"]
    assert bool(found["drafts"]) == (stage == "eagle")
    for name, counts in found.items():
        if "recorded" in name:
            assert counts["cached"]
            assert counts["true"] == counts["tokens"], (name, counts)


def test_only_who_asks_is_answered_and_nothing_waits(report: dict[str, Any]) -> None:
    found = report["asked"]

    assert found["answered"]
    assert not found["missing"]
    assert not found["captured steps where nobody asks"]
