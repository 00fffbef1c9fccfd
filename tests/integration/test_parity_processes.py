"""Functions as ranks in real processes: how they end, and that nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from ncclscope import diagnose, native, open_run
from ncclscope.errors import UsageError
from ncclscope.launch.processes import run_ranks
from ncclscope.tracing import scope

WAITING = """
import os, signal, sys
from pathlib import Path
from ncclscope.launch.processes import run_ranks

def wait(rank):
    print(os.getpid(), flush=True)
    os.write(3, b"%d\\n" % os.getpid())
    signal.pause()

run_ranks(wait, ranks=2, rings=Path(sys.argv[1]), stall_after=60)
"""


def group() -> Any:
    import torch.distributed as dist

    return dist


def ones() -> Any:
    import torch

    return torch.ones(4)


def agree(rank: int, count: int = 3) -> int:
    tensor = ones()
    for _ in range(count):
        group().all_reduce(tensor)
    return rank


def test_results_and_rings_of_all_ranks(rings: Path) -> None:
    outcome = run_ranks(agree, 5, ranks=3, rings=rings)

    assert (outcome.ending, outcome.results) == ("finished", [0, 1, 2])
    verdict = diagnose(open_run(rings))
    assert verdict.status == "ok"
    assert [rank.exited for rank in verdict.run.ranks] == [True] * 3
    assert [row.cells["world"].calls for row in verdict.table] == [5] * 3


def own_store(rank: int) -> bytes:
    """Meet the other ranks at an address that frameworks take from the environment."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = group().TCPStore(address, port, 2, is_master=rank == 0)
    store.set(f"rank-{rank}", "here")
    value: bytes = store.get(f"rank-{1 - rank}")
    group().barrier()
    return value


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_frameworks_find_an_address_to_meet_at(rings: Path, method: str) -> None:
    outcome = run_ranks(own_store, ranks=2, rings=rings, start_method=method)
    assert (outcome.ending, outcome.results) == ("finished", [b"here", b"here"])


def test_a_rank_that_raises_is_named_and_the_others_are_ended(rings: Path) -> None:
    def fail(rank: int) -> None:
        agree(rank)
        if rank == 1:
            raise ValueError("one is not wanted")
        agree(rank)

    outcome = run_ranks(fail, ranks=3, rings=rings)

    assert outcome.ending == "failed"
    assert [(failure.rank, failure.error) for failure in outcome.failures] == [
        (1, "ValueError: one is not wanted")
    ]
    assert outcome.waiting == [0, 2]


def test_a_rank_that_exits_is_no_success(rings: Path) -> None:
    outcome = run_ranks(lambda rank: os._exit(3) if rank else agree(rank, 0), ranks=2, rings=rings)

    (failure,) = outcome.failures
    assert (failure.rank, failure.error) == (1, "its process ended with status 3")


def test_what_cannot_be_returned_is_a_failure_of_its_rank(rings: Path) -> None:
    outcome = run_ranks(lambda rank: lambda: rank, ranks=1, rings=rings)

    assert outcome.ending == "failed"
    assert outcome.failures[0].rank == 0
    assert "pickle" in outcome.failures[0].error


def test_a_hang_shows_in_the_rings_for_as_long_as_it_was_waited_for(rings: Path) -> None:
    outcome = run_ranks(lambda rank: agree(rank, 3 - rank), ranks=2, rings=rings, stall_after=1.0)

    assert (outcome.ending, outcome.waiting) == ("stalled", [0])
    verdict = diagnose(open_run(rings), stall_seconds=1.0)
    assert verdict.status == "hung"
    assert verdict.cause is not None
    # Rank 0 has made one call too many, or rank 1 one too few: a pair cannot say which.
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("dead_rank", ())
    assert verdict.cause.candidate_ranks == (0, 1)


