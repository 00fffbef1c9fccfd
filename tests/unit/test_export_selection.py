"""Parts of a run: what is left, and that calls keep their numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclscope.errors import UsageError
from ncclscope.export.selection import Selection, select
from ncclscope.model import Run
from tests.support.cluster import Cluster


@pytest.fixture
def run(tmp_path: Path) -> Run:
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history("tp:0", 100)
    for pair in ((0, 1), (2, 3)):
        cluster.history("dp:0", 10, members=pair)
    cluster.post([0], "tp:0", "send", peer=1)
    cluster.post([0, 1, 2], "tp:0", "all_gather", done=False)
    return cluster.run()


def kept(run: Run) -> dict[int, dict[str, tuple[int, int]]]:
    return {
        rank.rank: {log.communicator.label: (log.first, log.calls) for log in rank.logs.values()}
        for rank in run.ranks
    }


def test_no_selection_exports_all(run: Run) -> None:
    assert select(run, Selection()) is run


def test_ranks_and_communicators(run: Run) -> None:
    part = select(run, Selection(ranks=((1, 2),), comms=("dp:0",)))

    assert kept(part) == {1: {"dp:0": (1, 10)}, 2: {"dp:0": (1, 10)}}
    assert {comm.label for comm in part.communicators.values()} == {"dp:0"}
    assert part.expected == run.expected


def test_a_communicator_may_be_named_by_its_key(run: Run) -> None:
    part = select(run, Selection(comms=("dp:0/2,3",)))

    assert kept(part) == {0: {}, 1: {}, 2: {"dp:0": (1, 10)}, 3: {"dp:0": (1, 10)}}


def test_around_a_call_numbers_stay_and_who_is_behind_keeps_its_last(run: Run) -> None:
    part = select(run, Selection(around=101, context=0))

    assert kept(part)[0] == {"tp:0": (101, 101), "dp:0": (10, 10)}
    assert kept(part)[3] == {"tp:0": (100, 100), "dp:0": (10, 10)}


def test_the_last_calls_are_counted_over_all_communicators(run: Run) -> None:
    part = select(run, Selection(last=4))

    assert kept(part)[0] == {"tp:0": (101, 101), "dp:0": (8, 10)}
    assert kept(part)[3] == {"tp:0": (100, 100), "dp:0": (7, 10)}
    assert [call.op for call in part.ranks[0].kept_calls()][-2:] == ["send", "all_gather"]


def test_the_last_seconds_count_from_the_newest_call(run: Run) -> None:
    times = sorted(call.time_ns or 0 for rank in run.ranks for call in rank.kept_calls())
    since = times[-30]

    part = select(run, Selection(last_ns=times[-1] - since))

    ends = {log.calls for rank in part.ranks for log in rank.logs.values()}
    found = [call for rank in part.ranks for call in rank.kept_calls()]
    assert all((call.time_ns or 0) >= since or call.seq in ends for call in found)
    assert sum((call.time_ns or 0) >= since for call in found) == 30


@pytest.mark.parametrize("selection", [Selection(ranks=((9, 12),)), Selection(comms=("pp:0",))])
def test_names_that_are_none_are_refused(run: Run, selection: Selection) -> None:
    with pytest.raises(UsageError, match="names no"):
        select(run, selection)
