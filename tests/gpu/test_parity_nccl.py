"""Functions as ranks over NCCL: each in a new interpreter, on a GPU of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclscope import diagnose, open_run
from ncclscope.launch.processes import run_ranks

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("two_gpus")]


def reduce(rank: int, counts: list[int]) -> float:
    import torch
    import torch.distributed as dist

    tensor = torch.ones(4, device="cuda")
    for _ in range(counts[rank]):
        dist.all_reduce(tensor)
    # Where ranks disagree, reading the result would wait for ever.
    return tensor[0].item() if len(set(counts)) == 1 else 0.0


def test_ranks_that_agree(rings: Path) -> None:
    outcome = run_ranks(reduce, [3, 3], ranks=2, rings=rings, backend="nccl")

    assert (outcome.ending, outcome.results) == ("finished", [8.0, 8.0])
    assert diagnose(open_run(rings)).status == "ok"


def test_a_call_that_was_posted_and_cannot_happen_is_a_hang(rings: Path) -> None:
    outcome = run_ranks(reduce, [4, 3], ranks=2, rings=rings, backend="nccl", stall_after=3.0)

    assert (outcome.ending, outcome.waiting) == ("stalled", [0])
    cause = diagnose(open_run(rings), stall_seconds=3.0).cause
    assert cause is not None
    assert (cause.diverging_ranks, cause.candidate_ranks, cause.seq) == ((), (0, 1), 4)
