"""Flight Recorder dumps: what proves a hang, what is a snapshot, and calls of two sides."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.model import Finding
from ncclscope.readers import open_run
from tests.support.dumps import Job, history

WORLD = [0, 1, 2, 3]
MINUTE_NS = 60 * 10**9
TIMEOUT_NS = 10 * MINUTE_NS
"""Timeout of the entries."""


def cause_of(verdict: Verdict) -> Finding:
    assert verdict.cause is not None
    return verdict.cause


# --- a call that all have posted ----------------------------------------------------------------


def late(job: Job, rank: int, age_ns: int) -> int:
    """Return a time so long after the last call of a rank."""
    created: int = job.entries[rank][-1]["time_created_ns"]
    return created + age_ns


def test_a_common_call_that_one_watchdog_gave_up_is_stalled(tmp_path: Path) -> None:
    job = Job(4)
    history(job)
    job.post(WORLD, state="started")
    job.entries[2][-1]["retired"] = True
    verdict = job.verdict(tmp_path)
    cause = cause_of(verdict)
    assert (verdict.status, cause.kind, cause.seq) == ("hung", "stalled", 5)
    assert (cause.diverging_ranks, cause.candidate_ranks) == ((), (0, 1, 2, 3))


def test_a_time_stamp_after_the_timeout_proves_that_it_was_exceeded(tmp_path: Path) -> None:
    job = Job(4, {"1": ("tp", [0, 1])})
    history(job)
    job.post(WORLD, state="scheduled")
    stamp = late(job, 1, TIMEOUT_NS)
    job.post([0, 1], group="1", time_created_ns=stamp, time_discovered_completed_ns=stamp)
    cause = cause_of(job.verdict(tmp_path))
    assert (cause.kind, cause.seq, cause.candidate_ranks) == ("stalled", 5, (0, 1, 2, 3))


def test_a_time_stamp_before_the_timeout_proves_nothing(tmp_path: Path) -> None:
    job = Job(4)
    history(job)
    job.post(WORLD, state="started")
    job.entries[1][-1]["time_discovered_started_ns"] = late(job, 1, TIMEOUT_NS - 1)
    cause = cause_of(job.verdict(tmp_path))
    assert not any("timeout" in line for line in cause.evidence)


def test_a_common_call_that_was_started_long_before_the_dumps_hangs(tmp_path: Path) -> None:
    job = Job(4)
    history(job)
    job.post(WORLD, state="started")
    cause = cause_of(job.verdict(tmp_path))
    assert (cause.kind, cause.candidate_ranks) == ("stalled", (0, 1, 2, 3))
    assert cause.confidence == "likely"


def test_a_common_call_that_was_only_scheduled_may_be_under_way(tmp_path: Path) -> None:
    job = Job(4)
    history(job)
    job.post(WORLD, state="scheduled")
    assert job.verdict(tmp_path).status == "unknown"


def test_gloo_retires_what_has_completed_and_never_stalls(tmp_path: Path) -> None:
    job = Job(4, backend="gloo")
    for number in range(4):
        job.post(WORLD, ins=[[number + 1]], state="scheduled", retired=True)
    assert job.verdict(tmp_path).status == "ok"


def test_a_first_call_on_gloo_of_which_no_end_is_shown_may_hang(tmp_path: Path) -> None:
    """Each rank may have passed another root, which no dump shows."""
    job = Job(4, backend="gloo")
    job.post(WORLD, "broadcast", state="scheduled")
    assert diagnose(open_run(dated(job.write(tmp_path), job, 10 * MINUTE_NS))).status == "unknown"


# --- snapshots of running jobs ------------------------------------------------------------------


def dated(directory: Path, job: Job, age_ns: int) -> Path:
    """Make files as old as if they had been written so long after the last call."""
    for rank in range(len(job.entries)):
        stamp = late(job, rank, age_ns)
        os.utime(directory / f"comm_lib_trace_rank_{rank}", ns=(stamp, stamp))
    return directory


def behind(job: Job) -> None:
    """One rank has not come to the last call yet."""
    job.post(WORLD)
    job.post([0, 2, 3], state="scheduled")


@pytest.mark.parametrize(
    ("age_ns", "status"), [(-2 * 10**6, "ok"), (10**8, "ok"), (10 * MINUTE_NS, "hung")]
)
def test_a_file_written_right_after_a_call_is_a_snapshot(
    tmp_path: Path, age_ns: int, status: str
) -> None:
    job = Job(4)
    history(job)
    behind(job)
    assert diagnose(open_run(dated(job.write(tmp_path), job, age_ns))).status == status


@pytest.mark.parametrize(("age_ns", "status"), [(10**7, "ok"), (10 * MINUTE_NS, "hung")])
def test_ranks_that_have_just_posted_calls_in_another_order_may_post_the_rest(
    tmp_path: Path, age_ns: int, status: str
) -> None:
    """A host goes on while its call is pending, or another thread of it posts the rest."""
    job = Job(4, {"1": ("tp", [0, 1])})
    job.post([0, 2, 3], state="scheduled")
    job.post([1], group="1", state="scheduled")
    assert diagnose(open_run(dated(job.write(tmp_path), job, age_ns))).status == status


@pytest.mark.parametrize(("age_ns", "status"), [(15 * 10**8, "ok"), (6 * 10**9, "hung")])
def test_what_is_right_after_depends_on_how_often_calls_are_made(
    tmp_path: Path, age_ns: int, status: str
) -> None:
    job = Job(4, backend="gloo")
    for number in range(4):
        created = 10**18 + number * 10**9
        job.post(WORLD, state="scheduled", retired=True, time_created_ns=created)
    job.post([0, 2, 3], state="scheduled", time_created_ns=10**18 + 4 * 10**9)
    directory = dated(job.write(tmp_path), job, age_ns)
    assert diagnose(open_run(directory)).status == status


def test_a_snapshot_with_a_lost_dump_is_incomplete(tmp_path: Path) -> None:
    job = Job(4)
    history(job)
    job.post(WORLD, state="scheduled")
    directory = dated(job.write(tmp_path), job, 10**7)
    (directory / "comm_lib_trace_rank_1").unlink()
    assert diagnose(open_run(directory)).status == "incomplete"


def test_files_older_than_their_calls_say_nothing(tmp_path: Path) -> None:
    """The clock was set, or an archive keeps other times; a tick of the clock is no such thing."""
    job = Job(4)
    history(job)
    behind(job)
    assert diagnose(open_run(dated(job.write(tmp_path), job, -MINUTE_NS))).status == "hung"


@pytest.mark.parametrize(("op", "status"), [("broadcast", "hung"), ("all_reduce", "unknown")])
def test_a_root_may_have_done_what_its_peers_have_not_posted(
    tmp_path: Path, op: str, status: str
) -> None:
    """As vLLM dispatches. Where it is another operation, the dumps are of different moments."""
    job = Job(4, {"1": ("dp", [0, 1]), "2": ("dp", [2, 3])})
    history(job)
    for rank in (0, 1, 2):
        job.post([rank], op, group=str(1 + rank // 2))
        job.post([rank], "all_reduce", group=str(1 + rank // 2), state="scheduled")
    job.post([0, 1], state="scheduled")
    verdict = job.verdict(tmp_path)

    assert verdict.status == status
    if status == "hung":
        assert (cause_of(verdict).kind, cause_of(verdict).diverging_ranks) == ("not_joined", (3,))


@pytest.mark.parametrize("late", [True, False])
def test_a_lost_dump_says_less_than_a_rank_that_is_late(tmp_path: Path, late: bool) -> None:
    """Rank 1 waits for rank 0, which left no dump, and rank 2 for rank 3."""
    job = Job(4, {"1": ("tp", [0, 1]), "2": ("tp", [2, 3])})
    history(job)
    job.post([1], group="1", state="scheduled")
    job.post([2] if late else [2, 3], group="2", state="scheduled" if late else "completed")
    directory = job.write(tmp_path)
    (directory / "comm_lib_trace_rank_0").unlink()
    cause = cause_of(diagnose(open_run(directory)))

    # Of a pair nobody is singled out by numbers.
    named = ("not_joined", (), (2, 3)) if late else ("dead_rank", (0,), ())
    assert (cause.kind, cause.diverging_ranks, cause.candidate_ranks) == named
    if not late:
        assert cause.summary.startswith("Rank 0 is dead, gone or stuck (it left no dump);")


def test_of_several_lost_dumps_none_is_singled_out(tmp_path: Path) -> None:
    """Rank 1 waits for rank 0, but what rank 3 does is not known either."""
    job = Job(4, {"1": ("tp", [0, 1])})
    history(job)
    job.post([1], group="1", state="scheduled")
    directory = job.write(tmp_path)
    for rank in (0, 3):
        (directory / f"comm_lib_trace_rank_{rank}").unlink()
    cause = cause_of(diagnose(open_run(directory)))

    assert (cause.kind, cause.diverging_ranks, cause.candidate_ranks) == ("dead_rank", (), (0, 3))
    assert cause.confidence == "ambiguous"
    assert cause.summary.startswith("Ranks 0 3 left no dumps; rank 1 waits for rank 0 in call 1 on")


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("crossed", [True, False])
def test_ranks_that_cross_deadlock_whoever_left_no_dump(
    tmp_path: Path, backend: str, crossed: bool
) -> None:
    """Of four ranks two left a dump. Near miss: rank 3 is ahead, in the same order."""
    done = "scheduled" if backend == "gloo" else "completed"  # gloo's dumps have no states
    job = Job(4, {"1": ("tp", [2, 3])}, backend)
    for _ in range(3):
        job.post(WORLD, state=done, retired=True)
        job.post([2, 3], group="1", state=done, retired=True)
    job.post(WORLD, "barrier", state=done, retired=True)
    job.post([2], group="1", state="scheduled" if crossed else done, retired=not crossed)
    if not crossed:
        job.post([3], group="1", state=done, retired=True)
    job.post([3], state="scheduled")
    directory = job.write(tmp_path)
    for rank in (0, 1):
        (directory / f"comm_lib_trace_rank_{rank}").unlink()

    verdict = diagnose(open_run(directory))

    cause = cause_of(verdict)
    candidates = (2, 3) if crossed else (0, 1, 2, 3)
    assert (verdict.status, cause.kind, cause.candidate_ranks) == ("hung", "not_joined", candidates)
    assert ("one side skipped the other's call" in cause.summary) == crossed
    assert {one.role for one in verdict.findings[1:]} <= {"consequence"}


# --- sends and receives -------------------------------------------------------------------------


def transfers(job: Job, count: int = 3) -> None:
    for _ in range(count):
        job.post([0], "send 0->1")
        job.post([1], "recv 1<-0")
        job.post(WORLD)


def test_a_send_whose_receiver_went_on_is_named(tmp_path: Path) -> None:
    job = Job(4)
    transfers(job, 5)
    job.post([0], "send 0->1", state="scheduled")
    job.post([1, 2, 3], state="scheduled")
    verdict = job.verdict(tmp_path)
    cause = cause_of(verdict)
    assert (cause.kind, cause.diverging_ranks, cause.confidence) == ("p2p_mismatch", (1,), "likely")
    assert {finding.role for finding in verdict.findings[1:]} == {"consequence"}


def test_a_receive_whose_sender_went_on_is_named(tmp_path: Path) -> None:
    job = Job(4)
    transfers(job, 5)
    job.post([1], "recv 1<-0", state="scheduled")
    job.post([0, 2, 3], state="scheduled")
    cause = cause_of(job.verdict(tmp_path))
    assert (cause.kind, cause.diverging_ranks, cause.confidence) == ("p2p_mismatch", (0,), "likely")
    assert "left out 1 call, from send" in cause.summary


def test_a_rank_that_another_one_receives_from_is_of_the_job(tmp_path: Path) -> None:
    """On gloo, dumps may not say how many ranks there are. Rank 3 left none."""
    job = Job(3, backend="gloo")
    job.groups["0"] = ("default_pg", [])
    job.post([2], "recv 2<-3", outs=[[4, 2]], state="scheduled")
    job.post([0, 1], "barrier", ins=[], state="scheduled")

    cause = cause_of(diagnose(open_run(dated(job.write(tmp_path), job, 10 * MINUTE_NS))))
    assert (cause.kind, cause.diverging_ranks) == ("dead_rank", (3,))


def test_ranks_behind_those_that_left_no_dump_are_not_the_only_candidates(tmp_path: Path) -> None:
    """Ranks 0 and 1 left none. Rank 2 waits for rank 3, and rank 3 sends to rank 0."""
    job = Job(4, {"1": ("tp", [2, 3])}, backend="gloo")
    job.post(WORLD, retired=True, state="scheduled")
    job.post([3], "send 3->0", state="scheduled")
    job.post([2], group="1", state="scheduled")
    directory = dated(job.write(tmp_path), job, 10 * MINUTE_NS)
    for rank in (0, 1):
        (directory / f"comm_lib_trace_rank_{rank}").unlink()

    cause = cause_of(diagnose(open_run(directory)))
    assert (cause.diverging_ranks, cause.candidate_ranks) == ((), (0, 2, 3))
    assert "what rank 0 did is not seen, and may account for the wait as well" in cause.inferred


def test_two_sends_to_each_other_are_one_cause(tmp_path: Path) -> None:
    job = Job(4)
    transfers(job)
    job.post([0], "send 0->1", state="started")
    job.post([1], "send 1->0", state="started")
    verdict = job.verdict(tmp_path)
    assert cause_of(verdict).candidate_ranks == (0, 1)
    assert [finding.role for finding in verdict.findings] == ["cause"]


def test_a_pipeline_is_explained_from_its_end(tmp_path: Path) -> None:
    """Rank 2 never receives; 0 and 1 wait in a row."""
    job = Job(4)
    history(job)
    job.post([1], "send 1->2", state="started", retired=True)
    job.post([0], "send 0->1", state="started", retired=True)
    verdict = job.verdict(tmp_path)
    found = [(finding.role, finding.candidate_ranks) for finding in verdict.findings]
    assert found == [("cause", (1, 2)), ("consequence", (0, 1))]


def test_a_send_that_is_not_received_yet_is_none(tmp_path: Path) -> None:
    job = Job(4)
    transfers(job)
    job.post([0], "send 0->1", state="scheduled")
    verdict = diagnose(open_run(dated(job.write(tmp_path), job, 1_000_000)))
    assert (verdict.status, verdict.findings) == ("ok", ())


def test_a_send_that_is_not_received_for_long_names_both(tmp_path: Path) -> None:
    job = Job(4)
    transfers(job)
    job.post([0], "send 0->1", state="scheduled")
    cause = cause_of(diagnose(open_run(dated(job.write(tmp_path), job, MINUTE_NS))))
    assert (cause.kind, cause.candidate_ranks) == ("p2p_mismatch", (0, 1))
    assert cause.confidence == "ambiguous"


def test_a_send_known_to_be_done_needs_no_receive(tmp_path: Path) -> None:
    job = Job(4)
    transfers(job)
    job.post([0], "send 0->1")
    job.post([1, 2, 3], state="scheduled")
    assert "p2p_mismatch" not in {finding.kind for finding in job.verdict(tmp_path).findings}


def test_overwritten_transfers_pair_with_nothing(tmp_path: Path) -> None:
    job = Job(4)
    transfers(job, 10)
    job.post([0], "send 0->1", state="started", retired=True)
    verdict = job.verdict(tmp_path, keep=7)
    assert "p2p_mismatch" not in {finding.kind for finding in verdict.findings}


# --- splits ---------------------------------------------------------------------------------------

SENT = [[0, 6, 2], [4, 0, 8], [2, 2, 2]]


def exchange(
    job: Job, sent: list[list[int]], expected: list[list[int]], *, elsewhere: bool = False
) -> None:
    for rank in range(3):
        fields: dict[str, Any] = {}
        if job.version == "2.11":
            fields = {"input_split_sizes": sent[rank], "output_split_sizes": expected[rank]}
        ins, outs = [[sum(sent[rank])]], [[sum(expected[rank])]]
        place: dict[str, Any] = fields if elsewhere else {"splits": fields}
        job.post([rank], "all_to_all_single", ins=ins, outs=outs, **place)


def fitting() -> list[list[int]]:
    return [[SENT[peer][rank] for peer in range(3)] for rank in range(3)]


def job_of(version: str, **options: Any) -> Job:
    job = Job(3, version=version, **options)
    for rank in range(3):
        job.post([rank], ins=[[1]])
    return job


@pytest.mark.parametrize("version", ["2.9", "2.10", "2.11"])
def test_uneven_splits_that_fit_are_healthy(tmp_path: Path, version: str) -> None:
    job = job_of(version)
    for _ in range(3):
        exchange(job, SENT, fitting())
    assert job.verdict(tmp_path).status == "ok"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_rank_that_splits_as_none_expects_is_singled_out(tmp_path: Path, elsewhere: bool) -> None:
    job = job_of("2.11")
    exchange(job, SENT, fitting())
    expected = fitting()
    expected[0][2], expected[1][2] = 7, 7
    exchange(job, SENT, expected, elsewhere=elsewhere)
    verdict = job.verdict(tmp_path)
    cause = cause_of(verdict)
    found = (verdict.status, cause.kind, cause.diverging_ranks, cause.seq)
    assert found == ("diverged", "split_mismatch", (2,), 3)


def test_one_pair_that_does_not_fit_leaves_both_as_candidates(tmp_path: Path) -> None:
    """Sums over all ranks agree, which is all that torch's analyzer compares up to 2.10."""
    job = job_of("2.11")
    expected = fitting()
    expected[1][0], expected[1][2] = expected[1][0] + 1, expected[1][2]
    exchange(job, SENT, expected)
    cause = cause_of(job.verdict(tmp_path))
    assert (cause.kind, cause.diverging_ranks, cause.candidate_ranks) == (
        "split_mismatch",
        (),
        (0, 1),
    )


