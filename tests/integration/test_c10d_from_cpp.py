"""Calls that torch's C++ posts are recorded once, as gloo carries them out.

Each scenario posts on a group of its own. Flight Recorder, which counts in gloo itself, is the
independent count: the calls that a ring holds are the calls that it has, one by one.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ncclscope import diagnose, open_run
from ncclscope.model import Call, Run, State
from ncclscope_patches.probes.from_cpp import dispatcher
from tests.conftest import SHARED_MEMORY
from tests.integration.c10d_ranks import SIZE, TORCH, calls, join, main, messages, run_ranks

pytest.importorskip("torch")

SECONDS = 200.0
COUNTS = TORCH >= (2, 8)
"""Whether Flight Recorder counts gloo's calls in this version."""


def layers(**options: Any) -> Any:
    import torch

    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2), **options
    )


def train(model: Any, steps: int = 3) -> None:
    import torch

    for _ in range(steps):
        model(torch.ones(3, 4)).sum().backward()


def replica(group: Any, module: Any = None, **options: Any) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(module or layers(), process_group=group, **options)


def plain(group: Any, _rank: int) -> None:
    train(replica(group))


def small_buckets(group: Any, _rank: int) -> None:
    train(replica(group, bucket_cap_mb=1e-5))


def static_graph(group: Any, _rank: int) -> None:
    train(replica(group, static_graph=True))


def unused_parameters(group: Any, rank: int) -> None:
    import torch

    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branches = torch.nn.ModuleList(torch.nn.Linear(4, 2) for _ in range(SIZE))

        def forward(self, values: Any) -> Any:
            return self.branches[rank](values)

    train(replica(group, Branches(), find_unused_parameters=True))


def without_sync(group: Any, _rank: int) -> None:
    model = replica(group)
    with model.no_sync():
        train(model)
    train(model)


def bucket_views(group: Any, _rank: int) -> None:
    train(replica(group, gradient_as_bucket_view=True))


def sparse_gradients(group: Any, _rank: int) -> None:
    import torch

    model = replica(group, torch.nn.Embedding(10, 3, sparse=True))
    for _ in range(2):
        model(torch.tensor([1, 4])).sum().backward()


def python_hooks(group: Any, _rank: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def bf16(state, bucket):  # type: ignore[no-untyped-def]  # annotated, it is taken for NCCL's
        return default_hooks.bf16_compress_hook(state, bucket)

    for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook, bf16):
        model = replica(group)
        model.register_comm_hook(group, hook)
        train(model)
    model = replica(group)
    state = powerSGD_hook.PowerSGDState(group, 1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(model, 5)


def builtin_hooks(group: Any, _rank: int) -> None:
    import torch.distributed as dist

    for kind in (dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS):
        model = replica(group)
        model._register_builtin_comm_hook(kind)
        train(model)


def uneven_inputs(group: Any, rank: int) -> None:
    from torch.distributed.algorithms.join import Join

    model = replica(group, find_unused_parameters=True)
    with Join([model]):
        train(model, 2 + 2 * rank)


def zero(group: Any, _rank: int) -> None:
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = replica(group)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, process_group=group, lr=0.1
    )
    for _ in range(2):
        train(model, 1)
        optimizer.step()
    optimizer.consolidate_state_dict()


def fsdp2(group: Any, _rank: int) -> None:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in model:
        fully_shard(layer, mesh=mesh)
    train(fully_shard(model, mesh=mesh))


def pipeline(group: Any, rank: int) -> None:
    import torch
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    device = torch.device("cpu")
    stage = PipelineStage(torch.nn.Linear(4, 4), rank, SIZE, device, group=group)
    schedule = Schedule1F1B(stage, 4, loss_fn=torch.nn.functional.mse_loss)
    values = torch.ones(8, 4)
    for _ in range(2):
        schedule.step(*([values] if rank == 0 else []), target=values if rank else None)


def dtensor(group: Any, _rank: int) -> None:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = DeviceMesh.from_group(group, "cpu")
    tensor = distribute_tensor(torch.ones(4, 4, requires_grad=True), mesh, [Shard(0)])
    tensor.redistribute(mesh, [Shard(1)]).redistribute(mesh, [Replicate()]).sum().backward()
    (tensor @ tensor.redistribute(mesh, [Replicate()])).sum().redistribute(mesh, [Replicate()])


