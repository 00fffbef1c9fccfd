"""Process groups as communicators: their keys and names, their beginning and their end."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from ncclscope import open_run
from ncclscope.model import Run
from tests.integration.c10d_ranks import (
    TORCH,
    calls,
    fields,
    join,
    main,
    messages,
    run_ranks,
    start,
)

pytest.importorskip("torch")


def ones(*shape: int) -> Any:
    import torch

    return torch.ones(*shape)


def run_alone(function: str, rings: Path, **environment: str) -> Run:
    """Run a function of this module in one process, as rank 0 of two by torch's fake backend."""
    process = start(__file__, function, {"NCCLSCOPE_DIR": str(rings), **environment})
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    return open_run(rings)


def join_fake() -> Any:
    import torch.distributed as dist
    from torch.testing._internal.distributed import fake_pg

    dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=2)
    return dist


def post_nothing(rank: int) -> None:
    join()


def test_rank_that_never_posts_has_left_a_ring(rings: Path) -> None:
    run = run_ranks(__file__, "post_nothing", rings)

    assert [(rank.rank, rank.world_size) for rank in run.ranks] == [(0, 2), (1, 2)]
    (world,) = run.communicators.values()
    assert (world.label, world.ranks, world.backend) == ("world", (0, 1), "gloo")


def make_groups(rank: int) -> None:
    dist = join()
    everybody = dist.new_group([0, 1])
    alone = [dist.new_group([0]), dist.new_group([1])]
    named = dist.new_group([0, 1], group_desc="mesh_dp")
    reversed_ranks = dist.new_group([1, 0], use_local_synchronization=True)
    dist.all_reduce(ones(1), group=everybody)
    dist.all_reduce(ones(1), group=alone[rank])
    dist.all_reduce(ones(1), group=named)
    dist.broadcast(ones(1), src=1, group=reversed_ranks)
    dist.destroy_process_group()


def test_members_declare_their_groups_and_nobody_else(rings: Path) -> None:
    run = run_ranks(__file__, "make_groups", rings)

    first, second = run.ranks
    assert first.logs.keys() == second.logs.keys()
    labels = sorted(c.label for c in run.communicators.values() if not c.creates_groups)
    # The groups of one are numbered 2 and 3, and are not there: they wait for nobody.
    assert [label for label in labels if not label.startswith("pg-")] == ["mesh_dp", "pg1", "world"]
    (hashed,) = [label for label in labels if label.startswith("pg-")]
    for rank in run.ranks:
        assert [fields(one, "op", "root") for one in calls(rank, hashed)] == [
            ("broadcast", rank_in(run, hashed, 1))
        ]
        assert [len(calls(rank, label)) for label in ("mesh_dp", "pg1", "world")] == [1, 1, 0]
    made = {comm.label: comm.created_at or "" for comm in run.communicators.values()}
    lines = Path(__file__).read_text().splitlines()
    for label, text in (("pg1", "everybody = "), ("mesh_dp", "named = ")):
        (line,) = [n for n, one in enumerate(lines, 1) if one.startswith(f"    {text}dist.new_")]
        assert made[label] == f"{__file__}:{line} make_groups"
    assert "/c10d_ranks.py:" in made["world"]
    assert made["world"].endswith(" join")
    assert not any("unseen" in rank.details for rank in run.ranks)


def rank_in(run: Run, label: str, global_rank: int) -> int:
    (comm,) = [comm for comm in run.communicators.values() if comm.label == label]
    return comm.ranks.index(global_rank)


def come_late(rank: int) -> None:
    from ncclscope_patches import registry

    registry.revert_all()
    dist = join()
    dist.all_reduce(ones(1))
    registry._installed.clear()
    registry.apply_all()
    dist.all_reduce(ones(2))


def test_a_probe_that_comes_late_says_so(rings: Path) -> None:
    run = run_ranks(__file__, "come_late", rings)

    for rank in run.ranks:
        assert [one.shape for one in calls(rank)] == [(2,)]
        (entry,) = rank.details["unseen"]
        assert (entry["kind"], entry["comms"]) == ("late", list(rank.logs))


def make_and_drop_groups(rank: int) -> None:
    dist = join()
    dropped = []
    for size in range(1, 9):
        group = dist.new_group([0, 1])
        dist.all_reduce(ones(size), group=group)
        dropped.append(weakref.ref(group))
        dist.destroy_process_group(group)
        del group
        gc.collect()
    assert [reference() for reference in dropped] == [None] * 8
    dist.destroy_process_group()


def test_groups_are_not_kept_alive_nor_confused(rings: Path) -> None:
    run = run_ranks(__file__, "make_and_drop_groups", rings)

    for rank in run.ranks:
        seen = {number: [one.shape for one in calls(rank, f"pg{number}")] for number in range(1, 9)}
        assert seen == {number: [(number,)] for number in range(1, 9)}


def join_twice(rank: int) -> None:
    dist = join()
    dist.all_reduce(ones(1))
    dist.barrier()
    dist.destroy_process_group()
    os.environ["MEETING_POINT"] += "-2"
    dist = join()
    dist.all_reduce(ones(2))
    dist.destroy_process_group()


def test_world_made_again_is_another_communicator(rings: Path) -> None:
    run = run_ranks(__file__, "join_twice", rings)

    for rank in run.ranks:
        ops = [[one.op for one in log.span(1, 9)] for log in rank.logs.values()]
        assert ops == [["all_reduce", "barrier"], ["all_reduce"]]
    assert len(run.communicators) == 2


