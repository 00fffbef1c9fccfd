"""The checker of proofs refuses forged ones, and accepts what the tool says of the same job."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ncclscope.engine.verdict import diagnose
from ncclscope.model import Run
from tests.proofs.checker import Unclear, check
from tests.support.cluster import Cluster

ClusterOf = Callable[[int], Cluster]
Forge = Callable[[dict[str, Any]], object]


def diagnosed(cluster: Cluster) -> tuple[Run, dict[str, Any]]:
    """Return the records of a job, and the only cause of its verdict."""
    run = cluster.run()
    causes = [one for one in diagnose(run).to_dict()["findings"] if one["role"] == "cause"]
    assert len(causes) == 1
    return run, copy.deepcopy(causes[0])


def other_type(cluster: Cluster) -> tuple[Run, dict[str, Any]]:
    """Let rank 2 post another type."""
    cluster.history("world")
    cluster.post([0, 1, 3], "world", done=False)
    cluster.post([2], "world", dtype="float16", done=False)
    return diagnosed(cluster)


def never_came(cluster: Cluster) -> tuple[Run, dict[str, Any]]:
    """Let rank 1 stay away."""
    cluster.history("world")
    cluster.post([0, 2, 3], "world", done=False)
    return diagnosed(cluster)


@pytest.mark.parametrize("job", [other_type, never_came])
def test_what_the_tool_says_is_accepted(
    cluster_of: ClusterOf, job: Callable[[Cluster], tuple[Run, dict[str, Any]]]
) -> None:
    run, cause = job(cluster_of(4))

    assert cause["proof"]["releases"] == cause["proof"]["of"]
    assert check(run, cause) == []


def other_rank(cause: dict[str, Any]) -> None:
    cause["diverging_ranks"] = cause["proof"]["repair"]["ranks"] = [0]
    cause["proof"]["repair"]["calls"][0].update(rank=0, like=1)


def another_place(cause: dict[str, Any]) -> None:
    cause["proof"]["repair"]["calls"][0]["seq"] -= 1


def drops_what_is_not_there(cause: dict[str, Any]) -> None:
    cause["proof"]["repair"]["calls"][0]["drop"] = 2


def copies_what_is_not_there(cause: dict[str, Any]) -> None:
    cause["proof"]["repair"]["calls"][0]["add"] = 2


def drops_one_more(cause: dict[str, Any]) -> None:
    cause["proof"]["repair"]["calls"][0].update(seq=5, drop=2)


def adds_another_call(cause: dict[str, Any]) -> None:
    cause["proof"]["repair"]["calls"][0]["start"] -= 1


def releases_one_less(cause: dict[str, Any]) -> None:
    cause["proof"]["releases"] -= 1


def one_more_waits(cause: dict[str, Any]) -> None:
    cause["proof"]["of"] += 1
    cause["proof"]["releases"] += 1


def rival_is_weaker(cause: dict[str, Any]) -> None:
    cause["proof"]["rival"]["releases"] -= 1


def rival_is_as_cheap(cause: dict[str, Any]) -> None:
    cause["proof"].update(rival_against=[])
    cause["proof"]["rival"]["releases"] = cause["proof"]["of"]


def names_another_rank(cause: dict[str, Any]) -> None:
    cause["diverging_ranks"] = [3]


@pytest.mark.parametrize(
    "forge",
    [
        other_rank,
        another_place,
        drops_what_is_not_there,
        copies_what_is_not_there,
        drops_one_more,
        adds_another_call,
        releases_one_less,
        one_more_waits,
        rival_is_weaker,
        rival_is_as_cheap,
        names_another_rank,
    ],
)
def test_a_forged_proof_is_refused(cluster_of: ClusterOf, forge: Forge) -> None:
    run, cause = other_type(cluster_of(4))

    forge(cause)

    assert check(run, cause)


@pytest.mark.parametrize("rank", [0, 2, 3])
def test_a_rank_that_waits_does_not_hold_the_others_up(cluster_of: ClusterOf, rank: int) -> None:
    run, cause = never_came(cluster_of(4))

    cause["diverging_ranks"] = cause["proof"]["repair"]["ranks"] = [rank]

    assert check(run, cause)


def test_a_rival_that_is_as_cheap_refutes_what_is_certain(cluster_of: ClusterOf) -> None:
    """Ranks 0 and 1 wait for each other, on two communicators of theirs."""
    cluster = cluster_of(2)
    for label in ("a", "b"):
        cluster.history(label)
    cluster.post([0], "a", done=False)
    cluster.post([1], "b", done=False)
    run = cluster.run()
    proof = {
        "repair": {"kind": "not_joined", "ranks": [0], "calls": [], "comes": []},
        "releases": 2,
        "of": 2,
        "rival": {"ranks": [1], "releases": 2},
        "rival_against": [],
    }
    cause: dict[str, Any] = {"diverging_ranks": [0], "confidence": "likely", "proof": proof}

    assert check(run, cause) == []
    assert check(run, {**cause, "confidence": "certain"})
    proof["rival"] = {"ranks": [1], "releases": 1}
    proof["rival_against"] = ["releases 1 of 2 waiting ranks"]
    assert check(run, cause)


def test_calls_that_are_overwritten_cannot_be_played(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 4, capacity=1024)
    for _ in range(1100):
        cluster.post(range(4), "world")
    run, cause = other_type(cluster)
    cause["proof"]["repair"]["calls"][0].update(seq=2, start=2)

    with pytest.raises(Unclear):
        check(run, cause)