def functional_backward(group: Any, _rank: int) -> None:
    import torch
    from torch.distributed import _functional_collectives as functional

    values = torch.ones(4, 2, requires_grad=True)
    for _ in range(2):
        sent = functional.all_to_all_single_autograd(values, [2, 2], [2, 2], group)
        # Of a sum alone, the gradient is a view that torch 2.11 refuses, traced or not.
        functional.all_gather_tensor_autograd(sent, 0, group).pow(2).sum().backward()


def compiled(group: Any, _rank: int) -> None:
    import torch
    from torch.distributed import _functional_collectives as functional

    @torch.compile(backend="aot_eager")
    def step(values: Any) -> Any:
        return functional.all_reduce(values * 2, "max", group).sum()

    with torch.inference_mode():
        step(torch.ones(4))
    train(torch.compile(replica(group), backend="aot_eager"))


def called_from_python(group: Any, rank: int) -> None:
    """Post what Python posts, where kernels are installed as well."""
    import torch
    import torch.distributed as dist

    train(replica(group), 1)
    values = torch.ones(4)
    dist.all_reduce(values, dist.ReduceOp.MAX, group)
    with torch.inference_mode():
        dist.broadcast(torch.ones(2), group=group, group_src=1)
    dist.all_gather([torch.ones(4) for _ in range(SIZE)], values, group)
    dist.reduce(values, group_dst=1, op=dist.ReduceOp.PRODUCT, group=group)
    dist.gather(values, [torch.ones(4) for _ in range(SIZE)] if rank == 0 else None, group=group)
    dist.barrier(group)
    operators = [dist.isend, dist.irecv] if rank == 0 else [dist.irecv, dist.isend]
    pairs = [dist.P2POp(one, torch.ones(3), group=group, group_peer=1 - rank) for one in operators]
    for work in dist.batch_isend_irecv(pairs):
        work.wait()
    dist.all_gather_object([None] * SIZE, {"rank": rank}, group)


def called_as_operators(group: Any, rank: int) -> None:
    """Call the dispatcher's operators themselves, as a graph with a C++ wrapper does."""
    import torch

    train(replica(group), 1)
    dispatcher.record_from_now("compiled", "the test posts from C++")
    box, operators = group.boxed(), torch.ops.c10d
    both = [[torch.ones(2, 3) for _ in range(SIZE)]]
    operators.allgather_(both, [torch.ones(2, 3)], box)[1].wait()
    operators._allgather_base_(torch.ones(4, 3), torch.ones(2, 3), box)[1].wait()
    operators.broadcast_([torch.ones(5)], box, 1, 0)[1].wait()
    sent, received = ([1, 3], [1, 2]) if rank == 0 else ([2, 4], [3, 4])
    values = torch.ones(sum(sent)), torch.ones(sum(received))
    operators.alltoall_base_(values[1], values[0], box, received, sent).wait()
    into = both if rank == 1 else []
    operators.gather_(into, [torch.ones(2, 3)], box, 1).wait()
    operators.scatter_([torch.ones(2, 3)], both if rank == 0 else [], box, 0)[1].wait()
    operators.reduce_([torch.ones(3)], box, torch.classes.c10d.ReduceOp(), 1, 0).wait()
    all_reduce, _ = torch._C._jit_get_operation("_c10d_functional::all_reduce")
    all_reduce(torch.ones(3), "max", group.group_name)
    if rank == 0:
        operators.send([torch.ones(7)], box, 1, 0).wait()
    else:
        operators.recv_([torch.ones(7)], box, 0, 0).wait()
    operators.barrier(torch.empty(0), box, []).wait()


SCENARIOS: dict[str, Callable[[Any, int], None]] = {
    scenario.__name__: scenario
    for scenario in (
        plain, small_buckets, static_graph, unused_parameters, without_sync, bucket_views,
        sparse_gradients, python_hooks, builtin_hooks, uneven_inputs, zero, fsdp2, pipeline,
        dtensor, functional_backward, compiled, called_from_python, called_as_operators,
    )
}  # fmt: skip


if TORCH < (2, 8):  # they fail there without tracing as well
    for missing in ("fsdp2", "pipeline", "called_as_operators"):
        del SCENARIOS[missing]


