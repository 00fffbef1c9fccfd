"""vLLM's own groups, between two real processes, and the names that they give."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ncclscope.launch.rank_process import free_port
from ncclscope.model import Run
from ncclscope.readers.ring.ranks import read_ring
from ncclscope.tracing import session
from tests.integration.c10d_ranks import main, run_ranks
from tests.support.shared_memory import BACKEND

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")


def break_what_names() -> None:
    """Where the test asks for it, no name can be given to anything."""
    from ncclscope_patches.probes import process_groups

    def trouble(*_arguments: Any, **_named: Any) -> Any:
        raise ValueError("asked for by the test")

    if "BREAK" in os.environ:
        process_groups.name = trouble


def make_model_groups(rank: int) -> None:
    break_what_names()
    from vllm.config import ParallelConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    config = VllmConfig(parallel_config=ParallelConfig(tensor_parallel_size=2))
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(
            world_size=2,
            rank=rank,
            distributed_init_method=f"file://{os.environ['MEETING_POINT']}",
            local_rank=rank,
            backend="gloo",
        )
        parallel_state.ensure_model_parallel_initialized(2, 1)
    queue = parallel_state.get_tp_group().mq_broadcaster
    if rank == 0:
        queue.enqueue(("execute_model", ("arguments",), {}, None))
        queue.enqueue("anything else")
    else:
        assert queue.dequeue() == ("execute_model", ("arguments",), {}, None)
        assert queue.dequeue(timeout=30) == "anything else"
        with pytest.raises(TimeoutError):
            queue.dequeue(timeout=0.01)
        threading.Thread(target=queue.dequeue, kwargs={"indefinite": True}, daemon=True).start()
        tracer = session.current()
        assert tracer is not None
        while (waits := read_ring(Path(tracer.path)).activities["dequeue"]).detail != "work":
            time.sleep(0.01)
        assert waits.until_ns is None
    os._exit(0)  # vLLM's own way to end would need more of vLLM here


def join_engines(rank: int) -> None:
    """What two engine cores of one data-parallel deployment do, without the engines."""
    break_what_names()
    import torch
    from vllm.config import ParallelConfig
    from vllm.distributed.utils import stateless_init_torch_distributed_process_group
    from vllm.v1.engine.core import DPEngineCoreProc

    engine = DPEngineCoreProc.__new__(DPEngineCoreProc)
    engine.dp_rank = rank
    engine.dp_group = stateless_init_torch_distributed_process_group(
        "127.0.0.1", int(os.environ["PORT"]), rank, 2, backend="gloo"
    )
    assert ParallelConfig.has_unfinished_dp(engine.dp_group, rank == 0)
    engine._handle_shutdown = lambda: False
    with pytest.raises(SystemExit):
        engine.run_busy_loop()
    torch.distributed.barrier(engine.dp_group)
    os._exit(0)


def start_engine(rank: int) -> None:
    """What an engine core does that never comes to its loop: it begins with its configuration."""
    from vllm.v1.engine.core import EngineCoreProc

    parallel = SimpleNamespace(data_parallel_index=3 + rank, data_parallel_rank=0)
    with pytest.raises(TypeError):
        EngineCoreProc(vllm_config=SimpleNamespace(parallel_config=parallel))
    os._exit(0)


def ask_engine(_rank: int) -> None:
    """What an engine core does with what clients ask of it, up to a method that hangs."""
    from vllm.v1.engine import EngineCoreRequestType as Kind
    from vllm.v1.engine.core import EngineCoreProc

    engine = EngineCoreProc.__new__(EngineCoreProc)
    noted: list[tuple[str | None, bool]] = []

    def note(*_: object) -> None:
        tracer = session.current()
        assert tracer is not None
        found = read_ring(Path(tracer.path)).activities["asked"]
        noted.append((found.detail, found.until_ns is None))

    engine.abort_requests = note
    engine._invoke_utility_method = note
    engine._reject_utility_in_shutdown = lambda *_: False
    engine._handle_client_request(Kind.ABORT, ["a"])
    engine._handle_client_request(Kind.UTILITY, (0, 1, "add_lora", ()))
    note()
    assert noted == [("abort", True), ("add_lora", True), ("add_lora", False)]
    os._exit(0)


def run_model_groups(rings: Path, **environment: str) -> Run:
    ident = f"ncclscope-test-{os.getpid()}"
    environment["VLLM_DIST_IDENT"] = ident
    try:
        return run_ranks(__file__, "make_model_groups", rings, environment=environment)
    finally:
        for path in Path("/dev/shm").glob(f"{ident}*"):
            path.unlink()


def test_queues_are_noted_and_work_as_ever(grouped: Run) -> None:
    first, second = grouped.ranks

    sent = first.activities["enqueue"]
    assert (sent.count, sent.detail) == (2, None)
    assert sent.until_ns is not None
    waits = second.activities["dequeue"]
    assert (waits.count, waits.detail, waits.until_ns) == (4, "work", None)
    for rank in (first, second):
        assert "probe_failed" not in rank.details


def test_what_a_client_asks_of_an_engine_is_noted_while_it_lasts(tmp_path: Path) -> None:
    (rank,) = run_ranks(__file__, "ask_engine", tmp_path, size=1).ranks

    assert "probe_failed" not in rank.details


def run_engines(rings: Path, **environment: str) -> Run:
    environment["PORT"] = str(free_port())
    # Without the world's size RANK is no rank: engine cores have none.
    environment["WORLD_SIZE"] = ""
    return run_ranks(__file__, "join_engines", rings, environment=environment)


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_model_groups(tmp_path_factory.mktemp("grouped"))


def test_communicators_have_the_names_of_their_groups(grouped: Run) -> None:
    run = grouped

    named = {(comm.label, comm.backend) for comm in run.communicators.values()}
    assert {
        ("world", "gloo"),
        ("world:0", "gloo"),
        ("world:0/cpu", "gloo"),
        ("tp:0", BACKEND),
        ("tp:0/cpu", "gloo"),
    } <= named
    assert (("tp:0/device", "gloo") in named) == (BACKEND == "shm")
    for rank in run.ranks:
        assert (rank.rank, rank.world_size) == (int(rank.labels["tp"]), 2)
        assert rank.labels["engine"] == "0"
        assert rank.details["role"] == "worker"
        assert "probe_failed" not in rank.details


def test_engine_cores_are_no_ranks(rings: Path) -> None:
    run = run_engines(rings)

    assert run.ranks == ()
    engines = sorted(run.others, key=lambda process: process.labels["engine"])
    assert [process.labels for process in engines] == [{"engine": "0"}, {"engine": "1"}]
    assert {process.details["role"] for process in engines} == {"engine"}
    (first,), (second,) = (process.logs.values() for process in engines)
    assert first.communicator == second.communicator
    assert (first.communicator.label, first.communicator.ranks) == ("engines", ())
    assert first.signatures(1, 3) == second.signatures(1, 3)
    assert [call.op for call in first.span(1, first.calls + 1)] == ["all_reduce", "barrier"]


def test_an_engine_core_has_its_name_before_it_is_ready(rings: Path) -> None:
    run = run_ranks(__file__, "start_engine", rings, environment={"WORLD_SIZE": ""})

    assert run.ranks == ()
    assert sorted(one.labels["engine"] for one in run.others) == ["3", "4"]
    assert {one.details["role"] for one in run.others} == {"engine"}


def test_workers_start_without_the_names(rings: Path) -> None:
    run = run_model_groups(rings, BREAK="1")

    assert len(run.ranks) == 2
    for rank in run.ranks:
        assert "asked for by the test" in rank.details["probe_failed"]


def test_engine_cores_start_without_the_names(rings: Path) -> None:
    run = run_engines(rings, BREAK="1")

    assert len(run.others) == 2
    for process in run.others:
        assert "asked for by the test" in process.details["probe_failed"]


if __name__ == "__main__":
    main(globals())
