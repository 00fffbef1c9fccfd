"""The dispatcher's ranks stay together, whatever the router does."""

import os

import pytest
import torch
import torch.distributed as dist
from dispatcher import HIDDEN, Dispatcher
from hypothesis import Phase, given, settings

from ncclscope.parity.routing import RoutingPattern, routing_patterns

RANKS = 4
BUGGY = os.environ.get("DISPATCHER") == "buggy"


def run_pattern(rank: int, pattern: RoutingPattern) -> bool:
    """One step on one rank; returns whether every token came back as its expert left it."""
    dispatcher = Dispatcher(pattern.experts, skip_when_idle=BUGGY)
    experts = pattern.routes(rank)
    tokens = torch.full((len(experts), HIDDEN), float(rank))
    returned = dispatcher.step(tokens, experts)
    dist.barrier()
    return torch.equal(returned, tokens * 2)


@pytest.mark.collective_parity(ranks=RANKS, baseline="step.lock")
def test_an_ordinary_step(run_ranks):
    everywhere = RoutingPattern("ordinary", experts=8, routed=((0, 2, 4, 6), (1, 3, 5, 7)) * 2)

    assert all(run_ranks(run_pattern, everywhere))


@pytest.mark.collective_parity(ranks=RANKS, stall_after=1)
@settings(deadline=None, max_examples=20, phases=[Phase.generate], derandomize=True)
@given(routing_patterns(ranks=RANKS))
def test_any_routing(run_ranks, pattern):
    assert all(run_ranks(run_pattern, pattern))