def play(rank: int) -> None:
    """Play all scenarios, and write what Flight Recorder and gloo counted."""
    import torch

    dist = join()
    chosen = os.environ.get("SCENARIOS", "").split() or list(SCENARIOS)
    counted = {}
    for name in chosen:
        group = dist.new_group(list(range(SIZE)), group_desc=name)
        SCENARIOS[name](group, rank)
        counted[name] = group._get_sequence_number_for_group()
    folder = Path(os.environ["MEETING_POINT"]).parent / "counted"
    folder.mkdir(exist_ok=True)
    (folder / f"numbers_{rank}").write_text(json.dumps(counted))
    if COUNTS:
        take = torch._C._distributed_c10d._dump_fr_trace_json
        (folder / f"fr_{rank}.json").write_bytes(take())
    dist.barrier()


class Played(NamedTuple):
    """Return the records of both ranks, and the counts beside them."""

    recorded: Run
    flights: Run | None
    """Flight Recorder's calls; None if this version of torch does not count gloo's."""
    numbers: list[dict[str, int]]
    """gloo's own count of calls and messages by scenario, for each rank."""


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    folder = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    rings = Path(tempfile.mkdtemp(prefix="ncclscope-test-", dir=folder))
    sizes = {"TORCH_FR_BUFFER_SIZE": "20000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "20000"}
    run_ranks(__file__, "play", rings, environment=sizes, timeout=SECONDS)
    counted = rings / "counted"
    numbers = [json.loads((counted / f"numbers_{rank}").read_text()) for rank in range(SIZE)]
    flights = open_run(*sorted(counted.glob("*.json"))) if COUNTS else None
    shutil.rmtree(counted)
    yield Played(open_run(rings), flights, numbers)
    shutil.rmtree(rings)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_call_is_recorded_once_and_as_it_was_carried_out(
    played: Played, scenario: str
) -> None:
    for rank in played.recorded.ranks:
        recorded = calls(rank, scenario)
        sent = messages(rank, scenario)
        assert len(recorded) + len(sent) == played.numbers[rank.rank][scenario]
        if played.flights is None or not recorded:  # gloo counts no messages there
            continue
        flown = calls(played.flights.by_rank[rank.rank], f"{scenario}:0")
        assert [essence(call) for call in recorded] == [essence(call) for call in flown]


def essence(call: Call) -> tuple[Any, ...]:
    """Return what Flight Recorder says of a call in gloo's words."""
    if call.op == "scatter":  # ours has the shape that each rank receives
        return call.op, call.dtype
    op = call.op.removeprefix("sparse_")
    return "all_reduce" if op == "reduce_scatter" else op, call.shape, call.dtype


def test_the_records_of_healthy_ranks_agree_and_are_complete(played: Played) -> None:
    verdict = diagnose(played.recorded).to_dict()
    assert (verdict["status"], verdict["findings"]) == ("ok", [])
    assert verdict["coverage"]["complete"]
    assert verdict["coverage"]["unseen"] == []


def test_a_bucket_has_the_line_of_its_backward(played: Played) -> None:
    for rank in played.recorded.ranks:
        found = [call for call in calls(rank, "plain") if call.op == "all_reduce"]
        assert len(found) == 3
        for call in found:
            assert (call.shape, call.redop, call.state) == ((74,), "sum", State.COMPLETED)
            assert call.site is not None
            assert call.site.endswith(" train")


def test_roots_and_reductions_of_operators_are_read(played: Played) -> None:
    for rank in played.recorded.ranks:
        python = {call.op: call for call in calls(rank, "called_from_python")}
        assert (python["reduce"].root, python["reduce"].redop) == (1, "product")
        if "called_as_operators" in SCENARIOS:
            found = {call.op: call for call in calls(rank, "called_as_operators")}
            assert [found[op].root for op in ("gather", "scatter", "reduce")] == [1, 0, 1]
            assert (found["reduce"].redop, found["all_reduce"].redop) == ("sum", "max")
            (message,) = messages(rank, "called_as_operators")
            assert (message.op, message.peer) == (("send", 1), ("recv", 0))[rank.rank]


if __name__ == "__main__":
    main(globals())
