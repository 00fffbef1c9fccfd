"""Real ranks that do not get to their first call, or are kept from the next one."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ncclscope import open_run
from ncclscope.attach.host.kernel_log import with_kernel_log
from ncclscope.attach.session import Options, sample_job
from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.errors import NcclscopeError
from ncclscope.launch.rank_process import free_port
from ncclscope.model import Run
from tests.integration.c10d_ranks import main, start

pytest.importorskip("torch")

SIZE = 4
DEADLINE = 100.0
ABSENT = 3
STALL = 0.5
Ranks = dict[int, Any]


def block() -> None:
    """Wait until the process is killed."""
    with open(os.environ["MEETING_POINT"] + ".pipe") as pipe:
        pipe.read()


def meet() -> Any:
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    return dist


def reduce(dist: Any) -> None:
    import torch

    dist.all_reduce(torch.ones(4))


def comes_late(rank: int) -> None:
    if rank == ABSENT:
        block()
    meet()


def serves_no_store(rank: int) -> None:
    if rank == 0:
        block()
    meet()


def starts_alone(rank: int) -> None:
    if rank != 0:
        block()
    meet()


def meets_elsewhere(rank: int) -> None:
    if rank == ABSENT:
        os.environ["MASTER_PORT"] = os.environ["OTHER_PORT"]
    meet()


def expects_another(rank: int) -> None:
    if rank == 0:
        os.environ["WORLD_SIZE"] = str(SIZE + 1)
    meet()


def is_there_twice(rank: int) -> None:
    if rank == ABSENT:
        os.environ["RANK"] = "2"
    meet()


def sets_another_key(rank: int) -> None:
    dist = meet()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("weight", "1")
        reduce(dist)
    store.get("weights")


def waits_for_a_key_of_a_rank_that_went_on(rank: int) -> None:
    dist = meet()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("weight", "1")
    if rank == ABSENT:
        store.get("weights")
    reduce(dist)


def gives_up_elsewhere(rank: int) -> None:
    import torch.distributed as dist

    if rank == ABSENT:
        os.environ["MASTER_PORT"] = os.environ["OTHER_PORT"]
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))


def sets_no_key(rank: int) -> None:
    store = meet().distributed_c10d._get_default_store()
    store.set(f"ready/{rank}", "1")
    if rank == ABSENT:
        block()
    store.wait(["weights"], timedelta(seconds=200))


def all_wait_for_a_key(rank: int) -> None:
    meet().distributed_c10d._get_default_store().get("nobody")


def polls_in_slices(rank: int) -> None:
    store = meet().distributed_c10d._get_default_store()
    if rank == ABSENT:
        block()
    while True:
        try:
            store.wait(["weights"], timedelta(milliseconds=100))
        except Exception:
            continue


def counts_at_the_store(rank: int) -> None:
    store = meet().distributed_c10d._get_default_store()
    if rank == ABSENT:
        block()
    store.add("ready", 1)
    while int(store.get("ready")) < SIZE:
        time.sleep(0.1)


def compiles(rank: int) -> None:
    import torch

    dist = meet()
    reduce(dist)
    if rank == ABSENT:

        def backend(module: Any, _inputs: Any) -> Any:
            block()
            return module

        @torch.compile(backend=backend)
        def double(given: Any) -> Any:
            return given * 2

        double(torch.ones(2))
    reduce(dist)


def loads(rank: int) -> None:
    import torch

    dist = meet()
    reduce(dist)
    if rank == ABSENT:
        torch.load(os.environ["MEETING_POINT"] + ".pipe")
    reduce(dist)


def fail() -> Any:
    return None + 1  # type: ignore[operator]


def fails_in_a_call(rank: int) -> None:
    dist = meet()
    reduce(dist)
    if rank == ABSENT:
        try:
            dist.all_reduce("no tensor")
        except TypeError:
            block()
    reduce(dist)


def fails_in_a_posted_call(rank: int) -> None:
    import torch

    dist = meet()
    reduce(dist)
    if rank == ABSENT:
        try:
            dist.all_gather([torch.ones(1)], torch.ones(1))  # too few outputs for four ranks
        except Exception:
            block()
    dist.all_gather([torch.ones(1) for _ in range(SIZE)], torch.ones(1))


def logs_an_error(rank: int) -> None:
    dist = meet()
    reduce(dist)
    if rank == ABSENT:
        try:
            fail()
        except TypeError:
            logging.getLogger("program").exception("went wrong")
            block()
    reduce(dist)


def loses_a_thread(rank: int) -> None:
    dist = meet()
    reduce(dist)
    if rank == ABSENT:
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        block()
    reduce(dist)


def is_killed(rank: int) -> None:
    dist = meet()
    reduce(dist)
    if rank == ABSENT:
        block()
    dist.distributed_c10d._get_default_store().get("nobody")


def keeps_a_lost_connection(rank: int) -> None:
    dist = meet()
    reduce(dist)
    if rank == ABSENT:
        side = socket.create_connection(("127.0.0.1", int(os.environ["SIDE"])))
        block()
        side.close()
    reduce(dist)


class Job:
    """Ranks of one job, killed at the end."""

    def __init__(self, function: str, rings: Path, **environment: str) -> None:
        os.mkfifo(rings / "store.pipe")
        self.rings = rings
        shared = {
            "WORLD_SIZE": str(SIZE),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "MEETING_POINT": str(rings / "store"),
            "NCCLSCOPE_DIR": str(rings),
            "TORCHELASTIC_RUN_ID": "",
            **environment,
        }
        self.processes = [
            start(__file__, function, {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(SIZE)
        ]

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_exception: object) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.communicate()

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self.processes)

    def run(self) -> Run | None:
        try:
            return open_run(self.rings)
        except NcclscopeError:
            return None

    def wait_until(self, come: Callable[[Ranks], bool]) -> None:
        """Wait until the ranks' records are as asked for."""
        deadline = time.monotonic() + DEADLINE
        while (run := self.run()) is None or not come(run.by_rank):
            assert time.monotonic() < deadline, "the ranks do not come to where they wait"
            time.sleep(0.05)

    def verdict(self) -> Verdict:
        """Return the verdict once it is a hang."""
        deadline = time.monotonic() + DEADLINE
        while True:
            run = self.run()
            assert run is not None
            found = diagnose(run, live_stall_seconds=STALL, stall_seconds=STALL)
            if found.status == "hung" or time.monotonic() > deadline:
                return found
            time.sleep(0.1)