def post_groups(rank: int) -> None:
    dist = join_fake()
    group = dist.group.WORLD
    device = ones(1).device
    dist.all_reduce(ones(1))
    with dist._coalescing_manager(device=device):
        group.allreduce([ones(2)])
        group.allreduce([ones(3)])
    batch = [dist.P2POp(dist.isend, ones(4), 1), dist.P2POp(dist.irecv, ones(4), 1)]
    group._start_coalescing(device)
    for message in batch:
        message.op(message.tensor, group=group, group_dst=1) if (
            message.op is dist.isend
        ) else message.op(message.tensor, group=group, group_src=1)
    group._end_coalescing(device)
    dist.all_reduce(ones(5))


@pytest.mark.skipif(TORCH < (2, 7), reason="the fake group has no coalescing")
def test_calls_between_start_and_end_of_coalescing_share_a_group_number(rings: Path) -> None:
    run = run_alone("post_groups", rings)

    (rank,) = run.ranks
    seen = [fields(one, "shape", "group") for one in (*calls(rank), *messages(rank))]
    groups = dict(seen)
    assert len(seen) == 6
    assert groups[(1,)] is groups[(5,)] is None
    assert groups[(2,)] == groups[(3,)] is not None
    assert [group for shape, group in seen if shape == (4,)] == [groups[(2,)] + 1] * 2


def fork_with_a_group(rank: int) -> None:
    dist = join_fake()
    dist.all_reduce(ones(1))
    child = os.fork()
    dist.all_reduce(ones(2))
    if child == 0:
        dist.all_reduce(ones(3))
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0
    dist.all_reduce(ones(4))


def test_forked_child_writes_a_ring_of_its_own(rings: Path) -> None:
    run_alone("fork_with_a_group", rings)

    # Both are rank 0 of the same job as far as they know: each is read by itself.
    seen = []
    for path in rings.glob("*.ring"):
        (rank,) = open_run(path).ranks or open_run(path).others
        seen.append([one.shape for one in calls(rank)])
    assert sorted(seen) == [[(1,), (2,), (4,)], [(2,), (3,)]]


def import_first(rank: int) -> None:
    from torch.distributed import all_reduce, init_process_group, new_group
    from torch.testing._internal.distributed import fake_pg

    from ncclscope_patches import registry

    os.environ["NCCLSCOPE_DIR"] = os.environ.pop("LATER")
    registry.apply_all()
    init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=2)
    all_reduce(ones(2), group=new_group([0, 1]))


def test_names_that_were_imported_before_are_traced_too(rings: Path) -> None:
    process = start(
        __file__, "import_first", {"LATER": str(rings), "NCCLSCOPE_DIR": ""}, interpreter=True
    )
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output

    (rank,) = open_run(rings).ranks
    assert [one.shape for one in calls(rank, "pg1")] == [(2,)]
    assert rank.world_size == 2


def trace_nothing(rank: int) -> None:
    dist = join_fake()
    dist.all_reduce(ones(1))
    import torch.distributed.distributed_c10d as c10d

    from ncclscope_patches import registry

    assert not registry._installed
    for function in (
        dist.ProcessGroup.allreduce,
        dist.Work.wait,
        c10d._new_process_group_helper,
        c10d.torch.ops._c10d_functional.all_reduce._op,
    ):
        assert not hasattr(function, "__wrapped__")


@pytest.mark.parametrize("switch", ["unset", pytest.param("off", marks=pytest.mark.slow)])
def test_nothing_is_patched_when_tracing_is_off(tmp_path: Path, switch: str) -> None:
    environment = {"NCCLSCOPE_DIR": "" if switch == "unset" else str(tmp_path)}
    if switch == "off":
        environment["NCCLSCOPE"] = "0"

    process = start(__file__, "trace_nothing", environment, interpreter=True)
    output, _ = process.communicate(timeout=100)

    assert process.returncode == 0, output
    assert list(tmp_path.iterdir()) == []


def compile_collectives(rank: int) -> None:
    import torch
    import torch.distributed._functional_collectives as functional

    dist = join_fake()
    if device := os.environ.get("DEFAULT_DEVICE"):  # a mode that each operator goes through
        torch.set_default_device(device)

    def whole(tensor: Any) -> Any:
        dist.all_reduce(tensor)
        return functional.all_reduce(tensor * 2, "max", dist.group.WORLD) + 1

    def in_pieces(tensor: Any) -> Any:
        dist.all_reduce(tensor, async_op=True).wait()
        return tensor + 1

    compiled = torch.compile(whole, fullgraph=True, backend=os.environ["BACKEND"])
    compiled(ones(3))
    compiled(ones(3))
    torch.compile(in_pieces, backend="eager")(ones(4))
    functional.all_reduce(ones(5), "min", dist.group.WORLD) + 1


@pytest.mark.parametrize(
    ("backend", "device"),
    [
        ("aot_eager", ""),
        ("aot_eager", "cpu"),
        pytest.param("inductor", "", marks=pytest.mark.slow),
    ],
)
def test_compiled_collectives_are_recorded_once_for_each_run(
    rings: Path, backend: str, device: str
) -> None:
    run = run_alone("compile_collectives", rings, BACKEND=backend, DEFAULT_DEVICE=device)

    (rank,) = run.ranks
    assert [fields(one, "op", "shape", "redop") for one in calls(rank)] == [
        ("all_reduce", (3,), "sum"),
        ("all_reduce", (3,), "max"),
        ("all_reduce", (3,), "sum"),
        ("all_reduce", (3,), "max"),
        ("all_reduce", (4,), "sum"),
        ("all_reduce", (5,), "min"),
    ]


if __name__ == "__main__":
    main(globals())
