"""Blocks of vLLM's message queues: which reader keeps the writer waiting, or missed a message."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ncclscope.attach.host.queues import read_queue, with_queues
from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.model import Activity, Rank, Run
from ncclscope.model.snapshot import QueueState

NOTE: dict[str, Any] = {"name": "psm_abc", "readers": 2, "chunk": 16, "chunks": 3}
NOW = time.time_ns()


def memory(folder: Path, *blocks: tuple[int, ...]) -> None:
    (folder / "psm_abc").write_bytes(b"d" * 48 + b"".join(map(bytes, blocks)))


def test_flags_are_read_and_no_message(tmp_path: Path) -> None:
    memory(tmp_path, (1, 1, 0), (1, 1, 1), (0, 0, 0))

    assert read_queue(NOTE, tmp_path) == QueueState("psm_abc", 2, ((1,), (), ()))


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "../etc/passwd"},
        {"name": "psm_xyz"},
        {"name": None},
        {"readers": 10**9},
        {"readers": "2"},
        {"chunks": 0},
        {"chunk": -1},
        {"chunk": 10**30},
        {"chunk": 64},
    ],
)
def test_a_damaged_note_reads_nothing(tmp_path: Path, changed: dict[str, Any]) -> None:
    memory(tmp_path, (1, 0, 0), (1, 0, 0), (1, 0, 0))

    assert read_queue({**NOTE, **changed}, tmp_path) is None


def process(rank: int, reader: int | None, activity: Activity) -> Rank:
    about = NOTE if reader is None else {**NOTE, "reader": reader}
    return Rank(
        rank, 2, host="vm", pid=100 + rank, alive=True, started_ns=NOW - 60 * 10**9,
        last_seen_ns=NOW, activities={activity.name: activity}, details={"queues": [about]},
    )  # fmt: skip


def ago(seconds: float) -> int:
    return NOW - int(seconds * 1e9)


def judge(folder: Path, engine: Activity, *workers: Activity) -> Verdict:
    ranks = tuple(process(n, n, one) for n, one in enumerate(workers))
    run = Run(ranks, {}, 2, others=(process(-1, None, engine),))
    return diagnose(with_queues(run, folder))


IDLE = Activity("dequeue", "work", 0, 5, ago(40))
BUSY = Activity("dequeue", "work", 0, 5, ago(40), ago(39))
SENT = Activity("enqueue", "execute_model", 0, 9, ago(20), ago(20))
BLOCKED = Activity("enqueue", "execute_model", 0, 9, ago(30))


def test_reader_that_keeps_the_writer_waiting_is_named(tmp_path: Path) -> None:
    memory(tmp_path, (1, 1, 0), (1, 1, 0), (1, 1, 0))
    verdict = judge(tmp_path, BLOCKED, IDLE, BUSY)

    assert verdict.status == "hung"
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (1,))
    assert "Rank 1 has not read 3 blocks of a message queue of pid 99 (0, 1, 2)" in verdict.summary
    assert "waited for room for 30 s" in verdict.summary


def test_reader_that_missed_the_notification_is_named(tmp_path: Path) -> None:
    memory(tmp_path, (1, 1, 0), (0, 0, 0), (0, 0, 0))
    verdict = judge(tmp_path, SENT, IDLE, IDLE)

    assert verdict.cause is not None
    assert (verdict.cause.diverging_ranks, verdict.cause.confidence) == ((1,), "likely")
    assert "waited in dequeue for 20 s although 1 block" in verdict.summary
    assert "missed the notification" in verdict.summary


def test_both_readers_are_candidates_where_both_missed_it(tmp_path: Path) -> None:
    memory(tmp_path, (1, 0, 0), (0, 0, 0), (0, 0, 0))
    verdict = judge(tmp_path, SENT, IDLE, IDLE)

    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == ()
    assert verdict.cause.candidate_ranks == (0, 1)


@pytest.mark.parametrize(
    ("blocks", "engine", "second"),
    [
        (((1, 1, 1), (0, 0, 0), (0, 0, 0)), SENT, IDLE),  # all was read: idle
        (((1, 1, 0), (0, 0, 0), (0, 0, 0)), replace(SENT, until_ns=ago(0.1)), IDLE),  # just sent
        (((1, 1, 0), (0, 0, 0), (0, 0, 0)), SENT, BUSY),  # it works, and the writer has room
        (((1, 1, 0), (1, 1, 0), (1, 1, 0)), replace(BLOCKED, since_ns=ago(0.1)), BUSY),
    ],
)
def test_a_healthy_queue_is_no_alarm(
    tmp_path: Path, blocks: tuple[tuple[int, ...], ...], engine: Activity, second: Activity
) -> None:
    memory(tmp_path, *blocks)

    assert judge(tmp_path, engine, IDLE, second).cause is None
