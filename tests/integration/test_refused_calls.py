"""Calls that torch refuses before it sends them, where C++ or an operator posts them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from ncclscope.engine.verdict import diagnose
from tests.integration.c10d_ranks import join, main, run_ranks


def functional(rank: int) -> None:
    import torch
    from torch.distributed import _functional_collectives as collectives

    dist = join()
    dist.barrier()
    for _ in range(2 * rank):
        with contextlib.suppress(RuntimeError):
            collectives.broadcast(torch.ones(6), 7, dist.group.WORLD)
    for _ in range(2):
        collectives.wait_tensor(collectives.all_reduce(torch.ones(4), "sum", dist.group.WORLD))
    dist.destroy_process_group()


def from_cpp(rank: int) -> None:
    import torch

    from ncclscope_patches.probes.from_cpp.dispatcher import record_from_now

    dist = join()
    dist.barrier()
    record_from_now("test", "the test posts from C++", dist.group.WORLD)
    for _ in range(2 * rank):
        one = torch.ones(3)
        with contextlib.suppress(RuntimeError):  # a list for one rank, not for two
            torch.ops.c10d.allgather_([[one]], [one], dist.group.WORLD.boxed(), False, -1)
    for _ in range(2):
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


@pytest.mark.parametrize("job", ["functional", "from_cpp"])
def test_a_refused_call_does_not_count(rings: Path, job: str) -> None:
    run = run_ranks(__file__, job, rings)

    ops = [
        [call.op for call in log.span(1, log.calls + 1)]
        for rank in run.ranks
        for log in rank.logs.values()
        if log.communicator.label == "world"
    ]
    assert ops == 2 * [["barrier", "all_reduce", "all_reduce"]]
    assert diagnose(run).status == "ok"


if __name__ == "__main__":
    main(globals())