def test_before_2_11_splits_of_one_tensor_are_not_known(tmp_path: Path) -> None:
    job = job_of("2.10")
    expected = fitting()
    expected[1][0], expected[1][2] = expected[1][2], expected[1][0]
    exchange(job, SENT, expected)
    assert job.verdict(tmp_path).status == "ok"


def test_lists_of_tensors_give_their_splits_in_any_version(tmp_path: Path) -> None:
    job = job_of("2.10")
    expected = fitting()
    expected[0][1] += 1
    expected[2][1] += 1
    for rank in range(3):
        ins = [[size] for size in SENT[rank]]
        job.post([rank], "all_to_all", ins=ins, outs=[[size] for size in expected[rank]])
    cause = cause_of(job.verdict(tmp_path))
    assert (cause.kind, cause.diverging_ranks) == ("split_mismatch", (1,))


def test_json_has_the_same_splits(tmp_path: Path) -> None:
    job = job_of("2.11")
    expected = fitting()
    expected[0][2], expected[1][2] = 7, 7
    exchange(job, SENT, expected)
    for rank in range(3):
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps(job.value(rank)))
    run = open_run(tmp_path)
    (log,) = run.ranks[2].logs.values()
    assert log.call(2).sizes == (2, 2, 2)
    assert cause_of(diagnose(run)).diverging_ranks == (2,)


@pytest.mark.parametrize("splits", [[1, 2], [-1, 0, 0], ["x"], 7, None, [1 << 70] * 3, [[]]])
def test_splits_of_another_shape_do_no_harm(tmp_path: Path, splits: Any) -> None:
    job = job_of("2.11")
    for rank in range(3):
        fields = {"input_split_sizes": splits, "output_split_sizes": [2, 2, 2]}
        job.post([rank], "all_to_all_single", ins=[[6]], outs=[[6]], splits=fields)
    for rank in range(3):
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps(job.value(rank)))
    started = time.monotonic()
    diagnose(open_run(tmp_path))
    assert time.monotonic() - started < 10


def test_entries_with_and_without_splits_are_read(tmp_path: Path) -> None:
    job = job_of("2.11")
    for number in range(100):
        exchange(job, SENT, fitting())
        job.post([0, 1, 2], ins=[[number + 1]], **({"duration_ms": 1.5} if number % 2 else {}))
    run = open_run(job.write(tmp_path))
    (log,) = run.ranks[1].logs.values()
    assert log.calls == 201
    assert log.call(200).sizes == (4, 0, 8)
    assert log.call(200).out_sizes == (6, 0, 2)
    assert log.call(201).shape == (100,)
