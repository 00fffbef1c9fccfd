"""Verdicts on ranks that ended because the process that served their store did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ncclscope import Verdict, diagnose
from ncclscope.model import Activity, Rank
from ncclscope.model.activities import STORE_PLACE, STORE_WAIT
from tests.support.cluster import Cluster

PLACE = "host:29500"
LOST = (
    "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote "
    "server shutdown or crash?"
)


def without_store(
    directory: Path, waits: dict[int, str], *, error: str = LOST, waited: float, inside: int = 0
) -> Verdict:
    """Return the verdict where rank 2 lost its store and rank 1 waits for it in their pair.

    Args:
        directory: Where the rings go.
        waits: What each rank noted last that it did with the store.
        error: How rank 2 ended.
        waited: Seconds that rank 2 had posted nothing for by then.
        inside: Further calls in which rank 0 waits for the others.
    """
    cluster = Cluster(directory, 3)
    cluster.history("world", 3)
    cluster.history("pair", 3, members=(1, 2))
    cluster.post([1], "pair", members=(1, 2), done=False)
    for _ in range(inside):
        cluster.post([0], "world", done=False)
    run = cluster.run(quiet={0: waited - 0.1, 1: waited + 0.5, 2: waited})

    def noted(rank: Rank) -> Rank:
        notes = {STORE_PLACE: PLACE, STORE_WAIT: waits[rank.rank]}
        activities = {name: Activity(name, text, 0, 1, 1, 2) for name, text in notes.items()}
        details = {**rank.details, "ended_with": error} if rank.rank == 2 else rank.details
        return replace(rank, exited=rank.rank == 2, activities=activities, details=details)

    return diagnose(replace(run, ranks=tuple(map(noted, run.ranks))))


CONNECTED = {1: f"connect {PLACE}", 2: "get plan12"}


@pytest.mark.parametrize("wait", [f"serve {PLACE}", "get go"])
@pytest.mark.parametrize("waited", [0.2, 17.0])
@pytest.mark.parametrize("error", [LOST, "DistNetworkError: Connection reset by peer"])
def test_the_rank_that_took_the_store_with_it_is_named(
    tmp_path: Path, wait: str, waited: float, error: str
) -> None:
    verdict = without_store(tmp_path, {0: wait, **CONNECTED}, waited=waited, error=error)

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("dead_rank", (0,))
    assert verdict.cause.confidence == "likely"
    assert "rank 1 waits for rank 2 in call 4 on pair" in verdict.summary


def test_a_rank_that_peers_awaited_before_the_launcher_ended_never_joined(tmp_path: Path) -> None:
    verdict = without_store(tmp_path, {0: f"connect {PLACE}", **CONNECTED}, waited=17.0)

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.candidate_ranks) == ("not_joined", (1, 2))


def test_a_rank_that_lost_the_store_of_no_rank_is_not_blamed(tmp_path: Path) -> None:
    verdict = without_store(tmp_path, {0: f"connect {PLACE}", **CONNECTED}, waited=0.2)

    assert verdict.cause is not None
    assert (verdict.cause.diverging_ranks, verdict.cause.confidence) == ((), "ambiguous")
    assert "which no rank is known to have served" in verdict.summary


def test_a_store_whose_rank_waits_was_lost_with_the_job(tmp_path: Path) -> None:
    """Rank 0 serves the store and waits for rank 2 itself: the whole job was killed."""
    waits = {0: f"serve {PLACE}", **CONNECTED}

    cause = without_store(tmp_path, waits, waited=17.0, inside=1).cause

    assert cause is not None
    assert (cause.kind, cause.diverging_ranks) == ("not_joined", (2,))
    assert "how the job was stopped, not why its peers wait" in " ".join(cause.evidence)
