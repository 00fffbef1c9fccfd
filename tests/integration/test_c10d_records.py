"""Every way to post a collective through torch.distributed, and what is recorded of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclscope import diagnose
from ncclscope.model import Call, Run, State
from tests.integration.c10d_ranks import TORCH, calls, join, main, messages, run_ranks

pytest.importorskip("torch")

Fields = dict[str, Any]


def call(op: str, *shape: int, **other: Any) -> Fields:
    """Fields of a float32 call that has completed, by default."""
    return {"op": op, "shape": shape, "dtype": "float32", "state": State.COMPLETED} | other


def several(op: str, numel: int, **other: Any) -> Fields:
    """Fields of a call that concerns several tensors."""
    return call(op, numel=numel, **other) | {"shape": None}


def ones(*shape: int) -> Any:
    import torch

    return torch.ones(*shape)


# What each rank posts, and what has to be recorded of it: the same on both ranks, or a
# list for each rank.
Case = tuple[str, Callable[[Any, int], Any], list[Fields] | tuple[list[Fields], list[Fields]]]

BARRIER = {"op": "barrier", "shape": None, "dtype": None, "state": State.COMPLETED}

CASES: list[Case] = [
    (
        "all_reduce",
        lambda dist, rank: dist.all_reduce(ones(4, 2)),
        [call("all_reduce", 4, 2, redop="sum", numel=8, root=None, sizes=None)],
    ),
    (
        "all_reduce of integers by maximum",
        lambda dist, rank: dist.all_reduce(ones(3).long(), op=dist.ReduceOp.MAX),
        [call("all_reduce", 3, dtype="int64", redop="max")],
    ),
    (
        "all_reduce by a ReduceOp object",
        lambda dist, rank: dist.all_reduce(ones(3), op=dist.ReduceOp(dist.ReduceOp.PRODUCT)),
        [call("all_reduce", 3, redop="product")],
    ),
    (
        "all_reduce without dimensions",
        lambda dist, rank: dist.all_reduce(ones(1).sum()),
        [call("all_reduce", redop="sum", numel=1)],
    ),
    (
        "all_reduce by the method, without options",
        lambda dist, rank: dist.group.WORLD.allreduce([ones(6)]).wait(),
        [call("all_reduce", 6, redop="sum")],
    ),
    (
        "all_reduce by the method, of a tensor",
        lambda dist, rank: dist.group.WORLD.allreduce(ones(6), op=dist.ReduceOp.MIN).wait(),
        [call("all_reduce", 6, redop="min")],
    ),
    (
        "reduce",
        lambda dist, rank: dist.reduce(ones(2, 2), dst=1, op=dist.ReduceOp.MIN),
        [call("reduce", 2, 2, redop="min", root=1)],
    ),
    (
        "broadcast",
        lambda dist, rank: dist.broadcast(ones(5), src=1),
        [call("broadcast", 5, redop=None, root=1)],
    ),
    (
        "broadcast by the method, with a root",
        lambda dist, rank: dist.group.WORLD.broadcast(ones(5), root=1).wait(),
        [call("broadcast", 5, root=1)],
    ),
    (
        "all_gather",
        lambda dist, rank: dist.all_gather([ones(2, 3), ones(2, 3)], ones(2, 3)),
        [call("all_gather", 2, 3, sizes=None)],
    ),
    (
        "all_gather_into_tensor",
        lambda dist, rank: dist.all_gather_into_tensor(ones(4, 3), ones(2, 3)),
        [call("all_gather", 2, 3)],
    ),
    (
        "gather",
        lambda dist, rank: dist.gather(ones(7), [ones(7), ones(7)] if rank else None, dst=1),
        [call("gather", 7, root=1)],
    ),
    (
        "scatter",
        lambda dist, rank: dist.scatter(ones(3), None if rank else [ones(3), ones(3)], src=0),
        [call("scatter", 3, root=0, out_shape=(3,))],
    ),
    (
        "reduce_scatter",
        lambda dist, rank: dist.reduce_scatter(ones(2, 2), [ones(2, 2), ones(2, 2)]),
        [call("reduce_scatter", 4, 2, redop="sum", sizes=None)],
    ),
    (
        "reduce_scatter_tensor",
        lambda dist, rank: dist.reduce_scatter_tensor(ones(2, 2), ones(4, 2), op=dist.ReduceOp.MAX),
        [call("reduce_scatter", 4, 2, redop="max")],
    ),
    (
        "all_to_all_single",
        lambda dist, rank: dist.all_to_all_single(ones(4, 2), ones(4, 2)),
        [call("all_to_all", 4, 2, sizes=None)],
    ),
    (
        "all_to_all_single with splits",
        lambda dist, rank: dist.all_to_all_single(
            ones(2 if rank else 4), ones(3), [2, 0] if rank else [1, 3], [3, 0] if rank else [1, 2]
        ),
        (
            [call("all_to_all", 3, sizes=(1, 2), out_sizes=(1, 3))],
            [call("all_to_all", 3, sizes=(3, 0), out_sizes=(2, 0))],
        ),
    ),
    (
        "all_to_all",
        lambda dist, rank: dist.all_to_all([ones(2), ones(2)], [ones(2), ones(2)]),
        [call("all_to_all", 4, sizes=(2, 2), out_sizes=(2, 2))],
    ),
    (
        "all_to_all_single with splits of the output",
        lambda dist, rank: dist.all_to_all_single(ones(4), ones(4), [2, 2]),
        [call("all_to_all", 4, sizes=(2, 2), out_sizes=(2, 2))],
    ),
    ("barrier", lambda dist, rank: dist.barrier(), [BARRIER]),
    (
        "monitored_barrier",
        lambda dist, rank: dist.monitored_barrier(),
        [BARRIER | {"op": "monitored_barrier"}],
    ),
    (
        "all_gather_object",
        lambda dist, rank: dist.all_gather_object([None, None], "what"),
        [call("all_gather", 1, dtype="int64"), {"op": "all_gather", "dtype": "uint8"}],
    ),
    (
        "broadcast_object_list",
        lambda dist, rank: dist.broadcast_object_list(["what"], src=1),
        [
            call("broadcast", 1, dtype="int64", root=1),
            {"op": "broadcast", "dtype": "uint8", "root": 1},
        ],
    ),
    (
        "gather_object",
        lambda dist, rank: dist.gather_object("what", [None, None] if rank == 0 else None),
        [call("all_gather", 1, dtype="int64"), {"op": "gather", "dtype": "uint8", "root": 0}],
    ),
    (
        "all_reduce that is waited for",
        lambda dist, rank: dist.all_reduce(ones(8), async_op=True).wait(),
        [call("all_reduce", 8)],
    ),
    (
        "all_reduce that is asked after",
        lambda dist, rank: ask_until_completed(dist.all_reduce(ones(8), async_op=True)),
        [call("all_reduce", 8)],
    ),
    (
        "all_reduce whose work is dropped",
        lambda dist, rank: forgotten.append(dist.all_reduce(ones(9), async_op=True)),
        [call("all_reduce", 9, state=State.SCHEDULED)],
    ),
    (
        "all_reduce, coalesced",
        lambda dist, rank: coalesce(dist, lambda n: dist.all_reduce(ones(n, 2))),
        [several("all_reduce", 10, redop="sum")],
    ),
    (
        "all_gather, coalesced",
        lambda dist, rank: coalesce(
            dist, lambda n: dist.all_gather_into_tensor(ones(2 * n), ones(n))
        ),
        [several("all_gather", 5)],
    ),
    (
        "reduce_scatter, coalesced",
        lambda dist, rank: coalesce(
            dist, lambda n: dist.reduce_scatter_tensor(ones(n), ones(2 * n))
        ),
        [several("reduce_scatter", 10, redop="sum")],
    ),
    (
        "all_reduce_coalesced of one tensor",
        lambda dist, rank: dist.all_reduce_coalesced([ones(3, 3)]),
        [call("all_reduce", 3, 3)],
    ),
    (
        "functional all_reduce",
        lambda dist, rank: functional().all_reduce(ones(7), "SUM", dist.group.WORLD) + 1,
        [call("all_reduce", 7, redop="sum")],
    ),
    (
        "functional all_reduce that nobody uses",
        lambda dist, rank: forgotten.append(
            functional().all_reduce(ones(7), "max", dist.group.WORLD)
        ),
        [call("all_reduce", 7, redop="max", state=State.SCHEDULED)],
    ),
    (
        "functional all_gather",
        lambda dist, rank: functional().all_gather_tensor(ones(2, 2), 0, dist.group.WORLD).wait(),
        [call("all_gather", 2, 2)],
    ),
    (
        "functional reduce_scatter",
        lambda dist, rank: (
            functional().reduce_scatter_tensor(ones(4, 2), "sum", 0, dist.group.WORLD).wait()
        ),
        [call("reduce_scatter", 4, 2, redop="sum")],
    ),
    (
        "functional all_to_all",
        lambda dist, rank: (
            functional().all_to_all_single(ones(4), None, None, dist.group.WORLD).wait()
        ),
        [call("all_to_all", 4, sizes=(2, 2), out_sizes=(2, 2))],
    ),
    (
        "functional broadcast",
        lambda dist, rank: functional().broadcast(ones(4), 1, dist.group.WORLD).wait(),
        [call("broadcast", 4, root=1)],
    ),
    (
        "functional all_reduce, coalesced",
        lambda dist, rank: [
            result.wait()
            for result in functional().all_reduce_coalesced(
                [ones(4), ones(3)], "sum", dist.group.WORLD
            )
        ],
        [several("all_reduce", 7, redop="sum")],
    ),
    (
        "an operator with its arguments by name",
        lambda dist, rank: wait(
            operators().all_reduce(ones(5), group_name=dist.group.WORLD.group_name, reduce_op="sum")
        ),
        [call("all_reduce", 5, redop="sum")],
    ),
    (
        "functional all_reduce with a gradient",
        lambda dist, rank: (
            (functional().all_reduce(ones(6).requires_grad_(), "sum", dist.group.WORLD))
            .sum()
            .backward()
        ),
        [call("all_reduce", 6), call("all_reduce", 6)],
    ),
]
if TORCH < (2, 7):
    _LACKING = ("reduce_scatter", "all_to_all", "functional all_reduce with a gradient")
    CASES = [case for case in CASES if case[0] not in _LACKING]
if TORCH == (2, 11):  # its gloo has none
    CASES = [case for case in CASES if case[0] != "all_to_all"]

forgotten: list[Any] = []


def functional() -> Any:
    import torch.distributed._functional_collectives as functional

    return functional


def operators() -> Any:
    import torch

    return torch.ops._c10d_functional


def wait(tensor: Any) -> Any:
    return operators().wait_tensor(tensor)


def ask_until_completed(work: Any) -> None:
    while not work.is_completed():
        pass


def coalesce(dist: Any, post: Callable[[int], None]) -> None:
    with dist._coalescing_manager():
        post(2)
        post(3)


def post_everything(rank: int) -> None:
    warnings.simplefilter("ignore")  # torch's own, about names that it wants to give up
    dist = join()
    for _, post, _ in CASES:
        post(dist, rank)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_ranks(__file__, "post_everything", tmp_path_factory.mktemp("rings"))


def expected(rank: int) -> Iterator[tuple[str, Fields]]:
    for name, _, fields in CASES:
        for one in fields[rank] if isinstance(fields, tuple) else fields:
            yield name, one


@pytest.mark.parametrize("rank", [0, 1])
def test_each_call_is_recorded_once_with_its_parameters(everything: Run, rank: int) -> None:
    recorded = calls(everything.by_rank[rank])

    assert [describe(name, one, fields) for one, (name, fields) in pairs(recorded, rank)] == [
        f"{name}: {fields}" for name, fields in expected(rank)
    ]


def pairs(recorded: Any, rank: int) -> Any:
    assert len(recorded) == len(list(expected(rank))), [one.op for one in recorded]
    return zip(recorded, expected(rank), strict=True)


def describe(name: str, one: Call, fields: Fields) -> str:
    return f"{name}: { {field: getattr(one, field) for field in fields} }"


def test_members_agree_in_keys_and_sequence(everything: Run) -> None:
    first, second = everything.ranks

    assert first.logs.keys() == second.logs.keys()
    assert diagnose(everything).status == "ok"


def test_calls_are_where_the_program_made_them(everything: Run) -> None:
    sites = {one.site for one in calls(everything.by_rank[0])}

    assert [site for site in sites if not str(site).startswith("test_c10d_records.py:")] == []


def exchange_messages(rank: int) -> None:
    dist = join()
    other = 1 - rank
    if rank == 0:
        dist.send(ones(3), dst=1)
        dist.recv(ones(4), src=1)
        dist.recv(ones(5))
    else:
        dist.recv(ones(3), src=0)
        dist.send(ones(4), dst=0)
        dist.send(ones(5), dst=0)
    batch = [
        dist.P2POp(dist.isend, ones(6), other),
        dist.P2POp(dist.irecv, ones(6), other),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    dist.all_reduce(ones(2))
    dist.destroy_process_group()


def test_messages_are_kept_apart_from_the_common_sequence(rings: Path) -> None:
    run = run_ranks(__file__, "exchange_messages", rings)

    def seen(rank: int) -> list[tuple[Any, ...]]:
        return [(one.op, one.shape, one.peer) for one in messages(run.by_rank[rank])]

    batch = [("send", (6,)), ("recv", (6,))]
    assert seen(0) == [
        ("send", (3,), 1),
        ("recv", (4,), 1),
        ("recv", (5,), None),
        *((*one, 1) for one in batch),
    ]
    assert seen(1) == [
        ("recv", (3,), 0),
        ("send", (4,), 0),
        ("send", (5,), 0),
        *((*one, 0) for one in batch),
    ]
    for rank in run.ranks:
        assert [one.seq for one in calls(rank)] == [1]
        assert {one.state for one in messages(rank)} == {State.COMPLETED}


if __name__ == "__main__":
    main(globals())