def test_what_ranks_start_is_ended_with_them(rings: Path) -> None:
    def start(rank: int) -> None:
        child = subprocess.Popen(["sleep", "600"])
        print(f"started {child.pid}")
        signal.pause()

    outcome = run_ranks(start, ranks=1, rings=rings, stall_after=0.2)

    pid = int(outcome.output[0].split()[1])
    assert _gone([pid])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_test_run(rings: Path, number: int) -> None:
    reading, writing = os.pipe()
    environment = {**os.environ, "TMPDIR": str(rings)}
    program = subprocess.Popen(
        ["bash", "-c", f'exec "$0" "$@" 3>&{writing}', sys.executable, "-c", WAITING, str(rings)],
        pass_fds=[writing],
        env=environment,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(writing)
    try:
        with open(reading) as pipe:
            pids = [int(pipe.readline()) for _ in range(2)]
        program.send_signal(number)
        program.wait(30)
    finally:
        program.kill()
        program.wait()

    assert _gone(pids)
    if number == signal.SIGINT:
        assert list(rings.glob("ncclscope-ranks-*")) == []


def _gone(pids: list[int]) -> bool:
    """Wait until processes are gone, or waited for by nobody."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not any(_runs(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def describe(rank: int, base: dict[str, int], *, factor: int) -> tuple[int, int, str, str]:
    agree(rank, 2)
    print("rank", rank, "here")
    # Their tracers are older than torch; unannounced calls the plugin would record once more.
    assert native.plugin_path() is None or "nccl" in scope.listeners
    return rank, base["of"] * factor, os.environ["RANK"], __name__


@pytest.mark.slow
def test_spawned_ranks_have_a_function_by_its_name(rings: Path) -> None:
    outcome = run_ranks(
        *(describe, {"of": 7}), keywords={"factor": 6}, ranks=2, rings=rings, start_method="spawn"
    )

    assert outcome.ending == "finished", outcome.failures
    assert outcome.results == [(rank, 42, str(rank), __name__) for rank in range(2)]
    assert outcome.output == {0: "rank 0 here\n", 1: "rank 1 here\n"}
    verdict = diagnose(open_run(rings))
    assert (verdict.status, [rank.records for rank in verdict.run.ranks]) == ("ok", [2, 2])


@pytest.mark.slow
def test_spawned_ranks_that_hang_are_killed(rings: Path) -> None:
    outcome = run_ranks(uneven, ranks=2, rings=rings, start_method="spawn", stall_after=1.0)

    assert (outcome.ending, outcome.waiting) == ("stalled", [0])


def uneven(rank: int) -> None:
    agree(rank, 3 - rank)


@pytest.mark.parametrize(
    ("function", "arguments", "complaint"),
    [
        (lambda rank: rank, (), "needs a function that can be imported, and .*lambda"),
        (agree, (lambda: 3,), "cannot be sent to a new process"),
    ],
)
def test_what_cannot_be_handed_to_a_new_process_says_so(
    rings: Path, function: Any, arguments: tuple[Any, ...], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        run_ranks(function, *arguments, ranks=2, rings=rings, start_method="spawn")


def test_nccl_without_enough_gpus_is_refused_in_one_line(rings: Path) -> None:
    with pytest.raises(UsageError) as refused:
        run_ranks(agree, ranks=512, rings=rings, backend="nccl")

    assert "nccl" in str(refused.value)
    assert "\n" not in str(refused.value)


class Stubborn:
    """Can be written, not read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("x",)


def test_what_cannot_be_read_back_is_a_failure_of_its_rank(rings: Path) -> None:
    outcome = run_ranks(lambda rank: Stubborn() if rank else 0, ranks=2, rings=rings)

    assert (outcome.ending, outcome.results) == ("failed", [])
    (failure,) = outcome.failures
    assert failure.rank == 1
    assert "cannot be unpickled: ValueError" in failure.error


def test_a_large_result_comes_back(rings: Path) -> None:
    outcome = run_ranks(lambda rank: bytes(8 << 20), ranks=2, rings=rings)

    assert [len(result) for result in outcome.results] == [8 << 20] * 2


def test_a_rank_whose_children_hold_its_socket_is_missed_all_the_same(rings: Path) -> None:
    def leave(rank: int) -> None:
        if rank == 0 and os.fork() == 0:
            signal.pause()
        if rank == 0:
            os._exit(4)
        agree(rank)

    outcome = run_ranks(leave, ranks=2, rings=rings, stall_after=60)

    assert outcome.failures[0].rank == 0
    assert outcome.failures[0].error == "its process ended with status 4"


def test_ranks_that_all_skip_skip_and_some_alone_do_not(rings: Path) -> None:
    def skip(rank: int, first: int) -> None:
        if rank >= first:
            pytest.skip("no fast network")
        agree(rank)

    assert run_ranks(skip, 0, ranks=2, rings=rings).ending == "skipped"
    some = run_ranks(skip, 1, ranks=2, rings=rings, stall_after=1.0)
    assert (some.ending, some.skipped, some.waiting) == ("stalled", {1: "no fast network"}, [0])


def test_no_ranks_are_no_test(rings: Path) -> None:
    with pytest.raises(UsageError, match="give one or more"):
        run_ranks(agree, ranks=0, rings=rings)
