"""vLLM's own shared-memory communicator, between two real processes without GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ncclscope.model import Call, Rank, Run, State
from tests.integration.c10d_ranks import fields, join, main, run_ranks
from tests.support.shared_memory import needs_shared_memory

pytestmark = [pytest.mark.vllm, needs_shared_memory]
pytest.importorskip("vllm")


def ones(*shape: int) -> Any:
    import torch

    return torch.ones(*shape)


def connect(dist: Any, name: str) -> Any:
    """Make what vLLM's CPU workers have for a group; one with shared memory."""
    import torch
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    comm = CpuCommunicator(
        cpu_group=dist.new_group([0, 1], backend="gloo"),
        device=torch.device("cpu"),
        device_group=dist.new_group([0, 1], backend="gloo"),
        unique_name=name,
    )
    assert comm.supports_tensor_dict, "vLLM has no shared-memory operators here"
    return comm


def post_everything(rank: int) -> None:
    dist = join()
    # One communicator cannot carry collectives and messages; vLLM never has it do so.
    tensor_parallel, pipeline = connect(dist, "tp:0"), connect(dist, "pp:0")

    def post() -> list[Any]:
        results = [
            tensor_parallel.all_reduce(ones(4, 2)),
            tensor_parallel.all_gather(ones(2, 3), dim=0),
            tensor_parallel.gather(ones(2, 5), dst=1, dim=0),
        ]
        if rank == 0:
            pipeline.send_tensor_dict({"a": ones(3), "b": ones(2, 2)}, dst=1)
            return [*results, pipeline.recv_tensor_dict(src=1)]
        results.append(pipeline.recv_tensor_dict(src=0))
        pipeline.send_tensor_dict({"a": ones(3), "b": ones(2, 2)}, dst=0)
        return results

    post()
    compile_a_graph(tensor_parallel)
    break_each_operator(tensor_parallel, pipeline, post)


def compile_a_graph(comm: Any) -> None:
    """Dynamo traces into the communicator; the operator stays in the graph."""
    import torch

    def forward(tensor: Any) -> Any:
        return comm.all_reduce(tensor * 2) + 1

    compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        assert compiled(ones(7)).tolist() == [5.0] * 7


def break_each_operator(comm: Any, other: Any, post: Callable[[], list[Any]]) -> None:
    """With each part of the recording broken in turn, nothing changes but that it ends."""
    from ncclscope_patches import registry
    from ncclscope_patches.vllm import cpu_shm

    def trouble(*_arguments: Any, **_named: Any) -> Any:
        raise ValueError("asked for by the test")

    handle = cpu_shm.handle_of(comm.dist_module.handle)
    messages = cpu_shm.handle_of(other.dist_module.handle)
    registry.revert_all()
    expected = summary(post())
    for owner, name in (
        (handle, "post"),
        (handle.tracer, "template"),
        (messages.ring, "post_p2p"),
        (handle.ring, "advance"),
        (cpu_shm, "handle_of"),
    ):
        probe = cpu_shm.CpuShmProbe()
        probe.apply()
        for packet, before in operators():
            cpu_shm.guard_operator(probe, packet, before, cpu_shm._returned)
        handle.templates.clear()
        kept = getattr(owner, name)
        setattr(owner, name, trouble)
        assert summary(post()) == expected
        assert not probe.active, f"{name} is broken and nobody noticed"
        setattr(owner, name, kept)
        probe.revert()


def operators() -> list[tuple[Any, Any]]:
    import torch

    from ncclscope_patches.vllm import cpu_shm

    return [(getattr(torch.ops._C, name), hook) for name, hook in cpu_shm._OPERATORS.items()]


def summary(results: list[Any]) -> list[Any]:
    return [
        {name: value.tolist() for name, value in result.items()}
        if isinstance(result, dict)
        else None
        if result is None
        else result.tolist()
        for result in results
    ]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Run:
    rings = tmp_path_factory.mktemp("rings")
    environment = {"VLLM_DIST_IDENT": f"ncclscope-test-{os.getpid()}"}
    before = set(Path("/dev/shm").iterdir())
    try:
        return run_ranks(__file__, "post_everything", rings, environment=environment)
    finally:
        # vLLM leaves its shared memory behind.
        for path in set(Path("/dev/shm").iterdir()) - before:
            if environment["VLLM_DIST_IDENT"] in path.name:
                path.unlink()


def shared_calls(rank: Rank, label: str) -> Sequence[Call]:
    """Call through shared memory; the group that it was made from has the same name here."""
    (log,) = [
        log
        for log in rank.logs.values()
        if (log.communicator.label, log.communicator.backend) == (label, "shm")
    ]
    return log.span(1, log.calls + 1)


@pytest.mark.parametrize("rank", [0, 1])
def test_collectives_are_recorded_as_completed(everything: Run, rank: int) -> None:
    # What was recorded until something broke is behind these.
    found = shared_calls(everything.by_rank[rank], "tp:0")[:5]

    assert [fields(one, "op", "shape", "redop", "root") for one in found] == [
        ("all_reduce", (4, 2), "sum", None),
        ("all_gather", (2, 3), None, None),
        ("gather", (2, 5), None, 1),
        ("all_reduce", (7,), "sum", None),
        ("all_reduce", (7,), "sum", None),
    ]
    assert {one.state for one in found} == {State.COMPLETED}


def test_messages_have_their_peer_and_the_size_of_all_tensors(everything: Run) -> None:
    for rank in everything.ranks:
        (key,) = [key for key in rank.p2p if key.startswith("shm:")]
        found = {one.op: one for one in rank.p2p[key]}
        assert {op: one.peer for op, one in found.items()} == dict.fromkeys(
            ("send", "recv"), 1 - rank.rank
        )
        # The names and shapes of the tensors go along, in bytes.
        assert (found["send"].numel or 0) > 7


def test_members_share_the_key(everything: Run) -> None:
    shared = [comm for comm in everything.communicators.values() if comm.backend == "shm"]

    assert [(comm.label, comm.ranks) for comm in shared] == [("tp:0", (0, 1)), ("pp:0", (0, 1))]
    for comm in shared:
        assert all(comm.key in rank.logs for rank in everything.ranks)


def test_process_groups_are_named_before_the_communicator_connects(everything: Run) -> None:
    for rank in everything.ranks:
        communicators = [log.communicator for log in rank.logs.values()]
        labels = {comm.label for comm in communicators if not comm.creates_groups}
        assert labels == {"world", "tp:0", "tp:0/cpu", "pp:0", "pp:0/cpu"}


if __name__ == "__main__":
    main(globals())
