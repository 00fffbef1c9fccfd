"""A torch job over two hosts: if one rank sleeps, no majority shows which.

The hosts are namespaces of this machine, as in test_hosts.py: 50 ms a packet, 1 % lost, and one
clock is 2 s ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_hosts import collect, diagnosed, start, wait_for, watching
from tests.support.hosts import Hosts, missing, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}"),
]

SKEWS = {"node-a": 0.0, "node-b": 2.0}
ASLEEP = 1
BOTH = [0, 1]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two hosts of a job that hangs: rank 1 sleeps, and rank 0 waits for it."""
    with Hosts(tmp_path_factory.mktemp("two-hosts"), SKEWS) as hosts:
        start(hosts, sleeper=ASLEEP)
        wait_for(hosts, "calls done", {0, 1})
        wait_for(hosts, "posted", {0})
        yield hosts


def blames_the_sleeper_at_most(document: dict[str, Any]) -> bool:
    """Whether a hang was found; fails if the rank that only waits is named for it."""
    cause = document["verdict"]
    assert cause is None or cause["diverging_ranks"] in ([], [ASLEEP]), cause
    return bool(document["status"] == "hung")


def test_collect_finds_the_call_that_one_of_two_never_joined(hosts: Hosts, tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []

    def is_hung() -> bool:
        target = tmp_path / f"hang-{len(found)}"
        status, nodes = collect(hosts, target)
        assert status == 0, nodes
        found.append(diagnosed(hosts, target))
        return blames_the_sleeper_at_most(found[-1])

    until(is_hung, "a verdict on two hosts", 120)
    document = found[-1]
    assert document["ranks"] == {"expected": 2, "read": 2, "missing": []}
    assert [row["host"] for row in document["table"]] == list(SKEWS)
    cause = document["verdict"]
    assert (cause["kind"], cause["seq"], cause["candidate_ranks"]) == ("not_joined", 21, BOTH)


def test_a_host_out_of_reach_leaves_the_verdict_open(hosts: Hosts, tmp_path: Path) -> None:
    lost = hosts["node-b"]
    hosts.cut(lost)
    try:
        status, nodes = collect(hosts, tmp_path / "without", "--timeout", "30")
    finally:
        hosts.join(lost)
    assert status == 2
    assert nodes["node-a"]["status"] == "delivered"
    assert nodes["node-b"]["status"] in ("failed", "timed_out")
    document = diagnosed(hosts, tmp_path / "without")
    assert document["ranks"] == {"expected": 2, "read": 1, "missing": [1]}
    # Rank 0 waits, and nobody has seen what rank 1 does.
    assert document["status"] != "ok"
    blames_the_sleeper_at_most(document)


def test_watch_finds_it_and_outlives_the_loss_of_a_host(hosts: Hosts) -> None:
    lost = hosts["node-b"]
    with watching(hosts, "watch-two.log") as watch:
        document = watch.until_document(blames_the_sleeper_at_most, "a verdict on two hosts")
        assert document["verdict"]["candidate_ranks"] == BOTH
        hosts.cut(lost)
        try:
            watch.until_line(f"{lost.address} does not report: no answer for 10 s")
        finally:
            hosts.join(lost)
        watch.until_line(f"{lost.address} reports again")
        assert all(
            blames_the_sleeper_at_most(one) or one["status"] in ("unknown", "ok", "incomplete")
            for one in watch.documents
        )
