"""What a ring says of the phases of DistributedDataParallel."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclscope import open_run
from ncclscope.errors import NcclscopeError
from ncclscope.model import Activity, Rank, Run
from tests.conftest import SHARED_MEMORY
from tests.integration.c10d_ranks import join, main, run_ranks

pytest.importorskip("torch")

PATIENCE = 120.0
"""Seconds; a module's constructor imports Dynamo."""


def replica(**options: Any) -> Any:
    """Make a small module with a buffer on the group of all ranks."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    layers = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)
    return DistributedDataParallel(torch.nn.Sequential(*layers), **options)


def inputs() -> Any:
    import torch

    return torch.ones(3, 4)


def other_in(activity: str, rank: int) -> None:
    """Wait until the other rank's ring says that it is in an activity."""
    deadline = time.monotonic() + PATIENCE
    while (found := seen(activity, 1 - rank)) is None or found.until_ns is not None:
        assert time.monotonic() < deadline, f"rank {1 - rank} never was in {activity}"
        time.sleep(0.02)


def seen(activity: str, rank: int) -> Activity | None:
    """Return the newest of a rank's activities of that name, from its ring."""
    try:
        run = open_run(os.environ["NCCLSCOPE_DIR"])
    except NcclscopeError:  # it is being made
        return None
    ring = run.by_rank.get(rank)
    return None if ring is None else ring.activities.get(activity)


class ImportedOutside:
    """Fails where torch's compiler is imported in the constructor's activity: nobody waits then."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def find_spec(self, name: str, *_where: object) -> None:
        """Check the import of one module, and leave it to others."""
        if name == "torch._dynamo.utils":
            found = seen("ddp_init", self._rank)
            assert found is None or found.until_ns is not None


def train(rank: int) -> None:
    """Take one step, rank 1 always last; it goes on only when rank 0 is seen to wait."""
    assert "torch._dynamo.utils" not in sys.modules
    sys.meta_path.insert(0, ImportedOutside(rank))  # type: ignore[arg-type]
    dist = join()
    pair = dist.new_group([0, 1])
    if rank == 1:
        other_in("ddp_init", rank)
    model = replica(process_group=pair)
    loss = model(inputs()).sum()
    if rank == 1:
        other_in("ddp_backward", rank)
    loss.backward()
    if rank == 0:  # buffers come from rank 0, for which the other waits
        other_in("ddp_forward", rank)
    model(inputs())


def have_trouble(rank: int) -> None:
    """Raise within a backward, run one within another, join without inputs, and let go."""
    import torch
    from torch.distributed.algorithms.join import Join

    dist = join()
    alone = [dist.new_group([one]) for one in (0, 1)][rank]
    replica(process_group=alone)(inputs()).sum().backward()
    assert seen("ddp_backward", rank) is None, "it waits for nobody"

    model = replica()

    def refuse(_gradient: Any) -> None:
        raise RuntimeError("asked for by the test")

    failing = torch.ones(1, requires_grad=True)
    failing.register_hook(refuse)  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="asked for"):
        failing.sum().backward()  # type: ignore[no-untyped-call]
    after = seen("ddp_backward", rank)
    assert after is not None
    assert after.until_ns is not None

    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            with torch.enable_grad():
                torch.ones(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
            within = seen("ddp_backward", rank)
            assert within is not None
            assert (within.count, within.until_ns) == (2, None)
            return gradient

    Nested.apply(model(inputs())).sum().backward()  # type: ignore[no-untyped-call]
    with Join([model]):
        for _ in range(1 + rank):
            model(inputs()).sum().backward()
    before = seen("ddp_backward", rank)
    del model
    gc.collect()
    torch.ones(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
    assert seen("ddp_backward", rank) == before, "there is no module any more"


def traced(function: str) -> Iterator[Run]:
    folder = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    rings = Path(tempfile.mkdtemp(prefix="ncclscope-test-", dir=folder))
    yield run_ranks(__file__, function, rings, timeout=3 * PATIENCE)
    shutil.rmtree(rings)


@pytest.fixture(scope="module")
def trained() -> Iterator[Run]:
    yield from traced("train")


@pytest.fixture(scope="module")
def troubled() -> Iterator[Run]:
    yield from traced("have_trouble")


def ended(rank: Rank, activity: str) -> Activity:
    """Return an activity that has ended."""
    found = rank.activities[activity]
    assert found.until_ns is not None
    assert found.until_ns >= found.since_ns
    return found


def test_its_phases_are_noted_with_the_line_of_the_program(trained: Run) -> None:
    for rank in trained.ranks:
        functions = {
            "ddp_init": "replica",
            "ddp_forward": "train",
            "ddp_backward": "train",
        }
        for activity, function in functions.items():
            detail = ended(rank, activity).detail
            assert detail is not None
            assert "test_c10d_ddp.py:" in detail
            assert detail.endswith(f" {function}")
        assert ended(rank, "ddp_backward").count == 1


def test_backward_ends_where_it_raises_and_not_where_a_nested_one_does(troubled: Run) -> None:
    assert [ended(rank, "ddp_backward").count for rank in troubled.ranks] == [3, 4]


def test_a_rank_without_inputs_says_that_it_joins_in(troubled: Run) -> None:
    assert ended(troubled.ranks[0], "ddp_join").count >= 1


if __name__ == "__main__":
    main(globals())
