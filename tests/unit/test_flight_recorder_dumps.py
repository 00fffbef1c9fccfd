"""Flight Recorder dumps: forms, hostile files, and what NCCL writes that gloo does not."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from ncclscope.engine.verdict import diagnose
from ncclscope.errors import DamagedFileError, InputError, NothingFoundError
from ncclscope.model import State
from ncclscope.readers import open_run
from ncclscope.readers.flight_recorder.plain_pickle import load_plain
from ncclscope.readers.flight_recorder.reader import rank_of
from tests.support.dumps import Job, history

# --- forms -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json", 2, 3, 4, 5])
def test_any_form_is_read_the_same(tmp_path: Path, form: str | int) -> None:
    job = Job(2)
    history(job)
    for rank in range(2):
        value = job.value(rank)
        data = json.dumps(value).encode() if form == "json" else pickle.dumps(value, int(form))
        (tmp_path / f"_dump_{rank}").write_bytes(data)
    run = open_run(tmp_path)
    (log,) = run.ranks[1].logs.values()
    assert [log.call(seq).shape for seq in (1, 2, 3, 4)] == [(4, 2), (5, 2), (6, 2), (7, 2)]
    assert log.call(4).dtype == "bfloat16"
    assert log.call(4).state is State.COMPLETED
    assert log.communicator.ranks == (0, 1)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("comm_lib_trace_rank_3", 3),
        ("nccl_trace_rank_12.json", 12),
        ("_dump_0", 0),
        ("rank7.pkl", 7),
        ("fr_rank_2_20261120", 2),
        ("3.json", 3),
        ("dump", None),
        ("_dump_99999999999", None),
    ],
)
def test_the_rank_is_in_the_name(name: str, rank: int | None) -> None:
    assert rank_of(Path(name)) == rank


def test_names_without_a_backend_are_read(tmp_path: Path) -> None:
    job = Job(3, backend="")
    history(job)
    job.post([0, 1])
    job.post([2], "broadcast")
    cause = job.verdict(tmp_path).cause
    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("op_mismatch", (2,))


# --- files that are no dumps -------------------------------------------------------------------


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("planted-by-a-pickle",)


@pytest.mark.parametrize(
    "data",
    [
        *(pickle.dumps({"version": _Bomb()}, protocol) for protocol in range(6)),
        b"\x80\x02}r\xff\xff\xff\x7f.",  # a memo of 64 GB
        b"\x80\x02X\xff\xff\xff\xffshort.",
        b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00x.",  # a bytearray of 1 TB
        b"\x80\x02\x8a\xffx.",
        b"\x80\x02h\x05.",
        b"\x80\x02((.",
        b"\x80\x02.",
        b"\x80\x02}q\x00",
        b"",
    ],
)
def test_a_pickle_that_is_not_plain_is_refused_with_a_line(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DamagedFileError) as caught:
        load_plain(data, "it")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_dump_that_would_run_something_is_a_note_and_its_rank_missing(tmp_path: Path) -> None:
    job = Job(3)
    history(job)
    job.write(tmp_path)
    bad = {**job.value(1), "entries": [_Bomb()]}
    (tmp_path / "comm_lib_trace_rank_1").write_bytes(pickle.dumps(bad))
    run = open_run(tmp_path)
    assert run.missing == (1,)
    assert "refused" in run.notes[0]


@pytest.mark.parametrize("size", [0, 1, 87, 500])
def test_a_torn_dump_leaves_its_rank_missing(tmp_path: Path, size: int) -> None:
    job = Job(3)
    history(job)
    torn = job.write(tmp_path) / "comm_lib_trace_rank_2"
    torn.write_bytes(torn.read_bytes()[:size])
    run = open_run(tmp_path)
    assert run.missing == (2,)
    assert diagnose(run).status == "incomplete"


def test_other_files_of_a_directory_are_passed_over(tmp_path: Path) -> None:
    job = Job(2)
    history(job)
    job.write(tmp_path)
    (tmp_path / "fault_injection.log").write_text("Fault ranks: [1]\n")
    (tmp_path / "config_3.json").write_text('{"entries": 3, "pg_config": 1}')
    (tmp_path / "model_1.pkl").write_bytes(pickle.dumps([1, 2, 3]))
    run = open_run(tmp_path)
    assert (len(run.ranks), run.notes) == (2, ())


def test_a_file_given_by_name_that_is_no_dump_is_an_error(tmp_path: Path) -> None:
    other = tmp_path / "config_3.json"
    other.write_text('{"entries": 3, "pg_config": 1}')
    with pytest.raises(InputError, match="not a Flight Recorder dump"):
        open_run(other)
    with pytest.raises(NothingFoundError):
        open_run(tmp_path)


@pytest.mark.parametrize("entries", [[None, 3, "x"], [{}], [{"collective_seq_id": "1"}], [[[]]]])
def test_entries_of_another_shape_do_no_harm(tmp_path: Path, entries: list[Any]) -> None:
    value = {"version": "2.10", "pg_config": {"0": 3, "1": {"ranks": "[0,"}}, "entries": entries}
    (tmp_path / "_dump_0.json").write_text(json.dumps(value))
    assert diagnose(open_run(tmp_path)).status == "unknown"


# --- what NCCL writes --------------------------------------------------------------------------


def test_a_rank_that_has_not_posted_is_waited_for(tmp_path: Path) -> None:
    job = Job(4)
    history(job)
    job.post([0, 2, 3], state="scheduled")
    verdict = job.verdict(tmp_path)
    assert verdict.cause is not None
    found = (verdict.status, verdict.cause.kind, verdict.cause.diverging_ranks, verdict.cause.seq)
    assert found == ("hung", "not_joined", (1,), 5)
    assert verdict.cause.confidence == "likely"


@pytest.mark.parametrize(("seconds", "status"), [(0.001, "ok"), (60.0, "hung")])
def test_one_rank_ahead_of_all_others_is_a_snapshot_unless_none_moves(
    tmp_path: Path, seconds: float, status: str
) -> None:
    """In dumps written long after the last call, who waits alone hangs, and nobody is to blame.

    Its call may be an extra one, or the others may be held up before it.
    """
    job = Job(4)
    history(job)
    job.post([2], op="all_gather", state="scheduled")
    directory = job.write(tmp_path)
    for rank in range(4):
        stamp = job.entries[rank][-1]["time_created_ns"] + int(seconds * 1e9)
        os.utime(directory / f"comm_lib_trace_rank_{rank}", ns=(stamp, stamp))

    verdict = diagnose(open_run(directory))

    assert verdict.status == status
    if verdict.cause is not None:
        assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", ())
        assert verdict.cause.candidate_ranks == (0, 1, 2, 3)


def test_ranks_at_different_places_are_a_snapshot(tmp_path: Path) -> None:
    job = Job(4)
    history(job)
    job.post([0, 2, 3], state="scheduled")
    job.post([0], state="scheduled")
    assert job.verdict(tmp_path).status == "unknown"


def test_a_rank_that_completed_what_others_have_not_posted_is_a_snapshot(tmp_path: Path) -> None:
    job = Job(4)
    history(job)
    job.post([0, 2, 3])
    job.post([0, 2, 3], state="scheduled")
    assert job.verdict(tmp_path).status == "unknown"


def test_states_that_some_know_sooner_are_no_difference(tmp_path: Path) -> None:
    job = Job(4)
    history(job)
    job.post([0], state="started")
    job.post([1, 2])
    job.post([3], state="scheduled")
    job.post([0, 1, 2, 3], state="scheduled")
    assert job.verdict(tmp_path).status == "unknown"


def test_calls_that_the_watchdog_gave_up_are_a_hang(tmp_path: Path) -> None:
    job = Job(4)
    history(job)
    job.post([2], state="scheduled", retired=True)
    verdict = job.verdict(tmp_path)
    assert verdict.status == "hung"


def test_a_wrapped_ring_is_no_missing_call(tmp_path: Path) -> None:
    job = Job(4, {"1": ("tp", [0, 1]), "2": ("tp", [2, 3])})
    for number in range(30):
        job.post([0, 1, 2, 3], ins=[[number + 1]])
        for _ in range(3):
            job.post([0, 1], group="1")
        if number < 5:
            job.post([2, 3], group="2")
    verdict = job.verdict(tmp_path, keep=20)
    assert (verdict.status, verdict.findings) == ("ok", ())
    assert all(rank.lost for rank in verdict.run.ranks)


def test_coalesced_calls_count_as_one(tmp_path: Path) -> None:
    job = Job(3)
    history(job)
    job.post([0, 1, 2], ins=[[8]])
    job.post([0, 1, 2], ins=[[16]], again=True)
    job.post([0, 1, 2], "coalesced", ins=[], outs=[], again=True)
    job.post([0, 1, 2], "all_gather", ins=[[5]], outs=[[15]])
    verdict = job.verdict(tmp_path)
    assert verdict.status == "ok"
    assert {log.calls for rank in verdict.run.ranks for log in rank.logs.values()} == {6}


def test_a_coalesced_group_with_another_call_in_it_differs(tmp_path: Path) -> None:
    job = Job(3)
    history(job)
    job.post([0, 1, 2], ins=[[8]])
    job.post([0, 2], ins=[[16]], again=True)
    job.post([1], ins=[[24]], again=True)
    job.post([0, 1, 2], "coalesced", ins=[], outs=[], again=True)
    cause = job.verdict(tmp_path).cause
    assert cause is not None
    assert (cause.kind, cause.diverging_ranks, cause.seq) == ("size_mismatch", (1,), 5)


def test_sends_do_not_disturb_the_numbers_of_collectives(tmp_path: Path) -> None:
    job = Job(4)
    for _ in range(3):
        job.post([0], "send 0->1")
        job.post([1], "recv 1<-0")
        job.post([0, 1, 2, 3])
    run = open_run(job.write(tmp_path))
    (sent,) = run.ranks[0].p2p.values()
    assert [(call.op, call.peer, call.seq) for call in sent] == [("send", 1, n) for n in (1, 2, 3)]
    assert {log.calls for rank in run.ranks for log in rank.logs.values()} == {3}
    assert diagnose(run).status == "ok"


def test_uneven_sizes_that_fit_are_healthy(tmp_path: Path) -> None:
    job = Job(3)
    rows = [3, 5, 2]
    for rank, own in enumerate(rows):
        outs = [[theirs, 2] for theirs in rows]
        job.post([rank], "all_gather", ins=[[own, 2]], outs=outs)
        job.post([rank], "all_gather_v", ins=[[own, 2]], outs=[[10, 2]])
        job.post([rank], "all_to_all", ins=[[own, 2]], outs=[[own + 1, 2]])
        job.post([rank], "all_to_all_single", ins=[[own, 2]], outs=[[own + 1, 2]])
    assert job.verdict(tmp_path).status == "ok"


def test_an_output_of_another_size_differs(tmp_path: Path) -> None:
    job = Job(4)
    history(job)
    job.post([0, 1, 3], "_all_gather_base", ins=[[4]], outs=[[16]])
    job.post([2], "_all_gather_base", ins=[[4]], outs=[[20]])
    cause = job.verdict(tmp_path).cause
    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("size_mismatch", (2,))


def test_two_recorders_of_one_process_are_one_rank(tmp_path: Path) -> None:
    nccl, gloo = Job(2), Job(2, backend="gloo")
    history(nccl)
    history(gloo, 2)
    nccl.write(tmp_path)
    for rank in range(2):
        (tmp_path / f"gloo_rank_{rank}.json").write_text(json.dumps(gloo.value(rank)))
        (tmp_path / f"again_rank_{rank}.json").write_text(json.dumps(nccl.value(rank)))
    run = open_run(tmp_path)
    assert len(run.ranks) == 2
    assert {comm.backend for comm in run.communicators.values()} == {"nccl", "gloo"}
    assert len(run.notes) == 1


def test_a_status_in_text_is_a_number(tmp_path: Path) -> None:
    job = Job(2)
    history(job)
    job.post([0], state="scheduled")
    values = [job.value(rank) for rank in range(2)]
    values[0]["entries"] = values[0]["entries"][-1:]
    values[1]["entries"] = []
    for rank, value in enumerate(values):
        value["pg_status"] = {
            "0": {"last_enqueued_collective": "4", "last_completed_collective": "4"}
        }
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps(value))
    cause = diagnose(open_run(tmp_path)).cause
    assert cause is not None
    assert (cause.kind, cause.candidate_ranks, cause.seq) == ("not_joined", (0, 1), 5)