def lasts(name: str, *ranks: int) -> Callable[[Ranks], bool]:
    def come(found: Ranks) -> bool:
        return all(
            rank in found
            and (one := found[rank].activities.get(name)) is not None
            and one.until_ns is None
            for rank in ranks
        )

    return come


def has(name: str, rank: int) -> Callable[[Ranks], bool]:
    return lambda found: rank in found and name in found[rank].activities


def wait_for(detail: str, *ranks: int) -> Callable[[Ranks], bool]:
    """Return whether ranks wait at the store for this, and no longer for what joining wants."""
    return lambda found: (
        lasts("store_wait", *ranks)(found)
        and all(found[rank].activities["store_wait"].detail == detail for rank in ranks)
    )


def cause_of(verdict: Verdict) -> Any:
    assert verdict.status == "hung", verdict.summary
    assert verdict.cause is not None
    return verdict.cause


# --- before the first call --------------------------------------------------------------------


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job in which one rank has not come to the rendezvous for long enough to be a hang."""
    with Job("comes_late", tmp_path_factory.mktemp("late")) as job:
        job.wait_until(lasts("init_process_group", 0, 1, 2))
        job.verdict()
        yield job


def test_rank_that_never_comes_to_the_rendezvous_is_named(late: Job) -> None:
    verdict = late.verdict()

    cause = cause_of(verdict)
    assert (cause.kind, cause.diverging_ranks, cause.confidence) == ("init_stalled", (3,), "likely")
    assert "not come to init_process_group (gloo at test_startup.py:" in cause.summary
    assert "rank 3 left no record" in cause.summary
    assert cause.awaited == f"127.0.0.1:{cause.awaited.partition(':')[2]}"
    assert any("timeout of 300 s" in line for line in cause.evidence)
    ranks = verdict.run.by_rank
    assert {ranks[n].world_size for n in ranks} == {SIZE}


def test_store_that_was_never_started_is_named(rings: Path) -> None:
    with Job("serves_no_store", rings) as job:
        job.wait_until(lasts("store_wait", 1, 2, 3))
        cause = cause_of(job.verdict())

    assert (cause.kind, cause.diverging_ranks) == ("init_stalled", (0,))
    assert any("waited to connect to the store at 127.0.0.1:" in line for line in cause.evidence)


def test_ranks_that_are_not_yet_there_are_not_blamed_where_they_are_most(rings: Path) -> None:
    with Job("starts_alone", rings) as job:
        job.wait_until(lasts("init_process_group", 0))
        cause = cause_of(job.verdict())

    assert (cause.diverging_ranks, cause.candidate_ranks) == ((), (1, 2, 3))
    assert cause.confidence == "ambiguous"


def test_a_rendezvous_is_no_alarm_while_it_is_young(late: Job) -> None:
    run = late.run()
    assert run is not None
    verdict = diagnose(run, live_stall_seconds=1e6)

    assert verdict.cause is None
    assert verdict.status == "unknown"


def test_stack_of_the_missing_rank_is_in_the_verdict(late: Job) -> None:
    seen = sample_job(Options(pids=late.pids, gap=1.0))
    verdict = diagnose(seen.run, live_stall_seconds=STALL)

    cause = cause_of(verdict)
    assert (cause.kind, cause.diverging_ranks) == ("init_stalled", (3,))
    assert "rank 3 is at test_startup.py:" in cause.summary
    assert " block" in cause.summary


def test_rank_that_meets_at_another_address_is_named(rings: Path) -> None:
    with Job("meets_elsewhere", rings, OTHER_PORT=(other := str(free_port()))) as job:
        job.wait_until(lasts("init_process_group", 0, 1, 2, 3))
        job.wait_until(lambda found: all("store_place" in found[n].activities for n in found))
        cause = cause_of(job.verdict())

    assert (cause.kind, cause.diverging_ranks) == ("init_stalled", (3,))
    assert f"Rank 3 has the store's address 127.0.0.1:{other}, ranks 0-2 have " in cause.summary


def test_rank_with_another_world_size_is_named_and_no_rank_is_missed(rings: Path) -> None:
    with Job("expects_another", rings) as job:
        job.wait_until(lasts("init_process_group", 0, 1, 2, 3))
        cause = cause_of(job.verdict())

    assert (cause.kind, cause.diverging_ranks) == ("init_stalled", (0,))
    assert "Rank 0 has world size 5, ranks 1-3 have 4" in cause.summary


def test_rank_that_was_started_twice_is_named(rings: Path) -> None:
    with Job("is_there_twice", rings) as job:

        def come(_found: Ranks) -> bool:
            return len([*rings.glob("*.ring")]) == SIZE and all(
                lasts("init_process_group", n)(_found) for n in range(ABSENT)
            )

        job.wait_until(come)
        cause = cause_of(job.verdict())
        pids = sorted(job.pids[2:])

    assert (cause.kind, cause.diverging_ranks) == ("init_stalled", (2,))
    assert "2 processes have rank 2 (pids " in cause.summary
    assert all(str(pid) in cause.summary for pid in pids)
    assert "and none has rank 3: ranks 0-2 wait in init_process_group" in cause.summary


@pytest.mark.slow
def test_rank_is_named_after_all_have_given_up(rings: Path) -> None:
    with Job("gives_up_elsewhere", rings, OTHER_PORT=str(free_port())) as job:
        for process in job.processes:
            process.wait(DEADLINE)
        run = job.run()
        assert run is not None
        cause = cause_of(diagnose(run))

    assert (cause.kind, cause.diverging_ranks) == ("init_stalled", (3,))
    assert "Rank 3 has the store's address 127.0.0.1:" in cause.summary
    assert "ranks 0-3 waited in init_process_group" in cause.summary
    assert any("its timeout of 5 s ended the wait" in line for line in cause.evidence)
    assert any("ended with DistStoreError: " in line for line in cause.evidence)


def test_key_that_waiting_ranks_lack_is_named_beside_the_rank_that_went_on(rings: Path) -> None:
    with Job("sets_another_key", rings) as job:
        job.wait_until(wait_for("get weights", 1, 2, 3))
        cause = cause_of(job.verdict())

    assert (cause.kind, cause.diverging_ranks) == ("extra_call", (0,))
    assert "they wait at the store for key 'weights' (get) for" in cause.summary
    assert "the last key that rank 0 set is 'weight'" in cause.evidence
    assert cause.awaited == "weights"


def test_a_rank_that_waits_for_a_key_of_those_that_wait_for_it_is_not_blamed(rings: Path) -> None:
    with Job("waits_for_a_key_of_a_rank_that_went_on", rings) as job:
        job.wait_until(wait_for("get weights", ABSENT))
        cause = cause_of(job.verdict())

    assert (cause.kind, cause.diverging_ranks) == ("not_joined", ())
    assert cause.candidate_ranks == (0, 1, 2, 3)
    assert "it has waited at the store for key 'weights' (get)" in cause.summary
    assert "the last key that rank 0 set is 'weight'" in cause.evidence
    assert cause.awaited == "weights"


def test_key_that_one_rank_has_not_set_is_named(rings: Path) -> None:
    with Job("sets_no_key", rings) as job:
        job.wait_until(wait_for("wait weights", 0, 1, 2))
        cause = cause_of(job.verdict())

    assert (cause.kind, cause.diverging_ranks) == ("init_stalled", (3,))
    assert cause.awaited == "weights"
    assert "ranks 0-2 wait at the store for key 'weights' (wait)" in cause.summary.lower()
    assert cause.to_dict()["awaited"] == "weights"
    assert any("timeout of 200 s" in line for line in cause.evidence)


def test_all_that_wait_for_a_key_are_candidates(rings: Path) -> None:
    with Job("all_wait_for_a_key", rings) as job:
        job.wait_until(wait_for("get nobody", 0, 1, 2, 3))
        cause = cause_of(job.verdict())

    assert (cause.kind, cause.diverging_ranks) == ("init_stalled", ())
    assert cause.candidate_ranks == (0, 1, 2, 3)
    assert "key 'nobody'" in cause.summary


def test_a_wait_in_slices_counts_from_its_beginning(rings: Path) -> None:
    with Job("polls_in_slices", rings) as job:
        job.wait_until(wait_for("wait weights", 0))
        run = job.run()
        assert run is not None
        since = run.by_rank[0].activities["store_wait"].since_ns
        job.wait_until(lambda found: found[0].activities["store_wait"].count > 10)
        run = job.run()
        assert run is not None
        assert run.by_rank[0].activities["store_wait"].since_ns == since


def test_rank_that_does_not_count_itself_at_the_store_is_named(rings: Path) -> None:
    with Job("counts_at_the_store", rings) as job:
        job.wait_until(wait_for("get ready", 0))
        cause = cause_of(job.verdict())

    assert (cause.kind, cause.diverging_ranks) == ("init_stalled", (3,))
    assert "wait at the store for key 'ready' (get) for" in cause.summary


# --- between two calls ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "activity", "words"),
    [
        ("compiles", "compile", "it has been in torch.compile of double (test_startup.py:"),
        ("loads", "load", "it has been in torch.load at test_startup.py:"),
    ],
)
def test_what_keeps_a_rank_from_the_call_is_named(
    rings: Path, function: str, activity: str, words: str
) -> None:
    with Job(function, rings) as job:
        job.wait_until(lasts(activity, ABSENT))
        cause = cause_of(job.verdict())

    assert (cause.kind, cause.diverging_ranks) == ("not_joined", (3,))
    assert words in cause.summary
    assert any("timeout for calls on world" in line and "300 s" in line for line in cause.evidence)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("fails_in_a_call", "TypeError at test_startup.py:{} fails_in_a_call"),
        ("logs_an_error", "TypeError at test_startup.py:{} fail "),
        ("loses_a_thread", "a thread of it ended with TypeError at test_startup.py:{} fail"),
    ],
)
def test_exception_of_the_rank_is_named_by_type_and_line(
    rings: Path, function: str, words: str
) -> None:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    marks = {"fails_in_a_call": '"no tensor"'}
    mark = marks.get(function, "None + 1  #")
    number = next(at for at, line in enumerate(lines, 1) if mark in line)
    with Job(function, rings) as job:
        job.wait_until(has("raised", ABSENT))
        cause = cause_of(job.verdict())

    assert (cause.kind, cause.diverging_ranks) == ("not_joined", (3,))
    assert words.format(number) in cause.summary
    assert "unsupported operand" not in str(cause.to_dict())


def test_exception_of_a_posted_call_is_evidence(rings: Path) -> None:
    with Job("fails_in_a_posted_call", rings) as job:
        job.wait_until(has("raised", ABSENT))
        run = job.run()

    assert run is not None
    raised = run.by_rank[ABSENT].activities["raised"]
    assert "test_startup.py:" in str(raised.detail)
    assert str(raised.detail).endswith("fails_in_a_posted_call")


# --- death from outside -----------------------------------------------------------------------


@pytest.mark.slow
def test_rank_that_the_kernel_killed_for_memory(rings: Path, tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    with Job("is_killed", rings) as job:
        job.wait_until(wait_for("get nobody", 0, 1, 2))
        pid = job.pids[ABSENT]
        os.kill(pid, signal.SIGKILL)
        job.processes[ABSENT].wait()
        log.write_text(
            f"3,1200,{time.monotonic_ns() // 1000},-;Out of memory: Killed process {pid} (python3) "
            f"total-vm:8131148kB, anon-rss:7829420kB, file-rss:0kB, shmem-rss:0kB, UID:1000 "
            f"pgtables:15612kB oom_score_adj:0\n"
        )
        job.verdict()
        run = job.run()
        assert run is not None
        recorded = diagnose(with_kernel_log(run, log), live_stall_seconds=STALL)
        seen = sample_job(Options(pids=job.pids[:ABSENT], gap=1.0, kernel_log=log))
        attached = diagnose(seen.run, live_stall_seconds=STALL)

    for verdict in (recorded, attached):
        cause = cause_of(verdict)
        assert (cause.kind, cause.diverging_ranks) == ("dead_rank", (3,))
        assert "The kernel killed rank 3 for memory (python3, 7.8 GB resident)." in cause.summary
    (source,) = [one for one in attached.evidence if one.name == "kernel log"]
    assert source.available
    assert f"pid {pid}" in source.says


@pytest.mark.slow
def test_connection_to_a_process_that_has_ended_is_a_data_source(rings: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with Job("keeps_a_lost_connection", rings, SIDE=str(port)) as job:
            connection, _ = server.accept()
            connection.close()
            server.close()
            job.wait_until(
                lambda found: all(
                    n in found and any(log.calls == 2 for log in found[n].logs.values())
                    for n in range(ABSENT)
                )
            )
            job.verdict()  # they have waited for long enough
            seen = sample_job(Options(pids=job.pids, gap=1.0))
            verdict = diagnose(seen.run, live_stall_seconds=STALL)

    cause = cause_of(verdict)
    line = f"127.0.0.1:{port} has closed the connection, and nothing listens there"
    assert f"sockets: rank 3: {line}" in cause.evidence
    (source,) = [one for one in verdict.evidence if one.name == "sockets"]
    assert line in source.says


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main(globals())
