"""Directories that hold more than one run, and runs that hold more than one of each rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ncclscope import Run, diagnose, open_run
from ncclscope.readers.jsonl import write_trace
from ncclscope.ring import layout
from ncclscope.wording.names import rank_text
from tests.support.rings import fill, put_word, read, tracer_in

SECOND = 1_000_000_000
NOW = 2_000_000_000 * SECOND


def ring(
    directory: Path,
    rank: int,
    key: str = "k",
    *,
    ranks: tuple[int, ...] = (0, 1),
    began: float = 0,
    ended: float = 10,
    calls: int = 3,
    **details: Any,
) -> None:
    """Leave a ring of a process that lived from one second to another."""
    labels = details.pop("labels", {})
    details = {"host": "h", "boot_id": "", "started_ns": NOW + int(began * SECOND), **details}
    tracer = tracer_in(directory, rank=rank, world_size=len(ranks), labels=labels, details=details)
    if calls:
        fill(tracer, tracer.communicator(key, "tp:0", ranks), 1, calls + 1)
    tracer.close()
    put_word(tracer.path, layout.HEADER_HEARTBEAT, NOW + int(ended * SECOND))


def keys(run: Run) -> dict[int, list[str]]:
    return {rank.rank: sorted(rank.logs) for rank in run.ranks}


def test_of_several_runs_the_newest_is_read(tmp_path: Path) -> None:
    for run, began in (("one", 0), ("three", 60), ("two", 30)):
        for rank in range(2):
            ring(tmp_path, rank, f"k-{run}", began=began, ended=began + 10, run=run)
    ring(tmp_path, 0, "k-none", began=20, ended=25)

    run = open_run(tmp_path)

    assert keys(run) == {0: ["k-three"], 1: ["k-three"]}
    assert run.expected == 2
    assert run.notes == ("5 rings of 3 earlier runs left out",)


def test_a_job_that_was_started_on_each_node_by_itself_is_one_run(tmp_path: Path) -> None:
    for rank in range(3):
        ring(tmp_path, rank, ranks=(0, 1, 2), run=f"node {rank}", began=rank, ended=20 + rank)
        ring(tmp_path, rank, "old", ranks=(0, 1, 2), run=f"earlier {rank}", began=-30, ended=-9)

    run = open_run(tmp_path)

    assert keys(run) == {0: ["k"], 1: ["k"], 2: ["k"]}
    assert run.notes == (
        "3 runs are treated as one job: they share communicators or ran at the same time, with "
        "different ranks of the same world size",
        "3 rings of 3 earlier runs left out",
    )


def test_a_node_whose_clock_was_set_back_an_hour_is_part_of_the_job(tmp_path: Path) -> None:
    ring(tmp_path, 0, run="node 0", began=1, ended=20)
    ring(tmp_path, 1, run="node 1", began=0, ended=-3590)

    assert keys(open_run(tmp_path)) == {0: ["k"], 1: ["k"]}


def test_hosts_whose_clocks_differ_are_one_job_if_they_share_a_communicator(tmp_path: Path) -> None:
    ring(tmp_path, 0, run="node 0", host="a")
    ring(tmp_path, 1, run="node 1", host="b", began=-3600, ended=-3590)

    run = open_run(tmp_path)

    assert keys(run) == {0: ["k"], 1: ["k"]}
    assert len(run.notes) == 1
    assert "share communicators" in run.notes[0]


@pytest.mark.parametrize(
    ("other", "is_beside"),
    [
        ({"began": -20, "ended": -1}, False),  # it had ended
        ({"rank": 1, "ended": 3}, False),  # it ended long before the newest
        ({"rank": 1, "began": 12, "ended": 17}, False),  # and shortly before it began
        ({"rank": 1}, True),  # it has a rank of the newest
        ({"ranks": (0, 1, 2)}, True),  # it was larger
    ],
    ids=["earlier", "restarted", "one after the other", "same rank", "other size"],
)
def test_another_run_is_not_taken_for_a_part(
    tmp_path: Path, other: dict[str, Any], is_beside: bool
) -> None:
    ring(tmp_path, 1, run="new", began=18, ended=20)
    ring(tmp_path, **{"rank": 0, "key": "k-other", "run": "other", "ended": 20, **other})

    run = open_run(tmp_path)

    assert keys(run) == {1: ["k"]}
    assert [(one.beside, [*keys(one).values()]) for one in run.linked] == (
        [(True, [["k-other"]])] if is_beside else []
    )
    left_out = "1 ring of 1 earlier run left out"
    beside = "2 jobs recorded here at the same time; each is judged for itself"
    assert run.notes == (beside if is_beside else left_out,)


def test_an_older_job_that_hangs_beside_the_newest_one_is_the_verdict(tmp_path: Path) -> None:
    for rank in range(2):
        ring(tmp_path, rank, run="new", began=1, ended=60, pid=10 + rank)
        calls = 3 - rank
        ring(tmp_path, rank, "other", run="old", began=0, ended=60, pid=20 + rank, calls=calls)

    verdict = diagnose(open_run(tmp_path))

    assert (verdict.status, verdict.summary[:22]) == ("hung", "Job of pids 20 21: Ran")
    assert any("a job of pids 10 11 ran at the same time" in note for note in verdict.run.notes)


def test_rings_of_one_run_need_no_identifier(tmp_path: Path) -> None:
    for rank in range(3):
        ring(tmp_path, rank, ranks=(0, 1, 2))
    run = open_run(tmp_path)
    assert keys(run) == {0: ["k"], 1: ["k"], 2: ["k"]}
    assert run.notes == ()


def test_traces_without_a_run_stay_with_the_newest(tmp_path: Path) -> None:
    ring(tmp_path, 0, run="old", began=-50, ended=-40)
    ring(tmp_path, 0, run="new")
    lines = [{"ncclscope_trace": 1, "rank": 1, "host": "other"}, {"call": "barrier", "comm": "k"}]
    (tmp_path / "rank1.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")

    run = open_run(tmp_path)

    assert keys(run) == {0: ["k"], 1: ["k"]}
    assert run.notes == ("1 ring of 1 earlier run left out",)


def test_a_trace_remembers_its_run(tmp_path: Path) -> None:
    ring(tmp_path / "old", 0, run="old", began=-50, ended=-40)
    ring(tmp_path / "new", 0, run="new")
    write_trace(read(tmp_path / "old"), tmp_path / "new" / "old.jsonl")
    run = open_run(tmp_path / "new")
    assert [rank.details["run"] for rank in run.ranks] == ["new"]


@pytest.mark.parametrize("order", [1, -1])
def test_of_earlier_processes_with_the_same_rank_the_latest_is_kept(
    tmp_path: Path, order: int
) -> None:
    lives = [(0, 9), (10, 19), (20, 29)]
    for number, (began, ended) in list(enumerate(lives))[::order]:
        for rank in range(2):
            ring(tmp_path, rank, f"k{number}", began=began, ended=ended)

    run = open_run(tmp_path)

    assert keys(run) == {0: ["k2"], 1: ["k2"]}
    assert run.notes == ("4 rings of earlier processes with the same rank left out",)


def test_a_job_beside_another_is_whole_though_one_rank_ended_before_the_others_began(
    tmp_path: Path,
) -> None:
    for rank, (began, ended) in enumerate([(0, 3), (2, 9)]):
        ring(tmp_path, rank, "trainer", began=began, ended=ended, pid=1 + rank)
    for rank, (began, ended) in enumerate([(4, 9), (1, 9)]):
        ring(tmp_path, rank, "rollout", began=began, ended=ended, pid=5 + rank)

    run = open_run(tmp_path)

    assert run.missing == ()
    assert sorted(key for own in keys(run).values() for key in own) == [
        *("rollout", "rollout", "trainer", "trainer"),
    ]


def test_replicas_that_live_at_the_same_time_get_numbers_of_their_own(tmp_path: Path) -> None:
    for replica in (1, 0):
        for rank in range(2):
            labels = {"dp": str(replica)}
            ring(tmp_path, rank, f"k{replica}", labels=labels, pid=100 - replica, began=rank)

    run = open_run(tmp_path)

    assert keys(run) == {0: ["k0"], 1: ["k0"], 2: ["k1"], 3: ["k1"]}
    assert {key: comm.ranks for key, comm in run.communicators.items()} == {
        "k0": (0, 1),
        "k1": (2, 3),
    }
    assert {rank.logs[key].communicator.ranks for rank in run.ranks for key in rank.logs} == {
        (0, 1),
        (2, 3),
    }
    assert (run.expected, run.missing) == (4, ())
    assert run.notes == (
        "2 processes share each rank number: the ranks of replica n are numbered from n x 2",
    )
    assert run.ranks[2].logs["k1"].call(2).seq == 2
    assert [rank_text(run, number) for number in (1, 3)] == [
        f"rank 1 ({run.ranks[1].host}, pid 100)",
        f"rank 3 ({run.ranks[3].host}, pid 99, rank 1 of its own job)",
    ]


@pytest.mark.parametrize("second", [7, 8])
def test_a_process_that_executes_its_program_anew_is_one_rank(tmp_path: Path, second: int) -> None:
    """As by ``os.execv`` after an exception; another process has other start ticks."""
    for rank in range(2):
        ring(tmp_path, rank, pid=100 + rank, start_ticks=7, ended=4.0 if rank else 20.0)
    ring(tmp_path, 1, pid=101, start_ticks=second, began=5.0, ended=20.0, calls=0)

    run = open_run(tmp_path)

    if second != 7:
        assert len(run.ranks) == 3
        return
    assert (keys(run), run.missing) == ({0: ["k"], 1: ["k"]}, ())
    assert run.ranks[1].logs["k"].calls == 3
    assert run.ranks[1].last_seen_ns == NOW + 20 * SECOND
    assert "rank 1 (pid 101) executed its program anew" in run.notes[0]


def test_replicas_are_distinguished_by_their_communicators(tmp_path: Path) -> None:
    # The order of pids is another for each rank, as it is when workers are started at once.
    for key, pids in (("ka", (10, 40)), ("kb", (20, 30))):
        for rank in range(2):
            ring(tmp_path, rank, key, pid=pids[rank])

    run = open_run(tmp_path)

    assert keys(run) == {0: ["ka"], 1: ["ka"], 2: ["kb"], 3: ["kb"]}
    assert run.communicators["kb"].ranks == (2, 3)
    assert [rank.pid for rank in run.ranks] == [10, 40, 20, 30]


def test_ten_replicas_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for replica in range(11):
        ring(tmp_path, 0, f"k{replica}", ranks=(0,), labels={"dp": str(replica)}, pid=99 - replica)
    run = open_run(tmp_path)
    assert keys(run) == {replica: [f"k{replica}"] for replica in range(11)}


def test_a_replica_of_which_a_rank_is_missing(tmp_path: Path) -> None:
    ring(tmp_path, 0, "ka", pid=1)
    ring(tmp_path, 1, "ka", pid=2)
    ring(tmp_path, 1, "kb", pid=3)
    run = open_run(tmp_path)
    assert keys(run) == {0: ["ka"], 1: ["ka"], 3: ["kb"]}
    assert run.missing == (2,)


def test_replicas_whose_keys_are_all_alike_are_distinguished_by_their_order(tmp_path: Path) -> None:
    for replica in range(2):
        for rank in range(2):
            ring(tmp_path, rank, "tp:0", pid=10 * replica + rank, labels={"dp": str(replica)})
    run = open_run(tmp_path)
    assert [rank.pid for rank in run.ranks] == [0, 1, 10, 11]


def test_a_restarted_replica_is_not_a_third(tmp_path: Path) -> None:
    ring(tmp_path, 0, "kb", ranks=(0,), pid=2, began=5, ended=100)
    ring(tmp_path, 0, "ka-old", ranks=(0,), pid=1, began=0, ended=20)
    ring(tmp_path, 0, "ka-new", ranks=(0,), pid=3, began=30, ended=100)
    run = open_run(tmp_path)
    assert keys(run) == {0: ["kb"], 1: ["ka-new"]}
    assert "1 ring of earlier processes with the same rank left out" in run.notes


@pytest.mark.parametrize("timed", [True, False])
def test_traces_of_replicas(tmp_path: Path, timed: bool) -> None:
    for replica in range(2):
        for rank in range(2):
            header = {"ncclscope_trace": 1, "rank": rank, "world_size": 2, "pid": replica + 1}
            lines = [header, {"comm": f"k{replica}", "ranks": [0, 1]}]
            for number in range(3):
                time = {"t_ns": NOW + number * SECOND + rank} if timed else {}
                lines.append({"call": "barrier", "comm": f"k{replica}", **time})
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (tmp_path / f"{replica}-{rank}.jsonl").write_text(text)
    assert keys(open_run(tmp_path)) == {0: ["k0"], 1: ["k0"], 2: ["k1"], 3: ["k1"]}


def test_traces_of_one_run_after_the_other(tmp_path: Path) -> None:
    for run in range(2):
        lines: list[dict[str, Any]] = [{"ncclscope_trace": 1, "rank": 0}]
        lines += [
            {"call": "barrier", "comm": f"k{run}", "t_ns": NOW + (100 * run + number) * SECOND}
            for number in range(5)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"{run}.jsonl").write_text(text)
    assert keys(open_run(tmp_path)) == {0: ["k1"]}


def test_processes_without_a_rank_are_others_unless_they_share_a_communicator(
    tmp_path: Path,
) -> None:
    ring(tmp_path, 0)
    ring(tmp_path, -1, "queue", pid=5)
    ring(tmp_path, -1, "another", pid=6)
    run = open_run(tmp_path)
    assert keys(run) == {0: ["k"]}
    assert [rank.pid for rank in run.others] == [5, 6]
    assert list(run.communicators) == ["k"]


def test_the_same_file_twice_is_one_process(tmp_path: Path) -> None:
    ring(tmp_path / "rings", 0)
    (path,) = (tmp_path / "rings").iterdir()
    (tmp_path / "rings" / "h-1-1.ring.moved").write_text(f"{path}\n")
    run = open_run(path, tmp_path / "rings", tmp_path)
    assert keys(run) == {0: ["k"]}
    assert len(run.sources) == 3


def test_directories_below_are_read_too(tmp_path: Path) -> None:
    ring(tmp_path / "node0", 0)
    ring(tmp_path / "node1" / "deep", 1)
    assert keys(open_run(tmp_path)) == {0: ["k"], 1: ["k"]}
    assert keys(open_run(tmp_path / "node0", tmp_path / "node1")) == {0: ["k"], 1: ["k"]}


def test_members_that_knew_less_do_not_make_others_forget(tmp_path: Path) -> None:
    for rank, (label, ranks) in enumerate([("", (0,)), ("tp:0", (0, 1)), ("", ())]):
        tracer = tracer_in(tmp_path, rank=rank, world_size=3)
        tracer.record(tracer.communicator("k", label, ranks), "barrier")
    run = open_run(tmp_path)
    assert (run.communicators["k"].label, run.communicators["k"].ranks) == ("tp:0", (0, 1))


def test_replicas_whose_keys_are_alike_keep_their_communicators_apart(tmp_path: Path) -> None:
    """As of two jobs that one command starts, each over a file of its own."""
    for pid, rank, parent, calls in ((11, 0, 1, 4), (12, 0, 2, 4), (13, 1, 1, 3), (14, 1, 2, 3)):
        ring(tmp_path, rank, "same", calls=calls, pid=pid, parent=parent)

    run = open_run(tmp_path)

    assert keys(run) == {0: ["same"], 1: ["same"], 2: ["same/replica-1"], 3: ["same/replica-1"]}
    assert {rank.rank: rank.pid for rank in run.ranks} == {0: 11, 1: 13, 2: 12, 3: 14}
    assert {key: comm.ranks for key, comm in run.communicators.items()} == {
        "same": (0, 1),
        "same/replica-1": (2, 3),
    }
    last = run.by_rank[3].last_call()
    assert last is not None
    assert last.comm == "same/replica-1"
    assert diagnose(run).status != "ok"
