"""Which processes are of the attempt that counts, where torchrun started all ranks again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ncclscope.readers import assemble
from ncclscope.readers.attempts import Attempts
from ncclscope.tracing.identity import describe_process
from tests.support.cluster import Cluster


def about(attempt: object, parent: int = 7, host: str = "a") -> dict[str, object]:
    return {"host": host, "parent": parent, "attempt": attempt}


def test_the_newest_attempt_of_each_launcher_counts() -> None:
    """Launchers of several nodes count for themselves."""
    attempts = Attempts([about(0), about(1), about(0, host="b"), {"host": "a"}])

    assert [attempts.is_newest(one) for one in (about(0), about(1))] == [False, True]
    assert attempts.is_newest(about(0, host="b"))
    assert attempts.is_newest({"host": "a", "parent": 7})


@pytest.mark.parametrize("value", ["1", None, True, [2], 10**30])
def test_what_is_no_number_is_no_attempt(value: object) -> None:
    attempts = Attempts([about(value), about(0)])
    assert attempts.is_newest(about(value))
    assert attempts.is_newest(about(0))


@pytest.mark.parametrize(
    ("value", "attempt"), [("2", 2), ("", None), ("x", None), ("9" * 30, None)]
)
def test_a_process_says_which_attempt_it_is_of(
    monkeypatch: pytest.MonkeyPatch, value: str, attempt: int | None
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", value)
    assert describe_process().get("attempt") == attempt


def test_a_rank_that_has_not_come_again_is_missing(tmp_path: Path) -> None:
    """Its process of the attempt before is over."""
    cluster = Cluster(tmp_path, 3)
    cluster.history("world", 3)
    first = [
        replace(rank, details={**rank.details, "parent": 7, "attempt": 0})
        for rank in cluster.run().ranks
    ]
    again = [
        replace(
            rank,
            pid=rank.pid + 100,
            started_ns=(rank.last_seen_ns or 0) + 1,
            logs={},
            details={**rank.details, "attempt": 1},
        )
        for rank in first[:2]
    ]

    run = assemble([*first, *again])

    assert [rank.pid for rank in run.ranks] == [1100, 1101]
    assert run.missing == (2,)
    assert "3 rings of earlier attempts left out" in run.notes
