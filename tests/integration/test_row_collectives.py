"""Collectives with rows of their own for each rank, and the dispatcher that needs none, on gloo."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ncclscope import diagnose
from ncclscope.errors import DivergenceError
from ncclscope.model import Run, State
from tests.integration.c10d_ranks import calls, fields, join, main, run_ranks

WIDTH = 2
UNEVEN = [2, 0, 3]
EVEN = [2, 2, 2]


class Coordinator:
    """vLLM's group coordinator as a dispatcher uses it, on a torch group."""

    unique_name = "ep:0"

    def __init__(self, dist: Any) -> None:
        self.cpu_group = self.device_group = dist.group.WORLD
        self.ranks = list(range(dist.get_world_size()))
        self.world_size = len(self.ranks)
        self.rank_in_group = dist.get_rank()
        self.device_communicator = self

    def all_gather(self, tensor: Any, _dim: int) -> Any:
        import torch
        import torch.distributed as dist

        found = [torch.empty_like(tensor) for _ in self.ranks]
        dist.all_gather(found, tensor)
        return torch.cat(found)

    def reduce_scatter(self, tensor: Any, _dim: int) -> Any:
        import torch.distributed as dist

        output = tensor.new_empty((tensor.shape[0] // self.world_size, *tensor.shape[1:]))
        dist.reduce_scatter(output, list(tensor.chunk(self.world_size)))
        return output

    def all_gatherv(self, tensors: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
        from ncclscope_patches.vllm import cpu_moe as vllm_cpu_moe

        return vllm_cpu_moe._all_gatherv(self, tensors, dim, sizes)

    def reduce_scatterv(self, tensor: Any, dim: int = -1, sizes: list[int] | None = None) -> Any:
        from ncclscope_patches.vllm import cpu_moe as vllm_cpu_moe

        return vllm_cpu_moe._reduce_scatterv(self, tensor, dim, sizes)


class Stock:
    """What the replaced dispatcher must provide: its peers and their rows."""

    def __init__(self, group: Coordinator, sizes: Sequence[int]) -> None:
        self._group = group
        self.sizes = list(sizes)

    def _get_comm_group(self, is_sequence_parallel: bool) -> Coordinator:
        return self._group

    def _get_sizes(self, rows: int, group: Coordinator) -> list[int]:
        return self.sizes


def rows_of(rank: int, count: int) -> Any:
    import torch

    return torch.full((count, WIDTH), float(10**rank))


def exchange_rows(rank: int) -> None:
    import torch

    dist = join()
    from ncclscope_patches.probes import uneven

    group, ranks = dist.group.WORLD, range(len(UNEVEN))
    gathered = uneven.all_gatherv(group, ranks, rows_of(rank, UNEVEN[rank]), UNEVEN)
    assert gathered.tolist() == torch.cat([rows_of(r, UNEVEN[r]) for r in ranks]).tolist()

    given = torch.arange(float(sum(UNEVEN) * WIDTH)).reshape(-1, WIDTH) + 100 * rank
    before = given.clone()
    own = uneven.reduce_scatterv(group, ranks, given, UNEVEN)
    begin = sum(UNEVEN[:rank])
    expected = sum(before - 100 * rank + 100 * r for r in ranks)[begin : begin + UNEVEN[rank]]
    assert own.tolist() == expected.tolist()
    assert given.tolist() == before.tolist()
    with pytest.raises(ValueError, match="4 rows, not 5"):
        uneven.reduce_scatterv(group, ranks, given[:4], UNEVEN)


def dispatch_and_combine(rank: int) -> None:
    dist = join()
    from ncclscope_patches.vllm.dispatch_manager import make_manager

    group = Coordinator(dist)
    for mode in ("fixed", "checked"):
        for sizes in (UNEVEN, EVEN):
            manager = make_manager(Stock, mode)(group, sizes)
            hidden = rows_of(rank, sizes[rank])
            ids = hidden.long()
            gathered, weights, found, extra = manager.dispatch(
                hidden, hidden[:, :1] / 2, ids, False, extra_tensors=[hidden + 1]
            )
            every = [float(10**r) for r in range(len(sizes)) for _ in range(sizes[r])]
            assert gathered[:, 0].tolist() == every
            assert weights.tolist() == [[value / 2] for value in every]
            assert found[:, 1].tolist() == [int(value) for value in every]
            assert extra[0][:, 1].tolist() == [value + 1 for value in every]
            assert len(manager.dispatch_router_logits(hidden, hidden)) == 2
            combined = manager.combine(gathered)
            assert combined.tolist() == (len(sizes) * hidden).tolist()
            output = hidden.new_empty(hidden.shape)
            group.reduce_scatterv_into_output = (  # type: ignore[attr-defined]
                lambda rows, output, dim: output.copy_(group.reduce_scatter(rows, dim))
            )
            assert manager.combine_into_output(gathered, output) is output
            assert output.tolist() == combined.tolist()


def dispatch_with_sentinels(rank: int) -> None:
    import torch

    dist = join()
    from ncclscope_patches.vllm import dispatch_manager

    dispatch_manager._first_expert = lambda manager: 2 * rank  # type: ignore[assignment]
    group = Coordinator(dist)
    for sizes in (UNEVEN, EVEN):
        manager = dispatch_manager.make_manager(Stock, "sentinel")(group, sizes)
        hidden = rows_of(rank, sizes[rank])
        gathered, weights, ids, extra = manager.dispatch(
            hidden, hidden[:, :1] / 2, hidden.long(), False, extra_tensors=[hidden + 1]
        )
        every = [v for r, n in enumerate(sizes) for v in [*[10.0**r] * n, 0.0]]
        assert gathered[:, 0].tolist() == every
        assert weights[:, 0].tolist() == [value / 2 for value in every]
        chosen = [v for r, n in enumerate(sizes) for v in [*[10**r] * n, 2 * r]]
        assert ids[:, 1].tolist() == chosen
        assert extra[0][:, 1].tolist() == [value and value + 1 for value in every]
        logits = torch.zeros(sizes[rank], 6)
        _, routed = manager.dispatch_router_logits(hidden, logits)
        places = torch.tensor(sizes).cumsum(0) + torch.arange(len(sizes))
        assert routed[places].argmax(1).tolist() == [0, 2, 4]
        combined = manager.combine(gathered)
        assert combined.tolist() == (len(sizes) * hidden).tolist()
        output = hidden.new_empty(hidden.shape)
        assert manager.combine_into_output(gathered, output) is output
        assert output.tolist() == combined.tolist()


def disagree(rank: int) -> None:
    dist = join()
    from ncclscope_patches.vllm.dispatch_manager import make_manager

    sizes = [2, 2, 3] if rank == 1 else EVEN
    manager = make_manager(Stock, "checked")(Coordinator(dist), sizes)
    hidden = rows_of(rank, 2)
    with pytest.raises(DivergenceError) as raised:
        manager.dispatch(hidden, hidden, hidden)
    printed = str(raised.value)
    assert "ep:0" in printed
    assert "rank 1: dispatch of sizes 2,2,3," in printed
    assert "ranks 0 2: dispatch of sizes 2,2,2," in printed

    # AND so where all agree on the sizes, and one rank has other rows
    manager.sizes = EVEN
    hidden = rows_of(rank, 1 if rank == 2 else 2)
    with pytest.raises(DivergenceError, match=r"rank 2: dispatch of sizes 2,2,2, .* but 1 rows"):
        manager.dispatch(hidden, hidden, hidden)

    # AND so where one combines while the others dispatch
    hidden = rows_of(rank, 6 if rank == 0 else 2)
    with pytest.raises(DivergenceError, match="rank 0: combine of sizes"):
        manager.combine(hidden) if rank == 0 else manager.dispatch(hidden, hidden, hidden)


def run(rings: Path, function: str) -> Run:
    return run_ranks(__file__, function, rings, size=3)


@pytest.fixture
def rings(tmp_path: Path) -> Path:
    return tmp_path


def test_rows_of_each_rank_are_one_record(rings: Path) -> None:
    ranks = run(rings, "exchange_rows").ranks

    for number, rank in enumerate(ranks):
        gather, scatter, *_ = calls(rank)
        assert fields(gather, "op", "shape", "sizes") == (
            "all_gatherv",
            (UNEVEN[number], WIDTH),
            tuple(UNEVEN),
        )
        assert fields(scatter, "op", "redop", "shape", "sizes") == (
            "reduce_scatterv",
            "sum",
            (sum(UNEVEN), WIDTH),
            tuple(UNEVEN),
        )
        assert gather.state is scatter.state is State.COMPLETED
        assert gather.site is not None
        assert "exchange_rows" in gather.site


def test_dispatcher_posts_the_same_whatever_the_sizes_are(rings: Path) -> None:
    found = run(rings, "dispatch_and_combine")

    assert diagnose(found).status == "ok"
    for rank in found.ranks:
        made = calls(rank)
        assert {call.op for call in made} == {"all_gather", "reduce_scatter"}
        one, other = made[:8], made[8:16]  # uneven, even
        assert [call.op for call in one] == [call.op for call in other]
        assert {call.shape[0] for call in one if call.op == "all_gather" and call.shape} == {3}


def test_sentinels_give_every_rank_a_row_to_send(rings: Path) -> None:
    found = run(rings, "dispatch_with_sentinels")

    assert diagnose(found).status == "ok"
    for rank in found.ranks:
        sizes = {
            call.sizes for call in calls(rank) if call.op in ("all_gatherv", "reduce_scatterv")
        }
        assert sizes == {tuple(size + 1 for size in UNEVEN)}


def test_ranks_that_disagree_all_raise_with_what_each_had(rings: Path) -> None:
    found = run(rings, "disagree")

    # Only the checks were posted, three of two exchanges each, and all ranks made them.
    assert diagnose(found).status == "ok"
    assert [len(calls(rank)) for rank in found.ranks] == [6, 6, 6]


if __name__ == "__main__":
    main(globals())
