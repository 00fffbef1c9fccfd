"""The test of routers at the start of a worker: what is captured has to be what is returned."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ncclscope.errors import UsageError
from ncclscope_patches.vllm.routing.self_test import check_routers

EXPERTS, TOP_K, HIDDEN = 6, 2, 8


class Router:
    """Chooses the largest logits, as vLLM's do, and captures what it chose."""

    eplb_state: Any = None
    global_num_experts = EXPERTS

    def __init__(self) -> None:
        self.capture_fn: Any = None
        self.calls = 0

    def set_capture_fn(self, function: Any) -> None:
        self.capture_fn = function

    def select_experts(self, hidden: torch.Tensor, logits: torch.Tensor) -> tuple[Any, Any]:
        self.calls += 1
        assert hidden.shape == (len(logits), HIDDEN)
        weights, ids = logits.topk(TOP_K)
        if self.capture_fn is not None:
            self.captured(ids)
        return weights, ids.to(torch.int32)

    def captured(self, ids: torch.Tensor) -> None:
        self.capture_fn(ids)


class CapturesOthers(Router):
    def captured(self, ids: torch.Tensor) -> None:
        self.capture_fn(ids.flip(1))


class CapturesNothing(Router):
    def captured(self, ids: torch.Tensor) -> None:
        pass


class NeedsMore(Router):
    def select_experts(self, hidden: torch.Tensor, logits: torch.Tensor, *ids: Any) -> Any:
        raise TypeError("input_ids")


class Balanced(CapturesOthers):
    eplb_state = object()


def layer(router: Router) -> Any:
    return SimpleNamespace(router=router, parameters=lambda: iter([torch.zeros(1)]))


def check(*routers: Router) -> None:
    found = [(f"layers.{place}", layer(router)) for place, router in enumerate(routers)]
    check_routers(found, HIDDEN, torch.bfloat16)


def test_one_router_of_each_kind_is_called() -> None:
    first, second, balanced = Router(), Router(), Balanced()
    first.set_capture_fn(print)

    check(first, second, balanced)

    assert (first.calls, second.calls, balanced.calls) == (1, 0, 0)
    assert first.capture_fn is print


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (CapturesOthers, "CapturesOthers of layers.1: it captured other experts than it returned"),
        (CapturesNothing, "it captured 0 times in one call"),
        (NeedsMore, r"it cannot be called: TypeError\('input_ids'\)"),
    ],
)
def test_a_router_that_cannot_be_captured_is_refused(kind: type[Router], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        check(Router(), kind())


def test_the_random_numbers_of_the_job_stay_as_they_were() -> None:
    before = torch.get_rng_state()
    check(Router())
    assert torch.equal(torch.get_rng_state(), before)
